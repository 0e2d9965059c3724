"""Bugs of the writer: what counts as written, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ledger_client.core import adds, change, commands
from ledger_client.core.adds import AddQueue, Batch
from ledger_client.core.distribution import Distribution
from ledger_client.core.writer import Writer
from metadata.model import LedgerMetadata
from wire.types import BookieId


def keep_acks(right: Callable[..., set[int]]) -> Any:
    """Acknowledgements of replaced bookies count on."""

    def replace_(self: AddQueue, ensemble: Sequence[BookieId]) -> set[int]:
        kept = [(batch, batch.acknowledged) for batch in self]
        replaced = right(self, ensemble)
        for batch, acknowledged in kept:
            batch.acknowledged = acknowledged
        return replaced

    return replace_


def confirm_while_changing(right: Callable[..., Any]) -> Any:
    def confirm(self: Writer) -> Any:
        kept, self._change = self._change, None
        try:
            return right(self)
        finally:
            self._change = kept

    return confirm


def complete_before_resend(right: Callable[..., Any]) -> Any:
    """Confirm by what was acknowledged before the new ensemble is looked at."""

    def changed(self: Writer, metadata: LedgerMetadata, now: float) -> Any:
        if self._change is None or metadata.state.name != "OPEN":
            return right(self, metadata, now)
        kept, self._change = self._change, None
        early = self._confirm_due()
        self._change = kept
        return [*early, *right(self, metadata, now)]

    return changed


def matched_by_entry_ids(right: Callable[..., Any]) -> Any:
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


def copies_for_any_tenure(_right: Callable[..., bool]) -> Any:
    """A copy that reached a bookie which has left its slot counts for the one that has it now."""

    def take(self: AddQueue, batch: Batch, bookie_id: BookieId) -> bool:
        batch.acknowledged |= 1 << batch.ensemble.index(bookie_id)
        return True

    return take


def one_ack_less(right: Callable[..., bool]) -> Any:
    def has(self: Distribution, acknowledged: int, *, first: int, last: int) -> bool:
        if self.ack_quorum == 1:
            return right(self, acknowledged, first=first, last=last)
        return all(
            (acknowledged & mask).bit_count() >= self.ack_quorum - 1
            for mask in self.masks_of(first=first, last=last)
        )

    return has


def quorum_of_the_union(_right: Callable[..., bool]) -> Any:
    """A batch counts as written when its slots together, not each write set, have enough."""

    def has(self: Distribution, acknowledged: int, *, first: int, last: int) -> bool:
        return acknowledged.bit_count() >= self.ack_quorum

    return has


def out_of_order(right: Callable[..., Any]) -> Any:
    def pop(self: AddQueue, *, after: int) -> Any:
        due = [batch for batch in self if self.is_achieved(batch)]
        for batch in due:
            self._batches.remove(batch)
            batch.is_confirmed = True
        return due

    return pop


def start_behind_what_was_pushed(right: Callable[..., Any]) -> Any:
    def next_round(self: Writer, running: change.Change, now: float) -> Any:
        return [
            replace(command, first_entry_id=self.last_pushed + 1)
            if isinstance(command, commands.ChangeEnsemble)
            else command
            for command in right(self, running, now)
        ]

    return next_round


def no_resend(_right: Callable[..., Any]) -> Any:
    return lambda self: []


def tell_what_is_not_confirmed(right: Callable[..., Any]) -> Any:
    def tick(self: Writer, now: float) -> Any:
        return [
            replace(command, lac=self.last_pushed)
            if isinstance(command, commands.SendLac)
            else command
            for command in right(self, now)
        ]

    return tick


def header_names_itself(right: Callable[..., Any]) -> Any:
    """Headers carry the id of the entry before, confirmed or not."""

    def push(self: Writer, **given: Any) -> Any:
        package, *sends = right(self, **given)
        return [replace(package, lac=package.first - 1), *sends]

    return push


def unforced_lac(right: Callable[..., Any]) -> Any:
    def confirm(self: Writer) -> Any:
        result = right(self)
        self.lac, self._lac_length = self.confirmed, self._confirmed_length
        return result

    return confirm


def connections_do_not_matter(_right: Callable[..., Any]) -> Any:
    return lambda self, bookie_id: []


def length_of_all(_right: Callable[..., Any]) -> Any:
    """A writer that closes counts the bytes of entries that were never confirmed."""

    def record(self: Writer) -> Any:
        return self._closing.record(
            last=self.lac, length=self.length, is_change_out=self._is_change_out
        )

    return record


def fencing_is_an_error_like_any(right: Callable[..., Any]) -> Any:
    def failed(self: Writer, sending: adds.FailedSending, now: float) -> Any:
        if sending.outcome is commands.Outcome.FENCED:
            return []
        return right(self, sending, now)

    return failed


def diff_of_first_and_last(right: Callable[..., Any]) -> Any:
    """Only slots whose bookie is another one than before the first round are sent to again."""
    firsts: dict[change.Change, tuple[BookieId, ...]] = {}

    def next_round(self: Writer, running: change.Change, now: float) -> Any:
        first = firsts.setdefault(running, self.ensemble)
        return [
            command
            for command in right(self, running, now)
            if not isinstance(command, commands.SendAdd)
            or first[command.slot] != self.ensemble[command.slot]
        ]

    return next_round


def taken_by_the_lac(_right: Callable[..., bool]) -> Any:
    return lambda self, entry_id: entry_id <= self.lac
