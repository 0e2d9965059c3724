"""Open with recovery: fence, find the end, write it again, close.

The steps S0 to S8, each of which may be repeated by anybody: a client that dies half way leaves
IN_RECOVERY behind, and the next one begins anew. Several may be at it at once; the first to close
decides, and the others take its end for theirs.

How a shell drives it. `start`, then answers to whatever is asked: `StartRecovery` ends in
`on_started`, fencing LAC reads in `on_lac_answers`, recovery reads in `on_read_answers`, adds in
`on_add_answers`, `ChooseReplacements` in `on_replacements`, `ReadLength` in `on_length` or
`on_length_failed`, `FinishRecovery` in `on_finished`; the two writes of the record may also end in
`on_metadata_failed`. `RecoveryEnded` is the last command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count as counter

from ledger_client.core.adds import AddQueue, Batch, FailedSending
from ledger_client.core.change import Change, Storm, judge
from ledger_client.core.commands import (
    AddAnswer,
    ChooseReplacements,
    Command,
    Failure,
    FailureKind,
    FinishRecovery,
    LacAnswer,
    LacReadEnded,
    Outcome,
    PackageRecovered,
    ReadLength,
    RecoveryEnded,
    RecoveryReadAnswer,
    StartRecovery,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.lac import LacRead
from ledger_client.core.options import ChangeMode, StormLimits
from ledger_client.core.recovery_reads import RecoveryReads, Verdict
from metadata.model import Fragment, LedgerMetadata, LedgerState
from wire.types import NO_ENTRY, BookieId

_FATAL: Mapping[Outcome, FailureKind] = {
    Outcome.UNAUTHORIZED: FailureKind.UNAUTHORIZED,
    Outcome.ILLEGAL_OP: FailureKind.ILLEGAL_OP,
    Outcome.CLIENT_CLOSED: FailureKind.CLIENT_CLOSED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    #: Entries being read or written at a time, at first. A few too many are read past the end, no
    #: harm. A long tail, left by a writer that was killed in a large batch, widens the window as
    #: it goes on: up to so many entries. About so many bytes, if that is less: what the last entry
    #: has, as the LAC read shows it, until some of the tail were read.
    window: int = 64
    window_max: int = 1024
    window_bytes_max: int = 4 * 1024 * 1024
    #: Ask the whole write set at once: one round trip per window, and no waiting for a slow bookie.
    ask_all: bool = True
    storm: StormLimits = field(default_factory=StormLimits)


class Recovery:
    """Decides for one attempt to close somebody else's ledger.

    Fault domains are not asked for here: a recovery that never ends because a rack is gone is worse
    than copies in one rack, which re-replication can spread later.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        options: RecoveryOptions | None = None,
        *,
        request_ids: Iterator[int] | None = None,
    ) -> None:
        self.options = options or RecoveryOptions()
        self.is_over = False
        self._metadata = metadata  # once IN_RECOVERY: the snapshot that all reads go by
        self._distribution = Distribution.of(metadata)
        self._request_ids = counter(1) if request_ids is None else request_ids
        self._was_in_recovery = False
        self._lac_read: LacRead | None = None
        self._lac0 = NO_ENTRY  # in every header that this recovery writes
        self._reads: RecoveryReads | None = None
        self._has_end = False
        self._adds: AddQueue | None = None
        self._pushed = NO_ENTRY
        self._acked = NO_ENTRY  # progress; never shown to anybody
        self._length: int | None = None  # from the header of entry `_pushed`, if it was read
        self._change: Change | None = None
        self._storm = Storm(self.options.storm)
        #: Recorded by the closing write only, where of two with the same start the later counts.
        self._working: list[Fragment] = []
        self._is_finishing = False
        self._size = 0  # of the largest entry that came with a LAC
        self._found = 0  # entries read so far, and the bytes of all but the first of them
        self._found_bytes = 0

    # ------------------------------------------------------------------ S0 to S3

    def start(self) -> list[Command]:
        """S0: a ledger that is closed needs nothing. S1: otherwise claim it."""
        return self._end(self._metadata) if self._metadata.is_closed else [StartRecovery()]

    def on_started(self, metadata: LedgerMetadata, *, wrote: bool) -> list[Command]:
        """S2: the record says IN_RECOVERY, by our hand (`wrote`) or another's: fence.

        From here on nobody changes the last fragment except by closing, so this record is what
        every read goes by. Not sure who wrote it? Then it was another.
        """
        if metadata.is_closed:
            return self._end(metadata)
        assert metadata.state is LedgerState.IN_RECOVERY
        self._metadata = metadata
        self._was_in_recovery = not wrote
        self._lac_read = LacRead(
            ledger_id=metadata.ledger_id,
            distribution=self._distribution,
            ensemble=metadata.last_fragment.ensemble,
            request_ids=self._request_ids,
            fence=True,
        )
        return self._lac_read.start()

    def on_lac_answers(self, answers: Iterable[LacAnswer], now: float) -> list[Command]:
        """S3: every write set is fenced; begin behind the highest LAC.

        The last fragment begins behind a confirmed entry, so its start is a floor: without it,
        an ensemble that is still empty would send recovery back into earlier fragments. If another
        client began recovery before us, it may have written a LAC that it earned on an ensemble it
        never recorded. Then the whole last fragment is read and written again; but readers may have
        seen that LAC, so nothing up to it may be cut off.
        """
        if self._lac_read is None or self.is_over:
            return []
        answers = list(answers)
        self._size = max([self._size, *(answer.size for answer in answers)])
        for ended in self._lac_read.on_answers(answers):
            assert isinstance(ended, LacReadEnded)
            if ended.failure is not None:
                return self._abort(ended.failure)
            start = self._metadata.last_fragment.first_entry_id
            self._lac0 = max(ended.lac, start - 1)
            first = start if self._was_in_recovery else self._lac0 + 1
            self._pushed = self._acked = first - 1
            ensemble = self._metadata.last_fragment.ensemble
            self._reads = RecoveryReads(
                distribution=self._distribution,
                ensemble=ensemble,
                request_ids=self._request_ids,
                first=first,
                floor=self._lac0,
                ask_all=self.options.ask_all,
            )
            self._adds = AddQueue(self._distribution, ensemble, self._request_ids)
            return self._advance(now)
        return []

    # ------------------------------------------------------------------ S4 and S5

    def on_read_answers(self, answers: Iterable[RecoveryReadAnswer], now: float) -> list[Command]:
        if self._reads is None or self._has_end or self.is_over:
            return []
        commands: list[Command] = []
        for answer in answers:
            commands += self._reads.take(answer)
        return commands + self._advance(now)

    def _advance(self, now: float) -> list[Command]:
        """Write again what was found, read on, and finish when both have come to the end."""
        assert self._reads is not None
        commands: list[Command] = []
        if not self._has_end:
            found, verdict = self._reads.consume()
            if found:
                commands += self._push(found, now)
            match verdict:
                case Verdict.MISSING:
                    self._has_end = True
                case Verdict.UNDETERMINED:
                    return commands + self._abort(self._undetermined())
                case Verdict.UNAUTHORIZED:
                    return commands + self._abort(
                        self._failure(FailureKind.UNAUTHORIZED, "a bookie refuses the password")
                    )
                case _:
                    commands += self._reads.ask_through(self._acked + self._window)
        return commands + self._finish_if_done()

    @property
    def _window(self) -> int:
        options = self.options
        wide = max(options.window, min(options.window_max, self._found))
        size = self._found_bytes / self._found if self._found_bytes else self._size
        if size > 0:
            wide = min(wide, int(options.window_bytes_max / size))
        return max(1, wide)

    def _push(self, found: list[tuple[int, object]], now: float) -> list[Command]:
        """The same ids, payloads and lengths, with the LAC of the beginning in every header.

        An advancing LAC would show readers entries that a competing client may cut off, and would
        make the next recovering client skip entries whose only copies are on bookies that were
        never recorded.
        """
        assert self._adds is not None
        first = self._pushed + 1
        if self._length is not None:
            # Where callers chose the ids, lengths come in any order: rather count too much.
            self._found_bytes += abs(found[-1][0] - self._length)
        self._found += len(found)
        self._pushed += len(found)
        self._length = found[-1][0]
        package = PackageRecovered(first, self._lac0, tuple(found))
        batch = Batch(first, self._pushed, 0, now)
        avoid = self._change.avoid if self._change is not None else ()
        return [package, *self._adds.push(batch, avoid=avoid)]

    def on_add_answers(self, answers: Iterable[AddAnswer], now: float) -> list[Command]:
        if self._adds is None or self.is_over:
            return []
        commands: list[Command] = []
        for answer in answers:
            failed = self._adds.take(answer)
            if failed is not None:
                commands += self._on_failed(failed, now)
        return commands + self._confirm_due(now)

    def _confirm_due(self, now: float) -> list[Command]:
        if self._change is not None or self.is_over:
            return []
        assert self._adds is not None
        for batch in self._adds.pop_due(after=self._acked):
            self._acked = batch.last
        return self._advance(now)

    # ------------------------------------------------------------------ S6

    def _on_failed(self, failed: FailedSending, now: float) -> list[Command]:
        if self.is_over:
            return []
        assert self._adds is not None
        if failed.outcome in _FATAL:
            what = f"{failed.bookie_id} answered {failed.outcome.name} to a recovery add"
            return self._abort(self._failure(_FATAL[failed.outcome], what, failed.outcome))
        verdict = judge(failed, ChangeMode.IMMEDIATE, self._adds, self._distribution)
        if self._change is not None:
            self._change.add(verdict.slots)
            return []
        if verdict.is_late:
            return []  # if the bookie is needed again, it will fail again
        self._change = Change()
        self._change.add(verdict.slots)
        return self._next_round(self._change, now)

    def _next_round(self, change: Change, now: float) -> list[Command]:
        assert self._adds is not None
        if not change.start_round(self._adds.ensemble):
            self._change = None
            return [*self._adds.send_missing(), *self._confirm_due(now)]
        delay_seconds = self._storm.next_round(now, change.failed.values())
        if delay_seconds is None:
            return self._abort(
                self._failure(
                    FailureKind.TOO_MANY_CHANGES,
                    "bookies keep failing recovery adds, try again later",
                )
            )
        return [
            ChooseReplacements(
                ensemble=self._adds.ensemble,
                failed=dict(change.failed),
                avoid=self._storm.failed,
                delay_seconds=delay_seconds,
            )
        ]

    def on_replacements(self, chosen: Mapping[int, BookieId], now: float) -> list[Command]:
        """Go on with other bookies, in memory only.

        Recorded before the end, the new ensemble would send the reads of a later recovering client
        to bookies that never held the entries.
        """
        if self._change is None or self.is_over:
            return []
        assert self._adds is not None
        if not chosen:
            what = "no bookie is left to replace a failed one, add bookies and try again"
            return self._abort(self._failure(FailureKind.NOT_ENOUGH_BOOKIES, what))
        fragment = Fragment(self._acked + 1, self._adds.ensemble).with_slots(chosen)
        self._working.append(fragment)
        self._adds.replace(fragment.ensemble)
        return self._next_round(self._change, now)

    # ------------------------------------------------------------------ S7 and S8

    def _finish_if_done(self) -> list[Command]:
        assert self._adds is not None
        if not self._has_end or self._adds or self._change is not None or self._is_finishing:
            return []
        self._is_finishing = True
        if self._pushed == NO_ENTRY:
            self._length = 0
        if self._length is None:
            return [ReadLength(self._pushed)]
        return self._finish(self._length)

    def on_length(self, length: int) -> list[Command]:
        """The header of the last entry itself; those of entries behind it count dropped bytes."""
        return [] if self.is_over else self._finish(length)

    def on_length_failed(self, failure: Failure) -> list[Command]:
        return [] if self.is_over else self._abort(failure)

    def _finish(self, length: int) -> list[Command]:
        return [FinishRecovery(self._pushed, length, tuple(self._working))]

    def on_finished(self, metadata: LedgerMetadata) -> list[Command]:
        """S8: closed, by us or by somebody who was faster. Either way this is the ledger's end."""
        assert metadata.is_closed
        return self._end(metadata)

    def on_metadata_failed(self, kind: FailureKind) -> list[Command]:
        what = {
            FailureKind.LEDGER_GONE: "the ledger was deleted",
            FailureKind.METADATA_CONFLICT: "the record does not allow this close",
        }.get(kind, "the metadata store is out of reach, try again later")
        return [] if self.is_over else self._abort(self._failure(kind, what))

    def _end(self, metadata: LedgerMetadata) -> list[Command]:
        self.is_over = True
        return [RecoveryEnded(metadata)]

    def _abort(self, failure: Failure) -> list[Command]:
        self.is_over = True
        if self._adds is not None:
            self._adds.clear()
        return [RecoveryEnded(None, failure)]

    def _undetermined(self) -> Failure:
        assert self._reads is not None
        entry_id = self._reads.next_entry_id
        why = "too few bookies answered for"
        if entry_id <= self._lac0:
            why = f"readers may have seen LAC {self._lac0}, but no bookie that answered has"
        what = f"{why} entry {entry_id}; bring its bookies back and try again"
        return self._failure(FailureKind.NOT_COVERED, what)

    def _failure(self, kind: FailureKind, what: str, outcome: Outcome | None = None) -> Failure:
        ledger_id = self._metadata.ledger_id
        message = f"recovery of ledger {ledger_id}: {what}"
        return Failure(kind, message, outcome, ledger_id=ledger_id)
