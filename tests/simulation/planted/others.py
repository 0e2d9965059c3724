"""Bugs of the record, of bookies and of readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bookie.core.ledger import Ledger
from ledger_client.core import commands
from ledger_client.core.lac import ReaderLac
from ledger_client.core.reader import RangeRead
from ledger_client.core.replicas import Piece
from metadata import update
from metadata.model import LedgerMetadata, LedgerState
from tests.simulation.inner.bookie import ModelBookie
from wire.errors import Status


def finish_over_another(_right: Callable[..., Any]) -> Any:
    def apply(self: update.FinishRecovery, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed_at(last_entry_id=self.last_entry_id, length=self.length):
            return None
        reopened = replace(
            current, state=type(current.state).IN_RECOVERY, last_entry_id=None, length=0
        )
        return reopened.closed_by_recovery(
            last_entry_id=self.last_entry_id, length=self.length, fragments=self.fragments
        )

    return apply


def close_over_recovery(_right: Callable[..., Any]) -> Any:
    def apply(self: update.Close, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed:
            return None
        opened = replace(current, state=LedgerState.OPEN)
        return opened.closed_at(last_entry_id=self.last_entry_id, length=self.length)

    return apply


def own_close_is_foreign(right: Callable[..., Any]) -> Any:
    def apply(self: update.Close, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed:
            return replace(current, last_entry_id=self.last_entry_id + 1)
        result: LedgerMetadata | None = right(self, current)
        return result

    return apply


def change_over_recovery(right: Callable[..., Any]) -> Any:
    def apply(self: update.ChangeEnsemble, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed:
            result: LedgerMetadata | None = right(self, current)
            return result
        still = current.failed_slots(self.failed)
        wanted = {slot: self.replacements[slot] for slot in still if slot in self.replacements}
        if not wanted:
            return None
        opened = replace(current, state=LedgerState.OPEN)
        changed = opened.with_ensemble_change(
            first_entry_id=self.first_entry_id, replacements=wanted
        )
        return replace(changed, state=current.state)

    return apply


def fence_forgotten(_right: Callable[..., Status]) -> Any:
    def admit(self: Ledger, key: bytes, *, recovery: bool) -> Status:
        return Status.OK

    return admit


def limbo_denies(_right: Callable[..., Status]) -> Any:
    def absent(self: Ledger) -> Status:
        return Status.NO_ENTRY if self.exists else Status.NO_LEDGER

    return absent


def lac_falls(right: Callable[..., bool]) -> Any:
    def on_lac(self: ReaderLac, lac: int) -> bool:
        if self.is_closed or lac == self.lac:
            return False
        self.lac = lac
        return True

    return on_lac


def reads_do_not_fence(right: Callable[..., Any]) -> Any:
    def read(self: ModelBookie, entry_id: int, reply: Any, *, fence: bool = False) -> None:
        right(self, entry_id, reply, fence=False)

    return read


def fence_answered_early(_right: Callable[..., Any]) -> Any:
    def fence(self: ModelBookie, then: Callable[[], None]) -> None:
        self.ledger.fenced = True
        self.world.history.emit("fence_answered", self.name)
        then()
        self._log(fences=True)

    return fence


def acknowledged_before_sync(right: Callable[..., Any]) -> Any:
    def log(self: ModelBookie, *, done: Any = None, **what: Any) -> None:
        right(self, **what)
        if done is not None:
            done()

    return log


def more_than_asked(right: Callable[..., Any]) -> Any:
    """An answer is taken whole, whatever was asked for."""

    def take(
        self: RangeRead, piece: Piece, slot: int, answer: commands.ReadAnswer, now: float
    ) -> Any:
        piece.count = max(piece.count, answer.good)
        return right(self, piece, slot, answer, now)

    return take


def moved_bookies_not_found(_right: Callable[..., Any]) -> Any:
    def all_failed(self: RangeRead, piece: Piece, now: float) -> Any:
        return self._fail(piece)

    return all_failed


def copies_not_awaited(right: Callable[..., Any]) -> Any:
    """Repair names the new bookie before the copies are there."""

    def copy(self: Any, metadata: Any, first: int, last: int, slot: int, new: Any) -> None:
        self._commit(first, slot, new)
        right(self, metadata, first, last, slot, new)

    return copy


def first_payload_for_all(right: Callable[..., Any]) -> Any:
    """A part of many entries is cut at the wrong place: each is shown as the one before."""

    def on_good(self: Piece, slot: int, good: int, *, size: int, data: Any) -> None:
        first = data[self.first]
        right(self, slot, good, size=size, data=dict.fromkeys(data, first))

    return on_good


def short_ensemble(right: Callable[..., Any]) -> Any:
    """A replacement may be a bookie that has a slot already."""

    def apply(self: update.ChangeEnsemble, current: LedgerMetadata) -> LedgerMetadata | None:
        result: LedgerMetadata | None = right(self, current)
        if result is None:
            return None
        *kept, last = result.fragments
        doubled = (last.ensemble[-1],) * len(last.ensemble)
        return replace(result, fragments=(*kept, replace(last, ensemble=doubled)))

    return apply
