"""How much is left to be copied, how fast it goes, and when it will be done.

What is left is estimated from records alone: a ledger says how long it is, not where its bytes are,
so they count as spread evenly over its entries. The rate is what vanished from the list between
two looks, whoever did it: Apache's workers count like ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from ledger_client.core.distribution import Distribution
from metadata.model import LedgerMetadata
from wire.types import BookieId, LedgerId

#: The weight of a look-back of this many seconds falls to a third: long enough to be steady, short
#: enough to notice that somebody raised the limit.
_MEMORY_SECONDS: Final = 120.0
#: Ledgers that are followed one by one; of more only the sums are kept.
FOLLOWED_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class Shortage:
    """What one ledger lacks."""

    fragments: int
    bytes: int


NO_SHORTAGE: Final = Shortage(0, 0)


def shortage_of(metadata: LedgerMetadata, missing: Collection[BookieId]) -> Shortage:
    """What must be copied to have the copies of `missing` somewhere else.

    An open ledger does not say how long it is; its bytes count once recovery has closed it.
    """
    distribution = Distribution.of(metadata)
    entries_all = max(0, (metadata.last_entry_id or 0) + 1) if metadata.is_closed else 0
    fragments = copied = 0
    for found in metadata.ranges():
        bad = [i for i, bookie in enumerate(found.fragment.ensemble) if bookie in missing]
        fragments += bool(bad)
        if found.last_entry_id is not None:
            first, last = found.fragment.first_entry_id, found.last_entry_id
            copied += sum(distribution.count_of(slot=i, first=first, last=last) for i in bad)
    size = metadata.length * copied // entries_all if entries_all else 0
    return Shortage(fragments, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One look at all marked ledgers."""

    ledgers: int = 0
    fragments: int = 0
    bytes_left: int = 0
    #: Of these ledgers: such that cannot be repaired now. Nobody waits for them to be done.
    parked: int = 0
    parked_bytes: int = 0
    bytes_per_second: float | None = None  # None before the second look
    ledgers_per_second: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """Until all is copied that can be; None if nothing moves, or it is too early to say."""
        if self.ledgers == self.parked:
            return 0.0
        waits = []
        for left, rate in (
            (self.bytes_left - self.parked_bytes, self.bytes_per_second),
            (self.ledgers - self.parked, self.ledgers_per_second),
        ):
            if left > 0 and rate:
                waits.append(left / rate)
        # Large ledgers are a matter of bytes, crowds of small ones a matter of ledgers.
        return max(waits) if waits else None


@dataclass(slots=True)
class Progress:
    """Follows the shortages of marked ledgers from one look to the next."""

    _before: dict[LedgerId, Shortage] = field(default_factory=dict)
    _time: float | None = None
    _bytes_rate: float | None = None
    _ledgers_rate: float | None = None

    def on_look(
        self,
        shortages: Mapping[LedgerId, Shortage],
        now: float,
        parked: Collection[LedgerId] = (),
    ) -> Forecast:
        """All marked ledgers as they are now. Ledgers that are new here slow nothing down."""
        if self._time is not None and now > self._time:
            done_bytes = done_ledgers = 0
            for ledger_id, before in self._before.items():
                after = shortages.get(ledger_id)
                done_ledgers += after is None
                done_bytes += max(0, before.bytes - (after or NO_SHORTAGE).bytes)
            seconds = now - self._time
            self._bytes_rate = _blend(self._bytes_rate, done_bytes / seconds, seconds)
            self._ledgers_rate = _blend(self._ledgers_rate, done_ledgers / seconds, seconds)
        self._time = now
        self._before = dict(shortages) if len(shortages) <= FOLLOWED_MAX else {}
        if not shortages:
            self._bytes_rate = self._ledgers_rate = None  # the next loss is another story
        waiting = [shortages[ledger_id] for ledger_id in parked if ledger_id in shortages]
        return Forecast(
            ledgers=len(shortages),
            fragments=sum(shortage.fragments for shortage in shortages.values()),
            bytes_left=sum(shortage.bytes for shortage in shortages.values()),
            parked=len(waiting),
            parked_bytes=sum(shortage.bytes for shortage in waiting),
            bytes_per_second=self._bytes_rate,
            ledgers_per_second=self._ledgers_rate,
        )


def _blend(old: float | None, new: float, seconds: float) -> float:
    if not old:  # before anything moved: waiting says nothing about how fast the work will go
        return new
    share = min(1.0, seconds / _MEMORY_SECONDS)
    return old + (new - old) * share
