"""The half of a writer that no caller sees: batches to bookies, answers to callers.

The handle is called when something has happened, and takes whatever is waiting then, so that
batches grow with the load. Writes of the record happen in tasks of their own and come back as
events. Copies of single entries are heard of at once, from inside a connection.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count

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
from ledger_client.intake import Batch, Intake
from ledger_client.record import Event, LedgerRecord
from ledger_client.requests import Answer
from ledger_client.rounds import Desk
from ledger_client.sender import Sender
from metadata.update import VersionedLedger
from wire.types import BookieId


class Force:
    """A caller that waits for a force."""

    __slots__ = ("done", "failure")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.failure: Failure | None = None

    def end(self, failure: Failure | None) -> None:
        self.failure = failure
        self.done.set()


class Writing:
    """Drives the core of one ledger's writer."""

    def __init__(
        self,
        environment: Environment,
        ledger: VersionedLedger,
        access: Access,
        options: WriterOptions | None = None,
        *,
        given_entry_ids: bool = False,
    ) -> None:
        self.id = access.ledger_id
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
        self._forces: dict[int, Force] = {}
        self._is_closing = False
        self._ended: trio.Event | None = None  # made by the first who waits for it
        self._end: CloseEnded | None = None
        if self._is_deferred:
            environment.pool.listen(self)

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
        if self._end is not None:
            return
        commands = self._core.on_copy(entry, bookie_id)
        if self._mail.has_answers:
            self._mail.wake()  # with this one, those that were kept back may fill a quorum
        if not commands:
            return
        self._obey(commands)
        if self._intake or self._is_closing:
            self._mail.wake()
        else:
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
