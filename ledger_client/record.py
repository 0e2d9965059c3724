"""What a writer changes in the record of its ledger, and what the core hears of it.

Each change runs in a task of its own while entries go on; its end comes back to the owner of the
core as an event, never as a call from another task.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from ledger_client.core.commands import ChangeEnsemble, CloseLedger, Command, FailureKind
from ledger_client.core.writer import Writer
from ledger_client.environment import Environment
from ledger_client.errors import kind_of
from metadata import update
from metadata.model import LedgerMetadata
from metadata.update import VersionedLedger
from wire.errors import LedgerError

Event = Callable[[], list[Command]]


class LedgerRecord:
    def __init__(
        self,
        environment: Environment,
        ledger: VersionedLedger,
        core: Writer,
        post: Callable[[Event], None],
    ) -> None:
        self._environment = environment
        self._ledger = ledger
        self._core = core
        self._post = post

    @property
    def metadata(self) -> LedgerMetadata:
        return self._ledger.metadata

    def leave(self) -> None:
        """The owner is over: it hears of nothing any more, and nothing here keeps it."""
        self._post = _ignore

    def obey(self, command: ChangeEnsemble | CloseLedger) -> None:
        nursery = self._environment.nursery
        if isinstance(command, ChangeEnsemble):
            nursery.start_soon(self._change, command)
        else:
            nursery.start_soon(self._close, command)

    async def _change(self, command: ChangeEnsemble) -> None:
        await trio.sleep(command.delay_seconds)
        core = self._core
        metadata = self.metadata
        chosen = self._environment.replacements(
            core.ensemble,
            command.failed,
            command.avoid,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
        )
        if not chosen:
            self._post(partial(core.on_change_failed, FailureKind.NOT_ENOUGH_BOOKIES))
            return
        change = update.ChangeEnsemble(
            first_entry_id=command.first_entry_id, failed=command.failed, replacements=chosen
        )
        try:
            await self._update(change)
        except LedgerError as error:
            self._post(partial(core.on_change_failed, kind_of(error)))
            return
        metadata = self.metadata
        self._post(lambda: core.on_ensemble_changed(metadata, trio.current_time()))

    async def _close(self, command: CloseLedger) -> None:
        close = update.Close(last_entry_id=command.last_entry_id, length=command.length)
        try:
            await self._update(close)
        except LedgerError as error:
            self._post(partial(self._core.on_close_failed, kind_of(error)))
            return
        self._post(self._core.on_closed)

    async def _update(self, change: update.LedgerUpdate) -> None:
        ledger_id = self.metadata.ledger_id
        updated = await self._environment.ledgers.update(ledger_id, change, known=self._ledger)
        self._ledger = updated.ledger


def _ignore(event: Event) -> None:
    """Whatever comes of a record whose owner is over."""
