"""Which slots hold which entries, and what a set of answers proves. Plain arithmetic.

Entry `e` goes to slots `e, e + 1, ... e + Qw - 1`, modulo the ensemble size. The phase is the
entry id itself, not its distance from the start of the fragment: a replaced bookie keeps its slot
and nothing ever moves. Sets of slots are bit masks, so that a quorum is a count of bits.

Python's integers do not overflow. Apache's client narrows the id to 32 bits in one place, so its
striping is its own for ids from 2^31 on; ours is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from metadata.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Distribution:
    """The shape of a ledger. Everything here follows from three numbers."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    #: The write set of each residue of the entry id modulo the ensemble size, as a mask.
    masks: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1
        masks = tuple(mask_of(self.write_set(residue)) for residue in range(self.ensemble_size))
        object.__setattr__(self, "masks", masks)

    @staticmethod
    def of(metadata: LedgerMetadata) -> Distribution:
        return _shape(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)

    @property
    def is_striped(self) -> bool:
        """Whether some slot lacks some entry. If not, one bookie can be read from end to end."""
        return self.ensemble_size > self.write_quorum

    # ------------------------------------------------------------------ one entry

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """The slots of an entry, in the order in which they are read."""
        size = self.ensemble_size
        return tuple((entry_id + i) % size for i in range(self.write_quorum))

    def holds(self, *, slot: int, entry_id: int) -> bool:
        return (slot - entry_id) % self.ensemble_size < self.write_quorum

    # ------------------------------------------------------------------ many entries

    def masks_of(self, *, first: int, last: int) -> Sequence[int]:
        """The different write sets among `first..last`: never more than the ensemble size."""
        size = self.ensemble_size
        if size == self.write_quorum:
            return self.masks[:1]
        if last - first + 1 >= size:
            return self.masks
        return [self.masks[entry_id % size] for entry_id in range(first, last + 1)]

    def slots_of(self, *, first: int, last: int) -> Sequence[int]:
        """The slots that hold any of `first..last`, ascending."""
        size = self.ensemble_size
        if size == self.write_quorum or last - first + 1 >= size:
            return range(size)
        union = 0
        for mask in self.masks_of(first=first, last=last):
            union |= mask
        return list(slots_in(union))

    def entries_of(self, *, slot: int, first: int, last: int) -> Sequence[int]:
        """Those of `first..last` that the slot holds, ascending."""
        size, quorum = self.ensemble_size, self.write_quorum
        if size == quorum:
            return range(first, last + 1)
        return [e for e in range(first, last + 1) if (slot - e) % size < quorum]

    def bits_of(self, *, slot: int, first: int, last: int) -> int:
        """The same as a bit mask, the lowest bit for entry `first`."""
        size, count = self.ensemble_size, last - first + 1
        if size == self.write_quorum:
            return (1 << count) - 1
        lap = mask_of([i for i in range(size) if (slot - first - i) % size < self.write_quorum])
        laps = count // size + 1
        # A number with a one at every `size`-th bit repeats the lap by multiplication.
        repeated = lap * (((1 << laps * size) - 1) // ((1 << size) - 1))
        return repeated & (1 << count) - 1

    def count_of(self, *, slot: int, first: int, last: int) -> int:
        """How many of `first..last` the slot holds."""
        laps, rest = divmod(max(0, last - first + 1), self.ensemble_size)
        tail = sum(
            self.holds(slot=slot, entry_id=entry_id)
            for entry_id in range(last - rest + 1, last + 1)
        )
        return laps * self.write_quorum + tail

    def next_entry_of(self, *, slot: int, entry_id: int) -> int:
        """The first entry from `entry_id` on that the slot holds."""
        gap = (slot - entry_id) % self.ensemble_size
        return entry_id + max(0, gap - self.write_quorum + 1)

    def previous_entry_of(self, *, slot: int, entry_id: int) -> int | None:
        """The last entry up to `entry_id` that the slot holds; None if there is none from 0 on."""
        gap = (slot - entry_id) % self.ensemble_size
        found = entry_id if gap < self.write_quorum else entry_id - (self.ensemble_size - gap)
        return found if found >= 0 else None

    # ------------------------------------------------------------------ what answers prove

    def has_ack_quorum(self, acknowledged: int, *, first: int, last: int) -> bool:
        """Whether each of `first..last` has its ack quorum among the acknowledged slots.

        Entries with the same residue share their write set, so a batch of thousands costs at most
        `ensemble_size` counts of bits.
        """
        needed = self.ack_quorum
        if self.ensemble_size == self.write_quorum:
            return acknowledged.bit_count() >= needed
        return all(
            (acknowledged & mask).bit_count() >= needed
            for mask in self.masks_of(first=first, last=last)
        )

    def lost_write_sets(self, failed: int, *, first: int, last: int) -> int:
        """The failed slots of those write sets among `first..last` that cannot be acknowledged.

        A write set survives `write_quorum - ack_quorum` failures. Zero: all of them still can.
        """
        spare = self.write_quorum - self.ack_quorum
        lost = 0
        for mask in self.masks_of(first=first, last=last):
            if (failed & mask).bit_count() > spare:
                lost |= failed & mask
        return lost

    def is_covered(self, known: Collection[int]) -> bool:
        """Whether no ack quorum can consist of slots that are not known alone.

        An add needs `ack_quorum` slots of its write set, so each write set must have all but
        `ack_quorum - 1` of its slots known. A count over the whole ensemble will not do: one well
        known write set says nothing about its neighbour.
        """
        mask = mask_of(known)
        needed = self.write_quorum - self.ack_quorum + 1
        return all((mask & window).bit_count() >= needed for window in self.masks)


@lru_cache(maxsize=256)
def _shape(ensemble_size: int, write_quorum: int, ack_quorum: int) -> Distribution:
    """Thousands of ledgers have the same one."""
    return Distribution(ensemble_size, write_quorum, ack_quorum)


def mask_of(slots: Collection[int]) -> int:
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return mask


def slots_in(mask: int) -> Iterator[int]:
    """The slots of a mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
