"""Bugs on purpose: each a small patch of a real core that the simulator must find.

Most of them were real somewhere. A simulator that finds none of its planted bugs is a decoration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from bookie.core.ledger import Ledger
from ledger_client.core import adds, change, commands, recovery_reads
from ledger_client.core.adds import AddQueue
from ledger_client.core.distribution import Distribution
from ledger_client.core.lac import ReaderLac
from ledger_client.core.reader import RangeRead
from ledger_client.core.recovery import Recovery
from ledger_client.core.recovery_reads import RecoveryReads
from ledger_client.core.writer import Writer
from metadata import update
from metadata.model import LedgerMetadata
from wire.errors import Status
from wire.types import BookieId


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    like: str  # the row of the fault table, or Apache's issue, that it imitates
    owner: type
    attribute: str
    make: Callable[[Any], Any]  # the broken form, out of the right one
    seeds: int = 2_000  # within which it is found

    @contextmanager
    def planted(self) -> Iterator[None]:
        right = self.owner.__dict__[self.attribute]
        broken = self.make(right)
        with patch.object(self.owner, self.attribute, broken):
            yield


def _keep_acks(right: Callable[..., set[int]]) -> Any:
    """Acknowledgements of replaced bookies count on."""

    def replace_(self: AddQueue, ensemble: Sequence[BookieId]) -> set[int]:
        kept = [(batch, batch.acknowledged) for batch in self]
        replaced = right(self, ensemble)
        for batch, acknowledged in kept:
            batch.acknowledged = acknowledged
        return replaced

    return replace_


def _confirm_while_changing(right: Callable[..., Any]) -> Any:
    def confirm(self: Writer) -> Any:
        kept, self._change = self._change, None
        try:
            return right(self)
        finally:
            self._change = kept

    return confirm


def _complete_before_resend(right: Callable[..., Any]) -> Any:
    """Confirm by what was acknowledged before the new ensemble is looked at."""

    def changed(self: Writer, metadata: LedgerMetadata, now: float) -> Any:
        if self._change is None or metadata.state.name != "OPEN":
            return right(self, metadata, now)
        kept, self._change = self._change, None
        early = self._confirm_due()
        self._change = kept
        return [*early, *right(self, metadata, now)]

    return changed


def _count_not_coverage(_right: Callable[..., bool]) -> Any:
    def is_covered(self: Distribution, known: Collection[int]) -> bool:
        return len(known) >= self.ensemble_size - self.ack_quorum

    return is_covered


def _any_error_is_missing(_right: property) -> Any:
    return property(lambda self: self not in (commands.Outcome.OK, commands.Outcome.UNAUTHORIZED))


def _silence_is_missing(_right: property) -> Any:
    return property(
        lambda self: (
            self
            in (
                commands.Outcome.NO_SUCH_ENTRY,
                commands.Outcome.NO_SUCH_LEDGER,
                commands.Outcome.TIMEOUT,
            )
        )
    )


def _matched_by_entry_ids(right: Callable[..., Any]) -> Any:
    """An answer for these entries is taken for any sending of them to that slot."""

    def replace_(self: AddQueue, ensemble: Sequence[BookieId]) -> set[int]:
        kept = dict(self._sendings)
        replaced: set[int] = right(self, ensemble)
        for request_id, sending in kept.items():
            if request_id not in self._sendings:
                sending.tenure = self._tenures[sending.slot]
                self._sendings[request_id] = sending
        return replaced

    return replace_


def _advancing_lac(right: Callable[..., Any]) -> Any:
    def push(self: Recovery, found: list[tuple[int, object]], now: float) -> Any:
        package, *sends = right(self, found, now)
        return [replace(package, lac=self._acked), *sends]

    return push


def _start_at_lac_always(right: Callable[..., Any]) -> Any:
    def started(self: Recovery, metadata: LedgerMetadata, *, wrote: bool) -> Any:
        return right(self, metadata, wrote=True)

    return started


def _no_floor(right: Callable[..., Any]) -> Any:
    def init(self: RecoveryReads, **given: Any) -> None:
        right(self, **{**given, "floor": -1})

    return init


def _one_denial_is_enough(right: Callable[..., Any]) -> Any:
    def take(self: RecoveryReads, answer: commands.RecoveryReadAnswer) -> Any:
        entry = self._requests.get(answer.request_id)
        result = right(self, answer)
        if entry is not None and answer.outcome.is_missing and entry.entry_id > self._floor:
            entry.verdict = recovery_reads.Verdict.MISSING
            return []
        return result

    return take


def _forget_new_ensembles(_right: Callable[..., Any]) -> Any:
    def finish(self: Recovery, length: int) -> Any:
        return [commands.FinishRecovery(self._pushed, length, ())]

    return finish


def _finish_over_another(_right: Callable[..., Any]) -> Any:
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


def _close_over_recovery(_right: Callable[..., Any]) -> Any:
    def apply(self: update.Close, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed:
            return None
        return current.closed_at(last_entry_id=self.last_entry_id, length=self.length)

    return apply


def _own_close_is_foreign(right: Callable[..., Any]) -> Any:
    def apply(self: update.Close, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed:
            return replace(current, last_entry_id=self.last_entry_id + 1)
        result: LedgerMetadata | None = right(self, current)
        return result

    return apply


def _change_over_recovery(right: Callable[..., Any]) -> Any:
    def apply(self: update.ChangeEnsemble, current: LedgerMetadata) -> LedgerMetadata | None:
        if current.is_closed:
            result: LedgerMetadata | None = right(self, current)
            return result
        still = current.failed_slots(self.failed)
        wanted = {slot: self.replacements[slot] for slot in still if slot in self.replacements}
        if not wanted:
            return None
        return current.with_ensemble_change(first_entry_id=self.first_entry_id, replacements=wanted)

    return apply


def _fencing_is_an_error_like_any(right: Callable[..., Any]) -> Any:
    def failed(self: Writer, sending: adds.FailedSending, now: float) -> Any:
        if sending.outcome is commands.Outcome.FENCED:
            return []
        return right(self, sending, now)

    return failed


def _one_ack_less(right: Callable[..., bool]) -> Any:
    def has(self: Distribution, acknowledged: int, *, first: int, last: int) -> bool:
        if self.ack_quorum == 1:
            return right(self, acknowledged, first=first, last=last)
        return all(
            (acknowledged & mask).bit_count() >= self.ack_quorum - 1
            for mask in self.masks_of(first=first, last=last)
        )

    return has


def _quorum_of_the_union(_right: Callable[..., bool]) -> Any:
    """A batch counts as written when its slots together, not each write set, have enough."""

    def has(self: Distribution, acknowledged: int, *, first: int, last: int) -> bool:
        return acknowledged.bit_count() >= self.ack_quorum

    return has


def _out_of_order(right: Callable[..., Any]) -> Any:
    def pop(self: AddQueue, *, after: int) -> Any:
        for batch in list(self):
            if self.is_achieved(batch):
                self._batches.remove(batch)
                batch.is_confirmed = True
                return batch
        return None

    return pop


def _start_behind_what_was_pushed(right: Callable[..., Any]) -> Any:
    def next_round(self: Writer, running: change.Change, now: float) -> Any:
        return [
            replace(command, first_entry_id=self.last_pushed + 1)
            if isinstance(command, commands.ChangeEnsemble)
            else command
            for command in right(self, running, now)
        ]

    return next_round


def _no_resend(_right: Callable[..., Any]) -> Any:
    return lambda self: []


def _fence_forgotten(_right: Callable[..., Status]) -> Any:
    def admit(self: Ledger, key: bytes, *, recovery: bool) -> Status:
        return Status.OK

    return admit


def _limbo_denies(_right: Callable[..., Status]) -> Any:
    def absent(self: Ledger) -> Status:
        return Status.NO_ENTRY if self.exists else Status.NO_LEDGER

    return absent


def _tell_what_is_not_confirmed(right: Callable[..., Any]) -> Any:
    def tick(self: Writer, now: float) -> Any:
        return [
            replace(command, lac=self.last_pushed)
            if isinstance(command, commands.SendLac)
            else command
            for command in right(self, now)
        ]

    return tick


def _header_names_itself(right: Callable[..., Any]) -> Any:
    """Headers carry the id of the entry before, confirmed or not."""

    def push(self: Writer, **given: Any) -> Any:
        package, *sends = right(self, **given)
        return [replace(package, lac=package.first - 1), *sends]

    return push


def _lac_falls(right: Callable[..., bool]) -> Any:
    def on_lac(self: ReaderLac, lac: int) -> bool:
        if self.is_closed or lac == self.lac:
            return False
        self.lac = lac
        return True

    return on_lac


def _unforced_lac(right: Callable[..., Any]) -> Any:
    def confirm(self: Writer) -> Any:
        result = right(self)
        self.lac, self._lac_length = self.confirmed, self._confirmed_length
        return result

    return confirm


def _connections_do_not_matter(_right: Callable[..., Any]) -> Any:
    return lambda self, bookie_id: []


def _length_of_all(_right: Callable[..., Any]) -> Any:
    """A writer that closes counts the bytes of entries that were never confirmed."""

    def record(self: Writer) -> Any:
        return self._closing.record(
            last=self.lac, length=self.length, is_change_out=self._is_change_out
        )

    return record


def _not_clipped(right: Callable[..., int]) -> Any:
    def end(self: RangeRead, entry_id: int) -> int:
        return self._last

    return end


def _late_failures_forgotten(right: Callable[..., Any]) -> Any:
    def start_round(self: change.Change, ensemble: tuple[BookieId, ...]) -> bool:
        found: bool = right(self, ensemble)
        self.failed = dict(list(self.failed.items())[:1])
        return found

    return start_round


def _reads_follow_working_ensemble(right: Callable[..., Any]) -> Any:
    """Recovery reads go to bookies that joined during recovery and never had anything."""

    def on_replacements(self: Recovery, chosen: Any, now: float) -> Any:
        result = right(self, chosen, now)
        if self._reads is not None and self._adds is not None:
            self._reads._ensemble = self._adds.ensemble
        return result

    return on_replacements


BUGS = (
    Bug("acks of replaced bookies count on", "F9, #3005", AddQueue, "replace", _keep_acks),
    Bug("complete before resend", "F9, #4097", Writer, "on_ensemble_changed",
        _complete_before_resend),
    Bug("LAC not frozen during a change", "F11, #4651", Writer, "_confirm_due",
        _confirm_while_changing),
    Bug("count instead of coverage in fencing", "F8, #2303", Distribution, "is_covered",
        _count_not_coverage),
    Bug("any error is no such entry", "F27, #2908", commands.Outcome, "is_missing",
        _any_error_is_missing),
    Bug("silence is no such entry", "F55", commands.Outcome, "is_missing", _silence_is_missing),
    Bug("answers of earlier sendings count", "F63", AddQueue, "replace", _matched_by_entry_ids),
    Bug("recovery writes an advancing LAC", "F21", Recovery, "_push", _advancing_lac),
    Bug("repeated recovery begins at the LAC", "F21", Recovery, "on_started",
        _start_at_lac_always),
    Bug("negatives trusted below a LAC already shown", "F71", RecoveryReads, "__init__",
        _no_floor),
    Bug("one denial is enough", "F1", RecoveryReads, "take", _one_denial_is_enough),
    Bug("ensembles of recovery are not recorded", "F3", Recovery, "_finish",
        _forget_new_ensembles),
    Bug("the slower recovery closes again", "F17", update.FinishRecovery, "apply",
        _finish_over_another),
    Bug("the writer closes over a recovery", "F16", update.Close, "apply", _close_over_recovery),
    Bug("a retry does not recognise its own success", "F15, #1967", update.Close, "apply",
        _own_close_is_foreign),
    Bug("the writer changes an ensemble under recovery", "F12", update.ChangeEnsemble, "apply",
        _change_over_recovery),
    Bug("a fence is an answer like any other", "F18", Writer, "_on_failed",
        _fencing_is_an_error_like_any),
    Bug("one ack too few", "I2", Distribution, "has_ack_quorum", _one_ack_less),
    Bug("a quorum of the union of write sets", "I2", Distribution, "has_ack_quorum",
        _quorum_of_the_union),
    Bug("confirmed out of order", "I3", AddQueue, "pop_due", _out_of_order),
    Bug("a fragment starts behind unconfirmed entries", "F11", Writer, "_next_round",
        _start_behind_what_was_pushed),
    Bug("nothing is sent again after a change", "F12, #4459", AddQueue, "send_missing",
        _no_resend),
    Bug("the fence is forgotten", "F62", Ledger, "admit_add", _fence_forgotten),
    Bug("a bookie in limbo denies", "F24, #2612", Ledger, "absent", _limbo_denies),
    Bug("the idle writer tells what is not confirmed", "I17", Writer, "tick",
        _tell_what_is_not_confirmed),
    Bug("headers carry an unconfirmed LAC", "I17", Writer, "_push", _header_names_itself),
    Bug("a reader's LAC falls", "I17", ReaderLac, "on_lac", _lac_falls),
    Bug("the LAC moves without a force", "F49", Writer, "_confirm_due", _unforced_lac),
    Bug("a force after a lost connection counts", "F70, #889", Writer, "on_connection_lost",
        _connections_do_not_matter),
    Bug("the length counts what was never confirmed", "I10", Writer, "_record_end",
        _length_of_all),
    Bug("reads do not stop at the end of a fragment", "F51", RangeRead, "_fragment_end",
        _not_clipped),
    Bug("only one of several failures is replaced", "F10", change.Change, "start_round",
        _late_failures_forgotten),
    Bug("recovery reads newcomers", "F6, BK-355", Recovery, "on_replacements",
        _reads_follow_working_ensemble),
)  # fmt: skip
