"""The shell of the real recovery core."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ledger_client.core.commands import (
    AddAnswer,
    AskLac,
    AskRecoveryRead,
    ChooseReplacements,
    Command,
    Failure,
    FailureKind,
    FinishRecovery,
    LacAnswer,
    Outcome,
    PackageRecovered,
    ReadLength,
    RecoveryEnded,
    RecoveryReadAnswer,
    SendAdd,
    StartRecovery,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.recovery import Recovery, RecoveryOptions
from metadata import update
from metadata.model import LedgerMetadata
from tests.simulation.inner.bookie import KEY, Entry
from tests.simulation.inner.network import Client
from tests.simulation.inner.reader import RangeReader
from tests.simulation.inner.writer import storm_of
from wire.errors import LedgerError
from wire.types import NO_ENTRY

if TYPE_CHECKING:
    from tests.simulation.inner.world import World


class RecoveringClient(Client):
    """Opens the ledger; a recovery that fails is begun anew, as a user would, a few times."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        attempts: int = 1,
        advances: bool = False,
        key: bytes = KEY,
    ) -> None:
        super().__init__(world, name)
        self._key = key
        self._advances = advances  # the LAC it writes, as Apache's client does
        self.metadata: LedgerMetadata | None = None  # once it has ended well
        self.failures: list[Failure] = []
        self._attempts = attempts
        self._distribution = Distribution.of(world.store.metadata)
        world.store.read(self, self._begin)

    def _begin(self, metadata: LedgerMetadata) -> None:
        plan = self.world.plan
        options = RecoveryOptions(window=plan.window, ask_all=plan.ask_all, storm=storm_of(plan))
        self.core = Recovery(metadata, options)
        self.entries: dict[int, Entry] = {}
        self._life = len(self.failures)
        self.world.tell(f"{self.name} recovers the ledger")
        self.obey(self.core.start())

    def obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case StartRecovery():
                    self.world.store.update(self, update.StartRecovery(), self._started)
                case AskLac():
                    self._fence(command)
                case AskRecoveryRead():
                    self._read(command)
                case PackageRecovered(first, lac, entries):
                    if self._advances:
                        lac = self.core._acked
                    for entry_id, (length, payload) in enumerate(entries, first):
                        assert isinstance(payload, str)
                        self.entries[entry_id] = Entry(payload, lac, length)
                case SendAdd():
                    self._send(command)
                case ChooseReplacements():
                    self.later(command.delay_seconds, partial(self._choose, self.core, command))
                case ReadLength(entry_id):
                    self._read_length(entry_id)
                case FinishRecovery():
                    self._finish(command)
                case RecoveryEnded(metadata, failure):
                    self._end(metadata, failure)
                case _:
                    raise AssertionError(command)

    def _end(self, metadata: LedgerMetadata | None, failure: Failure | None) -> None:
        if metadata is not None:
            self.metadata = metadata
            self.world.tell(f"{self.name} opened: the ledger ends at {metadata.last_entry_id}")
            self.world.history.emit("opened", self.name, metadata)
            return
        assert failure is not None
        self.world.tell(f"{self.name} fails: {failure.message}")
        self.failures.append(failure)
        if len(self.failures) < self._attempts:
            self.later(0.2, lambda: self.world.store.read(self, self._begin))

    def _started(
        self, metadata: LedgerMetadata | None, wrote: bool, error: LedgerError | None
    ) -> None:
        if metadata is not None:
            self.obey(self.core.on_started(metadata, wrote=wrote))
        else:
            self.obey(self.core.on_metadata_failed(_kind(error)))

    def _fence(self, ask: AskLac) -> None:
        core, bookie = self.core, self.world.bookies[ask.bookie_id]

        def answered(outcome: Outcome, lac: int = NO_ENTRY) -> None:
            self.world.tell(f"{self.name} hears {outcome.name}, LAC {lac} of {ask.bookie_id}")
            self.obey(core.on_lac_answers([LacAnswer(ask.request_id, outcome, lac)], self.now))

        self.world.network.ask(
            self,
            bookie,
            lambda reply: bookie.read_lac(reply, fence=ask.fence, key=self._key),
            answered,
            kind="fence",
        )

    def _read(self, ask: AskRecoveryRead) -> None:
        core, bookie = self.core, self.world.bookies[ask.bookie_id]

        def answered(outcome: Outcome, entry: Entry | None = None, _lac: int = NO_ENTRY) -> None:
            self.world.tell(
                f"{self.name} hears {outcome.name} about entry {ask.entry_id} of {ask.bookie_id}"
            )
            answer = RecoveryReadAnswer(
                request_id=ask.request_id,
                outcome=outcome,
                length=entry.length if entry else 0,
                payload=entry.payload if entry else None,
            )
            self.obey(core.on_read_answers([answer], self.now))

        self.world.network.ask(
            self,
            bookie,
            lambda reply: bookie.read(ask.entry_id, reply, fence=True, key=self._key),
            answered,
            kind="read",
            entry=ask.entry_id,
        )

    def _send(self, send: SendAdd) -> None:
        held = self._distribution.entries_of(slot=send.slot, first=send.first, last=send.last)
        entries = {entry_id: self.entries[entry_id] for entry_id in held}
        core, bookie = self.core, self.world.bookies[send.bookie_id]
        left = set(entries)
        self.world.tell(f"{self.name} writes {sorted(left)} to {send.bookie_id}")

        def answered(outcome: Outcome, entry_ids: Sequence[int] | None = None) -> None:
            if not left:
                return
            if outcome is Outcome.OK and entry_ids is not None:
                left.difference_update(entry_ids)
            else:
                left.clear()
            answer = AddAnswer(send.request_id, outcome, entry_ids)
            self.obey(core.on_add_answers([answer], self.now))

        self.world.network.ask_in_parts(
            self,
            bookie,
            lambda reply: bookie.add(entries, reply, recovery=True, key=self._key),
            answered,
            kind="add",
            entry=min(entries),
        )
        self.later(self.world.plan.patience, lambda: answered(Outcome.TIMEOUT) if left else None)

    def _choose(self, core: Recovery, command: ChooseReplacements) -> None:
        chosen = self.world.replacements(command.ensemble, command.failed, command.avoid)
        self.obey(core.on_replacements(chosen, self.now))

    def _read_length(self, entry_id: int) -> None:
        core = self.core

        def done(entries: dict[int, Entry], failure: Failure | None) -> None:
            if failure is None:
                self.obey(core.on_length(entries[entry_id].length))
            else:
                self.obey(core.on_length_failed(failure))

        RangeReader(self, self.world.store.metadata, entry_id, entry_id, done)

    def _finish(self, command: FinishRecovery) -> None:
        core = self.core
        wanted = update.FinishRecovery(
            last_entry_id=command.last_entry_id,
            length=command.length,
            fragments=command.fragments,
        )

        def done(metadata: LedgerMetadata | None, _wrote: bool, error: LedgerError | None) -> None:
            if metadata is not None:
                self.obey(core.on_finished(metadata))
            else:
                self.obey(core.on_metadata_failed(_kind(error)))

        self.world.store.update(self, wanted, done)


def _kind(error: LedgerError | None) -> FailureKind:
    return FailureKind.METADATA if error is None else FailureKind.METADATA_CONFLICT
