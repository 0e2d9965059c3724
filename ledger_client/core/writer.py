"""The writer of one ledger: entry ids, sendings, confirmations, failures, closing.

One task owns a writer. Every answer, timeout, call and metadata result reaches it as a method
call, and nothing waits inside, so the LAC cannot move between being read and being acted upon.

How a shell drives it. Payloads that wait when it is ready become one batch: `add`, build what
`Package` says, obey the sends. Answers of one receive buffer go to `on_answers` together. One
payload by itself has a shorter way: `add_one` and, for each of its copies, `on_copy`. A
`ChangeEnsemble` ends in `on_ensemble_changed` or `on_change_failed`, a `CloseLedger` in
`on_closed` or `on_close_failed`, a `RetryLater` in `on_retry`. `deadline` says when to `tick`.
Before the next add the shell waits while `is_full`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count as counter

from ledger_client.core.adds import AddQueue, Batch, FailedSending, Spread
from ledger_client.core.change import CHANGE_FAILED, CLOSE_FAILED, Change, Storm, judge
from ledger_client.core.closing import Closing
from ledger_client.core.commands import (
    AddAnswer,
    ChangeEnsemble,
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
    SendLac,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.force import Force, Forces
from ledger_client.core.given_ids import Run, cut
from ledger_client.core.lac import LacAnnouncer
from ledger_client.core.options import ChangeMode, WriterOptions
from metadata.model import LedgerMetadata, LedgerState
from wire.types import ID_MAX, NO_ENTRY, BookieId

_FATAL: Mapping[Outcome, FailureKind] = {
    Outcome.FENCED: FailureKind.FENCED,
    Outcome.UNAUTHORIZED: FailureKind.UNAUTHORIZED,
    Outcome.ILLEGAL_OP: FailureKind.ILLEGAL_OP,
}
_MAYBE = "adds that were not confirmed may or may not be in the ledger"
_CLOSING = -1  # the number of the force that a close begins with


class Writer:
    """Decides for a ledger that was created a moment ago. Nothing reopens a ledger for writing."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        options: WriterOptions | None = None,
        *,
        request_ids: Iterator[int] | None = None,
        spread: Spread | None = None,
    ) -> None:
        assert metadata.state is LedgerState.OPEN
        assert metadata.last_fragment.first_entry_id == 0
        self.options = options or WriterOptions()
        self.distribution = Distribution.of(metadata)
        self.lac = NO_ENTRY
        #: The highest entry confirmed to the caller; above the LAC only under deferred sync.
        self.confirmed = NO_ENTRY
        self.last_pushed = NO_ENTRY
        self.length = 0  # payload bytes of all entries handed out
        self.failure: Failure | None = None  # set once: no add is taken or confirmed any more
        self._ledger_id = metadata.ledger_id
        requests = counter(1) if request_ids is None else request_ids
        self._adds = AddQueue(self.distribution, metadata.last_fragment.ensemble, requests, spread)
        self._late: dict[int, BookieId] = {}  # failed after the quorum; handled by the next add
        self._change: Change | None = None
        self._is_change_out = False  # the store is being asked
        self._is_retrying = False
        self._storm = Storm(self.options.storm)
        self._forces = Forces(requests)
        self._closing = Closing()
        self._announcer = LacAnnouncer(self.options.lac_idle_seconds)
        self._confirmed_length = 0
        self._lac_length = 0

    # ------------------------------------------------------------------ what a shell asks

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return self._adds.ensemble

    @property
    def queued_bytes(self) -> int:
        return self._adds.bytes

    @property
    def is_full(self) -> bool:
        """Whether the caller must wait. Confirmations and failures make room."""
        return (
            self._adds.bytes >= self.options.queue_bytes_max
            or self._adds.entries >= self.options.queue_entries_max
        )

    @property
    def is_idle(self) -> bool:
        """Whether every add is confirmed or failed, or waits for an id that nobody has given."""
        held_from = self.held_from
        return held_from is None or held_from > self.confirmed + 1

    @property
    def answers_wanted(self) -> int:
        """How many good answers may be kept back before `on_answers` has to see them."""
        return self._adds.answers_wanted

    @property
    def held_from(self) -> int | None:
        """The lowest entry that is not confirmed; None if all are."""
        return self._adds.first

    def is_taken(self, entry_id: int) -> bool:
        """Whether an entry of this id was added. Not by the LAC: deferred sync makes it lag."""
        return entry_id <= self.confirmed or self._adds.holds(entry_id)

    def deadline(self) -> float | None:
        """When `tick` is wanted next."""
        if self.failure is not None:
            return None
        moment = self._announcer.deadline(self.lac)
        timeout = self.options.quorum_timeout_seconds
        if timeout is None or not self._adds:
            return moment
        overdue_at = self._adds.oldest_at() + timeout
        return overdue_at if moment is None else min(moment, overdue_at)

    # ------------------------------------------------------------------ adds

    def add(self, *, count: int, size: int, now: float) -> list[Command]:
        """Take `count` payloads of `size` bytes together, as the next entries of the ledger."""
        assert count > 0
        if self.last_pushed + count > ID_MAX:
            return [RefuseAdd(self._failure(FailureKind.BAD_ENTRY_ID, "no entry id is left"))]
        commands = self._begin_add(now)
        if self.failure is not None:
            return [*commands, RefuseAdd(self.failure)]
        first = self.last_pushed + 1
        return commands + self._push(first=first, last=first + count - 1, size=size, now=now)

    def add_one(self, *, size: int, now: float) -> Batch | None:
        """Take one payload as the next entry, if nothing is in the way of its copies.

        The shell builds the entry, with the LAC and the length of this moment, and sends it to
        every slot of its write set. None: nothing was taken, `add` knows what to do.
        """
        if (
            self.failure is not None
            or self._late
            or self._change is not None
            or self.last_pushed >= ID_MAX
        ):
            return None
        entry_id = self.last_pushed + 1
        self.last_pushed = entry_id
        self.length += size
        self._announcer.on_append(lac=self.lac, now=now)
        batch = Batch(entry_id, entry_id, size, now)
        self._adds.push_copies(batch)
        return batch

    def add_given(
        self, entry_ids: Sequence[int], sizes: Sequence[int], *, now: float
    ) -> list[Command]:
        """Take payloads whose ids the caller chose, in the caller's order.

        Ids that are taken, or no ids, are refused one by one; the others go on.
        """
        commands = self._begin_add(now)
        if self.failure is not None:
            return [*commands, RefuseAdd(self.failure, tuple(entry_ids))]
        for piece in cut(entry_ids, sizes, self.is_taken):
            if isinstance(piece, Run):
                commands += self._push(first=piece.first, last=piece.last, size=piece.size, now=now)
            elif piece.is_duplicate:
                what = f"entry {piece.entry_id} was added before: choose another id"
                failure = self._failure(FailureKind.DUPLICATE_ENTRY, what, entry_id=piece.entry_id)
                commands.append(RefuseAdd(failure, (piece.entry_id,)))
            else:
                what = f"entry id {piece.entry_id} is outside 0..2^63-1"
                failure = self._failure(FailureKind.BAD_ENTRY_ID, what, entry_id=piece.entry_id)
                commands.append(RefuseAdd(failure, (piece.entry_id,)))
        return commands

    def _begin_add(self, now: float) -> list[Command]:
        if self.failure is not None or not self._late or self._change is not None:
            return []
        return self._start_change(self._late, now)

    def _push(self, *, first: int, last: int, size: int, now: float) -> list[Command]:
        package = Package(first, last, self.lac, self.length)
        self.last_pushed = max(self.last_pushed, last)
        self.length += size
        self._announcer.on_append(lac=self.lac, now=now)
        batch = Batch(first, last, size, now)
        avoid = self._change.avoid if self._change is not None else ()
        return [package, *self._adds.push(batch, avoid=avoid)]

    # ------------------------------------------------------------------ answers

    def on_answers(self, answers: Iterable[AddAnswer], now: float) -> list[Command]:
        """Record what one receive buffer brought; confirm everything that is now due, once."""
        commands: list[Command] = []
        for answer in answers:
            failed = self._adds.take(answer)
            if failed is not None:
                commands += self._on_failed(failed, now)
        return commands + self._confirm_due()

    def on_copy(self, batch: Batch, bookie_id: BookieId) -> list[Command]:
        """A bookie acknowledged its copy of an entry that `add_one` took."""
        if not self._adds.take_copy(batch, bookie_id) or batch.is_confirmed:
            return []
        if batch.acknowledged.bit_count() < self.distribution.ack_quorum:
            return []
        return self._confirm_due()

    def on_copy_failed(
        self, batch: Batch, bookie_id: BookieId, outcome: Outcome, now: float
    ) -> list[Command]:
        """It did not. After the end of the handle that is of no interest any more."""
        failed = self._adds.fail_copy(batch, bookie_id, outcome)
        if failed is None or self.failure is not None:
            return []
        return self._on_failed(failed, now) + self._confirm_due()

    def _confirm_due(self) -> list[Command]:
        """Confirm in entry order, and only outside a change.

        The LAC promises that everything up to it is durable in the recorded ensemble. During a
        change neither half of that is sure, so nothing is popped and the LAC stands still.
        """
        if self._change is not None:
            return []
        due = self._adds.pop_due(after=self.confirmed)
        if not due:
            return []
        self.confirmed = due[-1].last
        for batch in due:
            self._confirmed_length += batch.size
        if not self.options.deferred_sync:
            self.lac, self._lac_length = self.confirmed, self._confirmed_length
        return [Confirm(self.confirmed)]

    def _on_failed(self, failed: FailedSending, now: float) -> list[Command]:
        batch, outcome = failed.batch, failed.outcome
        what = f"{failed.bookie_id} answered {outcome.name} to entries {batch.first}..{batch.last}"
        if outcome in _FATAL:
            return self._fail(_FATAL[outcome], what, failed=failed)
        if outcome is Outcome.CLIENT_CLOSED:
            return self._fail(FailureKind.CLIENT_CLOSED, "the client was closed", close=False)
        if self.options.deferred_sync:
            # Confirmed entries have left the queue and may exist on their old bookies only, not
            # even synced there: no other bookie can take over.
            return self._fail(FailureKind.BOOKIE_FAILED, what, failed=failed)
        if self.options.change_mode is ChangeMode.DISABLED:
            is_needed = not batch.is_confirmed and not self._adds.is_achieved(batch)
            return self._retry_later(now) if is_needed else []
        verdict = judge(failed, self.options.change_mode, self._adds, self.distribution)
        if self._change is not None:
            self._change.add(verdict.slots)
            return []
        if verdict.is_late:
            self._late |= verdict.slots
            return []
        return self._start_change(verdict.slots, now) if verdict.slots else []

    # ------------------------------------------------------------------ ensemble change

    def _start_change(self, failed: Mapping[int, BookieId], now: float) -> list[Command]:
        self._change = Change()
        self._change.add(self._late)
        self._change.add(failed)
        self._late = {}
        return self._next_round(self._change, now)

    def _next_round(self, change: Change, now: float) -> list[Command]:
        """Replace what failed; when nothing is left to replace, resend, then resume."""
        if not change.start_round(self.ensemble):
            self._change = None
            return [*self._adds.send_missing(), *self._confirm_due()]
        delay_seconds = self._storm.next_round(now, change.failed.values())
        if delay_seconds is None:
            return self._fail(
                FailureKind.TOO_MANY_CHANGES,
                f"{self.options.storm.rounds_max} ensemble changes within "
                f"{self.options.storm.window_seconds:g} s did not help",
            )
        self._is_change_out = True
        return [
            ChangeEnsemble(
                first_entry_id=self.lac + 1,
                failed=dict(change.failed),
                avoid=self._storm.failed,
                delay_seconds=delay_seconds,
            )
        ]

    def on_ensemble_changed(self, metadata: LedgerMetadata, now: float) -> list[Command]:
        """The record as it is after the change, whether this call or an earlier one wrote it."""
        self._is_change_out = False
        change = self._change
        if change is None:  # the handle failed or was closed meanwhile
            return self._closing.on_change_over()
        if metadata.state is LedgerState.CLOSED:
            return self.on_change_failed(FailureKind.LEDGER_CLOSED)
        if metadata.state is LedgerState.IN_RECOVERY:
            return self.on_change_failed(FailureKind.FENCED)
        if metadata.last_fragment.first_entry_id > self.lac + 1:
            return self.on_change_failed(FailureKind.METADATA_CONFLICT)
        self._adds.replace(metadata.last_fragment.ensemble)
        return self._next_round(change, now)

    def on_change_failed(self, kind: FailureKind) -> list[Command]:
        """The change did not come about.

        A ledger under recovery, or closed, is somebody else's now and is left alone. Anything else
        still ends this handle, and the ledger is closed at the LAC if it can be.
        """
        self._is_change_out = False
        if self._change is None:
            return self._closing.on_change_over()
        ours = kind in (FailureKind.NOT_ENOUGH_BOOKIES, FailureKind.METADATA)
        return self._fail(kind, CHANGE_FAILED[kind], close=ours)

    def _retry_later(self, now: float) -> list[Command]:
        """Nothing is recorded by sending again, so patience needs no bound but the timeout's."""
        if self._is_retrying:
            return []
        self._is_retrying = True
        delay_seconds = self._storm.next_round(now)
        return [
            RetryLater(self.options.storm.seconds_max if delay_seconds is None else delay_seconds)
        ]

    def on_retry(self) -> list[Command]:
        self._is_retrying = False
        return [] if self.failure is not None else list(self._adds.send_missing())

    # ------------------------------------------------------------------ time

    def tick(self, now: float) -> list[Command]:
        """Let time act: the quorum timeout, and the LAC of an idle writer."""
        if self.failure is not None:
            return []
        timeout = self.options.quorum_timeout_seconds
        if timeout is not None:
            batch = self._adds.overdue(now - timeout)
            if batch is not None:
                return self._fail(
                    FailureKind.QUORUM_TIMEOUT,
                    f"entries {batch.first}..{batch.last} had no ack quorum after {timeout:g} s",
                )
        if not self._announcer.is_due(self.lac, now):
            return []
        slots = self.distribution.write_set(self.lac)
        return [SendLac(slot, self.ensemble[slot], self.lac) for slot in slots]

    # ------------------------------------------------------------------ force

    def force(self, force_id: int) -> list[Command]:
        """Make everything confirmed so far durable on every bookie of the ensemble."""
        assert force_id != _CLOSING
        if self.failure is not None:
            return [ForceEnded(force_id, self.failure)]
        if self.confirmed <= self.lac:
            return [ForceEnded(force_id)]
        return self._start_force(force_id)

    def _start_force(self, force_id: int) -> list[Command]:
        return self._forces.start(
            force_id, self.ensemble, through=self.confirmed, length=self._confirmed_length
        )

    def on_force_answer(self, request_id: int, outcome: Outcome) -> list[Command]:
        ended = self._forces.take(request_id, outcome)
        if ended is None:
            return []
        force, succeeded = ended
        if not succeeded:
            return self._force_failed([force], f"a bookie answered {outcome.name} to a force")
        if force.through > self.lac:
            self.lac, self._lac_length = force.through, force.length
        if force.force_id == _CLOSING:
            return self._record_end()
        return [ForceEnded(force.force_id)]

    def _force_failed(self, forces: Iterable[Force], what: str) -> list[Command]:
        """A close that cannot force leaves the ledger open: recovery may still find the entries."""
        failure = self._failure(
            FailureKind.BOOKIE_FAILED, f"{what}: entries above {self.lac} may be lost"
        )
        commands: list[Command] = []
        for force in forces:
            if force.force_id == _CLOSING:
                commands += self._closing.end(failure)
            else:
                commands.append(ForceEnded(force.force_id, failure))
        return commands

    def on_connection_lost(self, bookie_id: BookieId) -> list[Command]:
        """A connection ended. Tell this before anything is sent on the next one.

        A bookie that restarted obeys a force for entries that it lost, so acknowledgements that
        were never forced are void, and with them the handle.
        """
        if not self.options.deferred_sync or bookie_id not in self.ensemble:
            return []
        slot = self.ensemble.index(bookie_id)
        if self._adds.acknowledged_through[slot] <= self.lac:
            return []
        what = f"the connection to {bookie_id} was lost with entries that were not forced"
        if self.failure is None:
            return self._fail(FailureKind.BOOKIE_FAILED, what)
        return self._force_failed(self._forces.clear(), what)

    # ------------------------------------------------------------------ the end

    def close(self) -> list[Command]:
        """Stop taking adds, fail those on their way, and record the end of the ledger.

        Wait until `is_idle` first to have them confirmed instead.
        """
        if self.failure is not None:
            return self._closing.again()
        what = "this handle was closed"
        if self.held_from is not None and self.held_from > self.confirmed + 1:
            what += f" while entry {self.confirmed + 1} was still missing"
        commands = self._stop(self._failure(FailureKind.LEDGER_CLOSED, what))
        if self.confirmed > self.lac:
            self._closing.force_first()
            return commands + self._start_force(_CLOSING)
        return commands + self._record_end()

    def on_closed(self) -> list[Command]:
        """The record says CLOSED with our values."""
        return self._closing.end(None)

    def on_close_failed(self, kind: FailureKind) -> list[Command]:
        return self._closing.end(self._failure(kind, CLOSE_FAILED[kind]))

    def _fail(
        self,
        kind: FailureKind,
        what: str,
        *,
        failed: FailedSending | None = None,
        close: bool = True,
    ) -> list[Command]:
        """End the handle: every add that is not confirmed, and every later one, fails.

        Then the ledger is closed, which the store refuses unless it still says OPEN. Not so when
        confirmed entries wait for a force: closing at the LAC would cut them off for good.
        """
        failure = self._failure(kind, f"{what}; {_MAYBE}")
        if failed is not None:
            failure = replace(
                failure,
                outcome=failed.outcome,
                entry_id=failed.batch.first,
                bookie_id=failed.bookie_id,
            )
        commands = self._stop(failure)
        commands += (ForceEnded(force.force_id, failure) for force in self._forces.clear())
        if close and self.confirmed == self.lac:
            return commands + self._record_end()
        self._closing.leave(last=self.lac, length=self._lac_length, failure=failure)
        return commands

    def _stop(self, failure: Failure) -> list[Command]:
        self.failure = failure
        self._adds.clear()
        self._late = {}
        self._change = None
        return [FailAdds(failure)]

    def _record_end(self) -> list[Command]:
        return self._closing.record(
            last=self.lac, length=self._lac_length, is_change_out=self._is_change_out
        )

    def _failure(self, kind: FailureKind, what: str, *, entry_id: int | None = None) -> Failure:
        message = f"ledger {self._ledger_id}: {what}"
        return Failure(kind, message, ledger_id=self._ledger_id, entry_id=entry_id)
