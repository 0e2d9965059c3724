"""Bugs of autorecovery, and of bookies that lost their disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autorecovery.core.copying import Command, Copy
from autorecovery.core.fragments import CopyJob
from autorecovery.core.fragments_waiting import Grace
from autorecovery.integrity import IntegrityCheck
from autorecovery.replicator import Replicator
from autorecovery.worker import Worker
from bookie.server import LostBookie
from ledger_client.core.commands import Outcome
from ledger_client.environment import Access
from metadata.discovery import Bookies, BookieWatcher
from metadata.underreplication import Lock, UnderReplication
from wire.types import LedgerId


def copies_not_awaited(right: Callable[..., Any]) -> Any:
    """The copies are on their way, which is as good as there."""

    async def copy(self: Replicator, job: CopyJob, access: Access, **named: Any) -> Copy:
        self.client.nursery.start_soon(lambda: right(self, job, access, **named))
        core = Copy(job, request_ids=self.client.request_ids)
        core._cutter._run = None
        return core

    return copy


def unread_is_no_obstacle(_right: Any) -> Any:
    """What could not be read now cannot be copied, and is not waited for."""

    def is_complete(self: Copy) -> bool:
        return self.is_over and not self.failed

    return property(is_complete)


def mark_deleted_first(right: Callable[..., Any]) -> Any:
    async def repair(self: Worker, lock: Lock) -> None:
        assert lock.mark is not None
        await self._marks._marks.delete(lock.mark, lock.session, is_retry=False)
        await right(self, lock)

    return repair


def no_grace(_right: Callable[..., Any]) -> Any:
    def wait_seconds(self: Grace, *_: Any, **__: Any) -> float:
        return 0.0

    return wait_seconds


def no_second_look(_right: Callable[..., Any]) -> Any:
    """As it was: the list that the last watch has brought is good enough to fence by."""

    async def refresh(self: BookieWatcher) -> Bookies:
        return self.bookies

    return refresh


def limbo_ends_unhealed(_right: Callable[..., Any]) -> Any:
    async def heal(self: IntegrityCheck, ledger_id: LedgerId) -> bool:
        return True

    return heal


def nothing_remembered(_right: Callable[..., Any]) -> Any:
    async def remember(lost: LostBookie) -> None:
        """Whatever the metadata expects here."""

    return remember


def lock_shared(right: Callable[..., Any]) -> Any:
    """A ledger that somebody else has locked is taken all the same."""

    async def lock(self: UnderReplication, ledger_id: LedgerId) -> Lock | None:
        found: Lock | None = await right(self, ledger_id)
        if found is None and ledger_id not in self._held:
            session = await self._store.require_session()
            found = self._held[ledger_id] = Lock(ledger_id, session)
        return found

    return lock


def disk_errors_pass(right: Callable[..., Any]) -> Any:
    """As it was: what a disk cannot read now it may read the next time."""

    def on_read(self: Copy, request_id: int, outcome: Outcome, **named: Any) -> list[Command]:
        if outcome is Outcome.IO_ERROR:
            outcome = Outcome.UNKNOWN_STATE
        result: list[Command] = right(self, request_id, outcome, **named)
        return result

    return on_read
