"""Writing one ledger: callers' payloads into batches, batches to bookies, answers to callers.

Callers put payloads into the batch that is being filled and wait for its end. The handle is called
when something has happened, and takes whatever is waiting then, so that batches grow with the load;
a payload that meets nothing else leaves at once, and nobody waits for company. Writes of the record
happen in tasks of their own and come back as events.

A caller that is cancelled leaves its payload behind: it may or may not be written, and nothing else
changes for the handle. A `close` or `force` that is cancelled goes on without its caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Self

import trio

from ledger_client.core.adds import Batch as CoreBatch
from ledger_client.core.commands import (
    AddAnswer,
    ChangeEnsemble,
    CloseEnded,
    CloseLedger,
    Command,
    Confirm,
    FailAdds,
    Failure,
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
from ledger_client.core.options import WriterOptions
from ledger_client.core.writer import Writer
from ledger_client.environment import Access, Environment
from ledger_client.errors import (
    DuplicateEntryIdError,
    EntryTooLargeError,
    InvalidEntryIdError,
    error_of,
)
from ledger_client.intake import NO_PAYLOADS, Batch, Intake, Part, Place, joined
from ledger_client.record import Event, LedgerRecord
from ledger_client.requests import Answer
from ledger_client.rounds import Desk
from ledger_client.sender import Sender
from metadata.model import LedgerMetadata
from metadata.update import VersionedLedger
from wire.errors import LedgerError
from wire.types import ID_MAX, NO_ENTRY, BookieId


class _Force:
    """A caller that waits for a force."""

    __slots__ = ("done", "failure")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.failure: Failure | None = None

    def end(self, failure: Failure | None) -> None:
        self.failure = failure
        self.done.set()


class LedgerWriter:
    """A ledger that was just created, to be filled. Made by `LedgerClient.create`."""

    def __init__(
        self,
        environment: Environment,
        ledger: VersionedLedger,
        access: Access,
        options: WriterOptions | None = None,
        *,
        given_entry_ids: bool = False,
    ) -> None:
        self.id = self.ledger_id = access.ledger_id
        self._environment = environment
        spread = None
        if options is not None and options.acks_across_domains:
            write_quorum = ledger.metadata.write_quorum
            spread = partial(environment.policy.is_spread, write_quorum=write_quorum)
        self._core = Writer(
            ledger.metadata, options, request_ids=environment.request_ids, spread=spread
        )
        self._has_given_ids = given_entry_ids
        self._is_deferred = self._core.options.deferred_sync
        self._sender = Sender(
            environment, access, self._core.distribution, deferred_sync=self._is_deferred
        )
        self._record = LedgerRecord(environment, ledger, self._core, self._post)
        self._mail = Desk(environment.rounds, self._work)
        self._events: list[Event] = []
        self._intake = Intake()  # not handed to the core yet
        self._is_waiting_for_room = False
        self._told_held_from: int | None = None
        self._taken: Batch | None = None  # the one that is being handed over
        self._sent: dict[int, Batch] = {}  # by its first entry, until confirmed
        self._unconfirmed = 0  # the first entry of the next batch to be confirmed
        self._force_ids = count(1)
        self._forces: dict[int, _Force] = {}
        self._is_closing = False
        self._ended: trio.Event | None = None  # made by the first who waits for it
        self._end: CloseEnded | None = None
        if self._is_deferred:
            environment.pool.listen(self)

    # ------------------------------------------------------------------ for callers

    @property
    def last_confirmed(self) -> int:
        """The last entry that is written for good; -1 before there is one.

        With deferred sync that is the last one that a force, or the close, has covered.
        """
        return self._core.lac

    @property
    def last_appended(self) -> int:
        """The last entry whose append has ended; above `last_confirmed` under deferred sync."""
        return self._core.confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as this handle knows it."""
        return self._record.metadata

    async def append(self, payload: bytes, *, entry_id: int | None = None) -> int:
        """Write one entry; its id, once enough bookies have it on disk.

        `entry_id` is for ledgers made with `given_entry_ids`, and wanted there: the append ends
        when all lower ids are written, too.
        """
        self._check(payload, entry_id)
        while not self._may_put(entry_id):
            await self._intake.wait_room()
        # As `put`, in one frame: thousands of tasks may be waiting here.
        batch, index = self._put(payload, entry_id)
        await batch.wait_over()
        if batch.failure is not None:
            raise error_of(batch.failure)
        return batch.first + index

    def put(self, payload: bytes, *, entry_id: int | None = None) -> Callable[[], Awaitable[int]]:
        """Append without waiting, also for room: await what this returns to get the id.

        For callers that keep an order and a bound of their own; all others want `append`.
        """
        self._check(payload, entry_id)
        return Place(*self._put(payload, entry_id))

    def fills_gap(self, entry_id: int) -> bool:
        """Whether entries with higher ids wait for lower ones, as this one is."""
        held_from = self._core.held_from
        return held_from is not None and entry_id < held_from

    async def append_many(
        self, payloads: Iterable[bytes], *, entry_ids: Iterable[int] | None = None
    ) -> Sequence[int]:
        """Write many entries in this order, as fast as bookies take them; all their ids.

        Ids are consecutive unless other tasks append to the same handle meanwhile. After an error
        any number of them, from the first on, may be written. `entry_ids`, one per payload, is for
        ledgers made with `given_entry_ids`.
        """
        if entry_ids is not None or self._has_given_ids:
            return await self._append_given(payloads, entry_ids or ())
        source = iter(payloads)
        parts: deque[Part] = deque()
        found: list[range] = []
        while True:
            self._refuse_if_over()
            try:
                large = self._intake.fill(source, self._sender.payload_bytes_max, parts)
            finally:
                self._mail.wake()
            if large is not None:
                self._check(large, None)
            if self._intake.has_room:
                break
            await self._intake.wait_room()
            while parts and parts[0][0].is_over:
                batch, index, length = parts.popleft()
                found.append(await batch.wait(index, length))
        while parts:
            batch, index, length = parts.popleft()
            found.append(await batch.wait(index, length))
        return joined(found)

    async def _append_given(
        self, payloads: Iterable[bytes], entry_ids: Iterable[int]
    ) -> Sequence[int]:
        waits: list[Callable[[], Awaitable[int]]] = []
        given = iter(entry_ids)
        for payload in payloads:
            entry_id = next(given, None)
            self._check(payload, entry_id)
            while not self._may_put(entry_id):
                await self._intake.wait_room()
            waits.append(self.put(payload, entry_id=entry_id))
        found = [await wait() for wait in waits]
        return joined([range(entry_id, entry_id + 1) for entry_id in found])

    async def force(self) -> int:
        """Have every append that has ended so far synced by every bookie; the last such entry.

        For ledgers made with `deferred_sync`; anywhere else nothing is left to be done. After an
        error the entries above `last_confirmed` may be lost by a power cut, or are lost already.
        """
        if not self._is_deferred:
            await trio.lowlevel.checkpoint()
            return self.last_confirmed
        if self._end is not None:
            if self._end.failure is not None:
                raise error_of(self._end.failure)
            return self.last_confirmed
        force_id, force = next(self._force_ids), _Force()
        self._forces[force_id] = force
        self._post(partial(self._core.force, force_id))
        try:
            await force.done.wait()
        finally:
            self._forces.pop(force_id, None)
        if force.failure is not None:
            raise error_of(force.failure)
        return self.last_confirmed

    async def close(self) -> None:
        """Wait for everything appended so far, then record the end of the ledger. Idempotent.

        Entries behind a gap in caller-chosen ids fail. Unsynced ones are forced first, and if that
        fails the ledger stays open, for a recovery to find what survived.
        """
        self._is_closing = True
        self._mail.wake()
        if self._ended is None:
            self._ended = trio.Event()
        if self._end is not None:
            self._ended.set()
        await self._ended.wait()
        assert self._end is not None
        if self._end.failure is not None:
            raise error_of(self._end.failure)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        # The caller has an error already, which may be this handle's own; one is enough.
        try:
            await self.close()
        except LedgerError:
            return

    # ------------------------------------------------------------------ payloads

    def _check(self, payload: bytes, entry_id: int | None) -> None:
        if len(payload) > self._sender.payload_bytes_max:
            raise self._about(
                EntryTooLargeError(
                    f"ledger {self.id}: a payload of {len(payload)} bytes, at most "
                    f"{self._sender.payload_bytes_max} fit into a frame: cut it"
                ),
                entry_id,
            )
        if (entry_id is None) == self._has_given_ids:
            what = "every append must name its entry id" if self._has_given_ids else (
                "its entries are numbered in order; make it with given_entry_ids to choose ids"
            )  # fmt: skip
            raise self._about(InvalidEntryIdError(f"ledger {self.id}: {what}"), entry_id)
        if entry_id is not None and not 0 <= entry_id <= ID_MAX:
            what = f"ledger {self.id}: entry id {entry_id} is outside 0..2^63-1"
            raise self._about(InvalidEntryIdError(what), entry_id)

    def _about(self, error: LedgerError, entry_id: int | None) -> LedgerError:
        error.ledger_id, error.entry_id = self.id, entry_id
        return error

    def _may_put(self, entry_id: int | None) -> bool:
        """Whether a payload is taken, or refused, at once."""
        if self._intake.has_room or self._core.failure is not None:
            return True
        # It may not wait for room, which those behind the gap will not make.
        return entry_id is not None and self.fills_gap(entry_id)

    def _put(self, payload: bytes, entry_id: int | None) -> tuple[Batch, int]:
        self._refuse_if_over()
        if entry_id is not None and (self._core.is_taken(entry_id) or self._intake.holds(entry_id)):
            what = f"ledger {self.id}: entry {entry_id} was added before: choose another id"
            raise self._about(DuplicateEntryIdError(what), entry_id)
        if self._sent or self._intake or self._events:
            place = self._intake.put(bytes(payload), entry_id)
            self._mail.wake()
            return place
        # Nothing is on its way that it could wait for in company: it leaves at once.
        now = trio.current_time()
        if entry_id is None and self._sender.has_room(self._core.ensemble):
            batch = Batch(NO_ENTRY, NO_PAYLOADS)
            if self._add_one(batch, bytes(payload), now):
                return batch, 0
        place = self._intake.put(bytes(payload), entry_id)
        self._take_payloads(now)
        self._set_alarm()
        return place

    def _refuse_if_over(self) -> None:
        failure = self._core.failure
        if failure is None and self._is_closing:
            what = f"ledger {self.id}: this handle is being closed"
            failure = Failure(FailureKind.LEDGER_CLOSED, what, ledger_id=self.id)
        if failure is not None:
            raise error_of(failure)

    # ------------------------------------------------------------------ what happened

    def _work(self) -> None:
        """Act on all that has happened since the last time."""
        answers = self._mail.collect()
        if self._end is not None:
            return
        now = trio.current_time()
        if answers:
            self._obey(self._core.on_answers(map(_add_answer, answers), now))
        while self._events:
            self._obey(self._events.pop(0)())
        self._take_payloads(now)  # before an alarm is heard: entries carry the LAC that is due
        if self._mail.has_rung():
            self._obey(self._core.tick(now))
        if self._has_given_ids and self._core.held_from != self._told_held_from:
            # Somebody who waits for room may be the one whom all that is held waits for.
            self._told_held_from = self._core.held_from
            self._intake.tell_all()
        # Behind a gap that is not filled any more, the core is full for ever.
        is_handed_over = not self._intake or self._core.is_full
        is_done = self._is_closing and is_handed_over and self._core.is_idle
        if is_done or self._core.failure is not None:
            self._obey(self._core.close())
        self._set_alarm()

    def _set_alarm(self) -> None:
        deadline = self._core.deadline()
        if deadline is not None:
            self._environment.alarms.wake_at(self._mail, deadline)

    def on_client_closed(self) -> None:
        what = f"ledger {self.id}: the client was closed"
        failure = Failure(FailureKind.CLIENT_CLOSED, what, ledger_id=self.id)
        self._fail_all(failure)
        if self._end is None:
            self._finish(CloseEnded(self._core.lac, 0, failure))

    def on_connection_lost(self, bookie_id: BookieId) -> None:
        """Told by the pool while the connection ends, before anything is sent on the next one."""
        self._post(partial(self._core.on_connection_lost, bookie_id))

    def _take_payloads(self, now: float) -> None:
        """Hand over what is waiting, as far as ledger and connections have room for it."""
        if self._core.failure is not None:
            self._fail_all(self._core.failure)
            return
        while self._intake:
            if not self._sender.has_room(self._core.ensemble):
                self._wait_for_connections()
                return
            batch = self._next_batch()
            if batch is None:
                break
            self._taken = batch
            if self._has_given_ids:
                entry_ids = range(batch.first, batch.next_id)
                sizes = list(map(len, batch.payloads))
                self._obey(self._core.add_given(entry_ids, sizes, now=now))
            elif len(batch.payloads) > 1 or not self._add_one(batch, batch.payloads[0], now):
                self._obey(self._core.add(count=len(batch.payloads), size=batch.size, now=now))
        self._intake.tell_room()

    def _add_one(self, batch: Batch, payload: bytes, now: float) -> bool:
        """Send the only payload of a batch in copies, if nothing is in the way of that."""
        if self._is_deferred:
            return False
        core = self._core
        entry = core.add_one(size=len(payload), now=now)
        if entry is None:
            return False
        self._sent[entry.first] = batch
        self._sender.send_copies(batch, payload, entry, self, lac=core.lac, length=core.length)
        if core.options.quorum_timeout_seconds is not None:
            self._set_alarm()
        return True

    def _next_batch(self) -> Batch | None:
        if not self._core.is_full:
            return self._intake.take()
        held_from = self._core.held_from
        if not self._has_given_ids or held_from is None:
            return None
        return self._intake.take_below(held_from)

    def _wait_for_connections(self) -> None:
        if self._is_waiting_for_room:
            return
        self._is_waiting_for_room = True

        async def wait() -> None:
            await self._sender.wait_room(self._core.ensemble)
            self._is_waiting_for_room = False
            self._mail.wake()

        self._environment.nursery.start_soon(wait)

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Package():
                    self._package(command)
                case SendAdd():
                    batch = self._sent[command.first]
                    self._sender.send_adds(command, batch, self._take_add_answers)
                case Confirm(through):
                    while self._unconfirmed <= through:
                        batch = self._sent.pop(self._unconfirmed)
                        self._unconfirmed = batch.last + 1
                        batch.end()
                case FailAdds(failure):
                    self._fail_all(failure)
                case RefuseAdd(failure):
                    assert self._taken is not None
                    self._taken.end(failure)
                case SendLac():
                    self._sender.send_lac(command)
                case SendForce():
                    self._sender.send_force(command, self._take_force_answers)
                case ForceEnded(force_id, failure):
                    if force_id in self._forces:
                        self._forces[force_id].end(failure)
                case ChangeEnsemble() | CloseLedger():
                    self._record.obey(command)
                case RetryLater(delay_seconds):
                    self._environment.nursery.start_soon(self._retry, delay_seconds)
                case CloseEnded():
                    self._finish(command)
                case _:
                    raise AssertionError(command)

    def _package(self, package: Package) -> None:
        batch = self._taken
        assert batch is not None
        self._sender.package(batch, package, self._core.ensemble)
        self._sent[batch.first] = batch

    def _take_add_answers(self, answers: list[Answer]) -> None:
        """Look at them when there is something to do: a quorum may be full, or a bookie failed.

        The rest, and what comes behind the quorum, waits for the next look.
        """
        is_full = self._mail.keep(answers) >= self._core.answers_wanted
        if is_full or any(answer.outcome is not Outcome.OK for answer in answers):
            self._mail.wake()

    def on_copy(self, entry: CoreBatch, bookie_id: BookieId) -> None:
        """Called from inside a connection: callers are told at once, all else waits."""
        commands = self._core.on_copy(entry, bookie_id)
        self._obey(commands)
        if self._mail.has_answers:
            self._mail.wake()  # with this one, those that were kept back may fill a quorum
        elif commands and (self._intake or self._is_closing):
            self._mail.wake()
        elif commands:
            self._set_alarm()

    def on_copy_failed(self, entry: CoreBatch, bookie_id: BookieId, outcome: Outcome) -> None:
        now = trio.current_time()
        self._post(partial(self._core.on_copy_failed, entry, bookie_id, outcome, now))

    def _take_force_answers(self, answers: list[Answer]) -> None:
        for request_id, outcome, _ in answers:
            self._post(partial(self._core.on_force_answer, request_id, outcome))

    def _fail_all(self, failure: Failure) -> None:
        failure = self._environment.explained(failure)
        for batch in self._sent.values():
            batch.end(failure)
        self._sent.clear()
        self._intake.fail(failure)

    def _finish(self, end: CloseEnded) -> None:
        if end.failure is not None:
            end = replace(end, failure=self._environment.explained(end.failure))
        self._end = end
        if self._ended is not None:
            self._ended.set()
        for force in self._forces.values():
            force.end(end.failure)
        self._environment.handles.discard(self)
        self._environment.pool.unlisten(self)
        self._record.leave()
        self._mail.leave()

    def _post(self, event: Event) -> None:
        """Act soon on something that happened elsewhere."""
        self._events.append(event)
        self._mail.wake()

    async def _retry(self, delay_seconds: float) -> None:
        await trio.sleep(delay_seconds)
        self._post(self._core.on_retry)


def _add_answer(answer: Answer) -> AddAnswer:
    request_id, outcome, entry_ids = answer
    return AddAnswer(request_id, outcome, entry_ids)  # type: ignore[arg-type]
