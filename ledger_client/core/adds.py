"""Adds that are on their way: what was sent where, who acknowledged, what is due next.

The unit is the batch, entries `first..last` with one set of acknowledged slots; no object is made
per entry. A sending is one batch on its way to one slot. Writer and recovery share this queue: they
differ in where ensembles are recorded, not in when an entry counts as written.

An entry that is a batch by itself may be sent in copies instead: nothing is kept for each of them
but a bit, and whoever carries them names batch and bookie with the answer. Thousands of ledgers
with one entry each would otherwise spend most of their time on requests.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ledger_client.core.commands import AddAnswer, Outcome, SendAdd
from ledger_client.core.distribution import Distribution, slots_in
from wire.types import BookieId

#: Whether copies on these bookies are spread over enough fault domains to count as a quorum.
Spread = Callable[[Sequence[BookieId]], bool]


_NO_REQUESTS: Final[dict[int, int]] = {}  # shared, and never filled


class Batch:
    """Entries that are sent, acknowledged and confirmed together."""

    __slots__ = ("acknowledged", "copies", "ensemble", "failed", "first", "is_confirmed", "last",
                 "queued_at", "requests", "size", "tenures")  # fmt: skip

    def __init__(self, first: int, last: int, size: int, queued_at: float) -> None:
        self.first = first
        self.last = last
        self.size = size  # payload bytes
        self.queued_at = queued_at
        self.acknowledged = 0  # mask of slots whose present bookie holds the batch
        self.failed = 0  # mask of slots whose present bookie failed it
        self.requests = _NO_REQUESTS  # slot to the sending that is not answered yet
        self.is_confirmed = False
        self.copies = 0  # mask of slots that a copy is on its way to
        self.ensemble: tuple[BookieId, ...] = ()  # when the copies left, and its tenures
        self.tenures: tuple[int, ...] = ()


@dataclass(slots=True)
class _Sending:
    batch: Batch
    slot: int
    bookie_id: BookieId
    tenure: int  # of the bookie in its slot; a bookie that left and came back has a new one
    missing: int  # bit mask of entries not acknowledged yet, from `batch.first` on; -1: all


@dataclass(frozen=True, slots=True)
class FailedSending:
    batch: Batch
    slot: int
    bookie_id: BookieId
    outcome: Outcome


class AddQueue:
    """Batches in entry order, until each is confirmed or all are failed."""

    def __init__(
        self,
        distribution: Distribution,
        ensemble: Sequence[BookieId],
        request_ids: Iterator[int],
        spread: Spread | None = None,
    ) -> None:
        self.ensemble = tuple(ensemble)
        #: The highest entry each slot's present bookie acknowledged.
        self.acknowledged_through = [-1] * len(ensemble)
        self.bytes = 0
        self.entries = 0
        self._distribution = distribution
        self._request_ids = request_ids
        self._spread = spread
        self._batches: list[Batch] = []
        self._sendings: dict[int, _Sending] = {}
        #: Which of the bookies that a slot has had, one after the other, has it now.
        self._tenures = (0,) * len(ensemble)
        self._is_by_age = True  # until ids come in another order than their own

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    @property
    def first(self) -> int | None:
        """The lowest entry that is queued."""
        return self._batches[0].first if self._batches else None

    # ------------------------------------------------------------------ in

    def push(self, batch: Batch, *, avoid: Collection[int] = ()) -> list[SendAdd]:
        """Queue a batch by its ids and send it to its slots in the ensemble of this moment.

        Slots in `avoid` are known to have failed; `send_missing` serves them later.
        """
        batches = self._batches
        if not batches or batches[-1].last < batch.first:
            batches.append(batch)
        else:
            batches.insert(bisect_left(batches, batch.first, key=_first), batch)
            self._is_by_age = False
        self.bytes += batch.size
        self.entries += batch.last - batch.first + 1
        slots = self._distribution.slots_of(first=batch.first, last=batch.last)
        return [self._send(batch, slot) for slot in slots if slot not in avoid]

    def push_copies(self, batch: Batch) -> None:
        """Queue the next entry, whose copies go to all its slots without being sendings."""
        self._batches.append(batch)
        self.bytes += batch.size
        self.entries += 1
        distribution = self._distribution
        batch.copies = distribution.masks[batch.first % distribution.ensemble_size]
        batch.ensemble, batch.tenures = self.ensemble, self._tenures

    def holds(self, entry_id: int) -> bool:
        """Whether the entry is queued."""
        at = bisect_left(self._batches, entry_id + 1, key=_first) - 1
        return at >= 0 and entry_id <= self._batches[at].last

    def send_missing(self) -> list[SendAdd]:
        """Every queued batch to every slot of it that neither holds it nor is being asked."""
        sends: list[SendAdd] = []
        for batch in self._batches:
            batch.failed = 0
            sends += (
                self._send(batch, slot)
                for slot in self._distribution.slots_of(first=batch.first, last=batch.last)
                if not (batch.acknowledged | batch.copies) >> slot & 1
                and slot not in batch.requests
            )
        return sends

    def _send(self, batch: Batch, slot: int) -> SendAdd:
        request_id = next(self._request_ids)
        bookie_id = self.ensemble[slot]
        if batch.requests is _NO_REQUESTS:
            batch.requests = {}
        batch.requests[slot] = request_id
        self._sendings[request_id] = _Sending(batch, slot, bookie_id, self._tenures[slot], -1)
        return SendAdd(request_id, slot, bookie_id, batch.first, batch.last)

    # ------------------------------------------------------------------ answers

    def take(self, answer: AddAnswer) -> FailedSending | None:
        """Record an answer; a failure is returned for the owner to judge.

        Unknown numbers are answers that came twice, or from a bookie that has left its slot.
        """
        sending = self._sendings.get(answer.request_id)
        if sending is None:
            return None
        batch, slot = sending.batch, sending.slot
        if answer.outcome is Outcome.OK and self._still_missing(sending, answer.entry_ids):
            return None
        del self._sendings[answer.request_id]
        batch.requests.pop(slot, None)
        if sending.tenure != self._tenures[slot]:
            return None
        if answer.outcome is not Outcome.OK:
            batch.failed |= 1 << slot
            return FailedSending(batch, slot, sending.bookie_id, answer.outcome)
        batch.acknowledged |= 1 << slot
        if self.acknowledged_through[slot] < batch.last:
            self.acknowledged_through[slot] = batch.last
        return None

    def take_copy(self, batch: Batch, bookie_id: BookieId) -> bool:
        """The bookie has its copy; whether that is news of a bookie which is still there."""
        slot = batch.ensemble.index(bookie_id)
        if not batch.copies >> slot & 1 or batch.tenures[slot] != self._tenures[slot]:
            return False
        batch.copies ^= 1 << slot
        batch.acknowledged |= 1 << slot
        return True

    def fail_copy(
        self, batch: Batch, bookie_id: BookieId, outcome: Outcome
    ) -> FailedSending | None:
        """The copy came to this end; returned for the owner to judge, unless it is nobody's."""
        slot = batch.ensemble.index(bookie_id)
        if not batch.copies >> slot & 1 or batch.tenures[slot] != self._tenures[slot]:
            return None
        batch.copies ^= 1 << slot
        batch.failed |= 1 << slot
        return FailedSending(batch, slot, bookie_id, outcome)

    def _still_missing(self, sending: _Sending, entry_ids: Sequence[int] | None) -> int:
        """Strike entries off the mask of a sending; what remains. Twice strikes nothing twice."""
        if entry_ids is None:
            return 0
        first, last = sending.batch.first, sending.batch.last
        if sending.missing < 0:
            sending.missing = self._distribution.bits_of(slot=sending.slot, first=first, last=last)
        sending.missing &= ~_bits(entry_ids, first, last)
        return sending.missing

    def is_achieved(self, batch: Batch) -> bool:
        """Whether every entry of the batch has its ack quorum, spread as the policy demands.

        Always from the present set: acknowledgements of bookies that were replaced are gone.
        """
        if not self._distribution.has_ack_quorum(
            batch.acknowledged, first=batch.first, last=batch.last
        ):
            return False
        if self._spread is None:
            return True
        return all(
            self._spread([self.ensemble[slot] for slot in slots_in(batch.acknowledged & mask)])
            for mask in self._distribution.masks_of(first=batch.first, last=batch.last)
        )

    @property
    def answers_wanted(self) -> int:
        """Fewer answers than these, if all are good, confirm nothing."""
        if not self._batches:
            return sys.maxsize
        if self._distribution.is_striped:
            return 1
        return max(1, self._distribution.ack_quorum - self._batches[0].acknowledged.bit_count())

    def overdue(self, queued_before: float) -> Batch | None:
        """The first batch that has waited so long without being achieved."""
        for batch in self._batches:
            if batch.queued_at <= queued_before and not self.is_achieved(batch):
                return batch
        return None

    def oldest_at(self) -> float:
        if self._is_by_age:
            return self._batches[0].queued_at
        return min(batch.queued_at for batch in self._batches)

    # ------------------------------------------------------------------ out

    def pop_due(self, *, after: int) -> list[Batch]:
        """What is achieved at the head of the queue, without a gap behind entry `after`."""
        batches, count = self._batches, 0
        for batch in batches:
            if batch.first != after + 1 or not self.is_achieved(batch):
                break
            batch.is_confirmed = True
            self.bytes -= batch.size
            self.entries -= batch.last - batch.first + 1
            after = batch.last
            count += 1
        due = batches[:count]
        del batches[:count]
        return due

    def clear(self) -> None:
        """Forget everything; answers that still come are of no interest."""
        self._batches.clear()
        self._sendings.clear()
        self.bytes = self.entries = 0

    # ------------------------------------------------------------------ ensembles

    def replace(self, ensemble: Sequence[BookieId]) -> set[int]:
        """Let another ensemble hold the queued batches; the slots whose bookie changed.

        Acknowledgements of these slots are dropped and requests to them forgotten. Nothing is
        sent: the owner does that once for all rounds of a change, and before it confirms anything.
        """
        replaced = {
            slot
            for slot, (old, new) in enumerate(zip(self.ensemble, ensemble, strict=True))
            if old != new
        }
        self.ensemble = tuple(ensemble)
        self._tenures = tuple(
            tenure + (slot in replaced) for slot, tenure in enumerate(self._tenures)
        )
        for slot in replaced:
            self.acknowledged_through[slot] = -1
            for batch in self._batches:
                batch.acknowledged &= ~(1 << slot)
                batch.failed &= ~(1 << slot)
                batch.copies &= ~(1 << slot)
                request_id = batch.requests.pop(slot, None)
                if request_id is not None:
                    del self._sendings[request_id]
        return replaced


def _bits(entry_ids: Sequence[int], first: int, last: int) -> int:
    """One bit per entry of `first..last` that is named, the lowest for `first`."""
    count = len(entry_ids)
    if count and first <= entry_ids[0] and entry_ids[-1] <= last:
        run = range(entry_ids[0], entry_ids[0] + count)
        if entry_ids == run or (isinstance(entry_ids, list) and entry_ids == list(run)):
            return (1 << count) - 1 << run.start - first
    bits = 0
    for entry_id in entry_ids:
        if first <= entry_id <= last:
            bits |= 1 << entry_id - first
    return bits


def _first(batch: Batch) -> int:
    return batch.first
