"""The shell of the real writer core."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ledger_client.core.adds import Batch
from ledger_client.core.commands import (
    AddAnswer,
    ChangeEnsemble,
    CloseEnded,
    CloseLedger,
    Command,
    Confirm,
    FailAdds,
    FailureKind,
    ForceEnded,
    Outcome,
    Package,
    RefuseAdd,
    RetryLater,
    SendAdd,
    SendForce,
    SendLac,
)
from ledger_client.core.options import ChangeMode, StormLimits, WriterOptions
from ledger_client.core.writer import Writer
from metadata import update
from metadata.model import LedgerMetadata
from tests.simulation.inner.bookie import Entry, ModelBookie
from tests.simulation.inner.network import Client
from tests.simulation.plan import Plan
from wire.errors import FencedError, LedgerError
from wire.types import NO_ENTRY, BookieId

if TYPE_CHECKING:
    from tests.simulation.inner.world import World


def size_of(entry_id: int) -> int:
    return entry_id % 7 + 1


class WriterClient(Client):
    def __init__(self, world: World, name: str = "W") -> None:
        super().__init__(world, name)
        plan = world.plan
        self.core = Writer(
            world.store.metadata,
            WriterOptions(
                lac_idle_seconds=0.01 if plan.idle_lac else None,
                change_mode=_change_mode(plan),
                quorum_timeout_seconds=0.3 if plan.quorum_timeout else None,
                deferred_sync=plan.deferred_sync,
                queue_entries_max=4 if plan.short_queue else 100_000,
                storm=storm_of(plan),
            ),
        )
        self.entries: dict[int, Entry] = {}
        self.confirmed = NO_ENTRY
        self.forced = NO_ENTRY
        self.has_failed = False
        self._heard: list[AddAnswer] = []
        self._open: set[int] = set()
        self._open_copies: list[tuple[Batch, BookieId]] = []
        self._forces = 0
        self._force_ends: dict[int, int] = {}  # number to what was confirmed when it began
        self._tick_at: float | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether somebody waits for an add, though nothing stands in its way."""
        return not self.is_dead and not self.has_failed and not self.core.is_idle

    # ------------------------------------------------------------------ the caller

    def append(self, count: int) -> None:
        if self.core.is_full:
            self.later(0.02, partial(self.append, count))
            return
        first = self.core.last_pushed + 1
        ids = list(range(first, first + count))
        if self.world.plan.given_ids:
            self.world.chance.shuffle(ids)
            self.append_given(ids)
            if self.world.chance.random() < 0.2:  # one that is taken, and one that is none
                wrong = [ids[0], -1]
                self.obey(self.core.add_given(wrong, [1, 1], now=self.now))
        else:
            self._submit(ids)
            if count > 1 or not self._append_one(first):
                size = sum(map(size_of, ids))
                self.obey(self.core.add(count=count, size=size, now=self.now))

    def _append_one(self, entry_id: int) -> bool:
        """As the real shell: an entry by itself is sent in copies, unless something is amiss."""
        if self.world.plan.deferred_sync:
            return False
        batch = self.core.add_one(size=size_of(entry_id), now=self.now)
        if batch is None:
            return False
        entry = Entry(payload_of(entry_id), self.core.lac, self.core.length)
        self.entries[entry_id] = entry
        for slot in self.core.distribution.write_set(entry_id):
            self._send_copy(batch, self.core.ensemble[slot], entry)
        self._watch_clock()
        return True

    def _send_copy(self, batch: Batch, bookie_id: BookieId, entry: Entry) -> None:
        bookie = self.world.bookies[bookie_id]
        copy = (batch, bookie_id)
        self._open_copies.append(copy)
        self.world.tell(f"{self.name} sends a copy of {batch.first} to {bookie_id}")

        def answered(outcome: Outcome, _entry_ids: Sequence[int] | None = None) -> None:
            # An answer that comes twice is told twice: the core must see that for itself.
            if copy in self._open_copies:
                self._open_copies.remove(copy)
            elif outcome is not Outcome.OK:
                return
            self.world.tell(f"{self.name} hears {outcome.name} of {bookie_id} for {batch.first}")
            if outcome is Outcome.OK:
                self.obey(self.core.on_copy(batch, bookie_id))
            else:
                self.obey(self.core.on_copy_failed(batch, bookie_id, outcome, self.now))

        self.world.network.ask_in_parts(
            self,
            bookie,
            lambda reply: bookie.add({batch.first: entry}, reply, deferred=False),
            answered,
            kind="add",
            entry=batch.first,
        )
        self.later(
            self.world.plan.patience,
            lambda: answered(Outcome.TIMEOUT) if copy in self._open_copies else None,
        )

    def append_given(self, ids: list[int]) -> None:
        self._submit(ids)
        self.obey(self.core.add_given(ids, [size_of(e) for e in ids], now=self.now))

    def _submit(self, ids: list[int]) -> None:
        for entry_id in ids:
            self.world.history.emit("submitted", entry_id, payload_of(entry_id))
        self.world.tell(f"{self.name} is given entries {ids}")

    def force(self) -> None:
        self._forces += 1
        self.world.tell(f"{self.name} forces up to {self.confirmed}")
        self._force_ends[self._forces] = self.confirmed
        self.obey(self.core.force(self._forces))

    def close(self) -> None:
        self.world.tell(f"{self.name} closes")
        self.obey(self.core.close())

    # ------------------------------------------------------------------ commands

    def obey(self, commands: Sequence[Command]) -> None:
        was_changing = self._is_changing
        for command in commands:
            match command:
                case Package(first, last, lac, length):
                    for entry_id in range(first, last + 1):
                        length += size_of(entry_id)
                        self.entries[entry_id] = Entry(payload_of(entry_id), lac, length)
                case SendAdd():
                    self._send(command)
                case Confirm(through):
                    self.world.tell(f"{self.name} confirms up to {through}")
                    first, self.confirmed = self.confirmed + 1, through
                    self.world.history.emit("acked", first, through)
                case FailAdds(failure):
                    self.world.tell(f"{self.name} fails: {failure.message}")
                    self.has_failed = True
                    self.world.history.emit("writer_failed")
                case ChangeEnsemble():
                    if not was_changing:
                        self.world.history.emit("change_started", self.core.lac)
                        was_changing = True
                    self.later(command.delay_seconds, partial(self._change, command))
                case CloseLedger():
                    self._close(command)
                case RetryLater(seconds):
                    self.later(seconds, lambda: self.obey(self.core.on_retry()))
                case SendLac(_, bookie_id, lac):
                    bookie = self.world.bookies[bookie_id]
                    self.world.network.ask(
                        self,
                        bookie,
                        partial(_write_lac, bookie, lac),
                        lambda *_: None,
                        kind="tell",
                        entry=lac,
                    )
                case SendForce():
                    self._send_force(command)
                case ForceEnded(force_id, failure):
                    through = self._force_ends.pop(force_id)
                    if failure is None:
                        self.forced = max(self.forced, through)
                        self.world.history.emit("forced", through)
                case RefuseAdd() | CloseEnded():
                    pass
                case _:
                    raise AssertionError(command)
        if was_changing and not self._is_changing:
            self.world.history.emit("change_ended", self.core.lac)
        self._watch_clock()

    @property
    def _is_changing(self) -> bool:
        return self.core._change is not None

    def _watch_clock(self) -> None:
        deadline = self.core.deadline()
        if deadline is not None and (self._tick_at is None or self._tick_at > deadline):
            self._tick_at = deadline
            # Never at the same moment again: with a skewed clock rounding may fall short of it.
            self.later(max(0.0001, deadline - self.now), self._tick)

    def _tick(self) -> None:
        self._tick_at = None
        self.obey(self.core.tick(self.now))

    def _send(self, send: SendAdd) -> None:
        held = self.core.distribution.entries_of(slot=send.slot, first=send.first, last=send.last)
        entries = {entry_id: self.entries[entry_id] for entry_id in held}
        bookie = self.world.bookies[send.bookie_id]
        deferred = self.world.plan.deferred_sync
        left = set(entries)
        self._open.add(send.request_id)
        self.world.tell(f"{self.name} sends {sorted(left)} to {send.bookie_id}")

        def answered(outcome: Outcome, entry_ids: Sequence[int] | None = None) -> None:
            if not left and outcome is not Outcome.OK:
                return
            # An answer that comes twice is told twice: the core must see that for itself.
            if outcome is Outcome.OK and entry_ids is not None:
                left.difference_update(entry_ids)
            else:
                left.clear()
            if not left:
                self._open.discard(send.request_id)
            self.world.tell(f"{self.name} hears {outcome.name} {entry_ids} of {send.bookie_id}")
            self._hear(AddAnswer(send.request_id, outcome, entry_ids))

        network = self.world.network
        network.ask_in_parts(
            self,
            bookie,
            lambda reply: bookie.add(entries, reply, deferred=deferred),
            answered,
            kind="add",
            entry=min(entries),
        )
        self.later(self.world.plan.patience, lambda: answered(Outcome.TIMEOUT) if left else None)

    def leave(self) -> None:
        """The client that this handle belongs to is closed: every request ends with that."""
        self.world.tell(f"the client of {self.name} is closed")
        for request_id in sorted(self._open):
            self._hear(AddAnswer(request_id, Outcome.CLIENT_CLOSED))
        for batch, bookie_id in self._open_copies[:]:
            closed = Outcome.CLIENT_CLOSED
            self.obey(self.core.on_copy_failed(batch, bookie_id, closed, self.now))
        self._open_copies.clear()

    def _hear(self, answer: AddAnswer) -> None:
        """One receive buffer may hold the answers of several requests."""
        if not self.world.plan.grouped:
            self.obey(self.core.on_answers([answer], self.now))
            return
        self._heard.append(answer)
        if len(self._heard) == 1:
            self.later(0.002, self._take_heard)

    def _take_heard(self) -> None:
        heard, self._heard = self._heard, []
        self.obey(self.core.on_answers(heard, self.now))

    def _send_force(self, command: SendForce) -> None:
        bookie = self.world.bookies[command.bookie_id]
        self.world.network.ask(
            self,
            bookie,
            bookie.force,
            lambda outcome, *_: self.obey(self.core.on_force_answer(command.request_id, outcome)),
            kind="force",
        )

    def on_connection_lost(self, bookie_id: BookieId) -> None:
        if not self.is_dead:
            self.obey(self.core.on_connection_lost(bookie_id))

    def _change(self, command: ChangeEnsemble) -> None:
        chosen = self.world.replacements(self.core.ensemble, command.failed, command.avoid)
        self.world.tell(f"{self.name} replaces {dict(command.failed)} by {chosen}")
        if not chosen:
            self.obey(self.core.on_change_failed(FailureKind.NOT_ENOUGH_BOOKIES))
            return
        wanted = update.ChangeEnsemble(
            first_entry_id=command.first_entry_id, failed=command.failed, replacements=chosen
        )

        def done(metadata: LedgerMetadata | None, _wrote: bool, error: LedgerError | None) -> None:
            if metadata is not None:
                self.obey(self.core.on_ensemble_changed(metadata, self.now))
            else:
                self.obey(self.core.on_change_failed(_kind(error)))

        self.world.store.update(self, wanted, done)

    def _close(self, command: CloseLedger) -> None:
        wanted = update.Close(last_entry_id=command.last_entry_id, length=command.length)

        def done(metadata: LedgerMetadata | None, _wrote: bool, error: LedgerError | None) -> None:
            if metadata is not None:
                self.world.tell(f"{self.name} closed at {metadata.last_entry_id}")
                self.world.history.emit("opened", self.name, metadata)
                self.obey(self.core.on_closed())
            else:
                self.obey(self.core.on_close_failed(_kind(error)))

        self.world.store.update(self, wanted, done)


def storm_of(plan: Plan) -> StormLimits:
    if not plan.short_storms:
        return StormLimits()
    return StormLimits(window_seconds=0.3, rounds_free=1, rounds_max=3, first_seconds=0.01)


def _change_mode(plan: Plan) -> ChangeMode:
    if plan.no_change:
        return ChangeMode.DISABLED
    return ChangeMode.DELAYED if plan.delayed_change else ChangeMode.IMMEDIATE


def payload_of(entry_id: int) -> str:
    return f"p{entry_id}"


def _write_lac(bookie: ModelBookie, lac: int, _reply: object) -> None:
    bookie.write_lac(lac)


def _kind(error: LedgerError | None) -> FailureKind:
    if error is None:
        return FailureKind.METADATA
    if isinstance(error, FencedError):
        return FailureKind.FENCED
    if isinstance(error, update.LedgerClosedError):
        return FailureKind.LEDGER_CLOSED
    return FailureKind.METADATA_CONFLICT
