"""How many copies the entries of a ledger have, from what its record says and bookies list.

Entries are never looked at one by one: those between two ends of gaps share their fate, up to
their place in the stripes, of which there are as many as slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ledger_client.core.distribution import Distribution, mask_of
from metadata.model import FragmentRange, LedgerMetadata
from wire.types import BookieId

Run: TypeAlias = tuple[int, int]  # first and last entry, inclusive

#: For a fragment that grows: every write set may be in use.
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries of one fragment, all of them with the same slots missing."""

    first: int
    last: int
    copies: int  # of the worst of them


def stretches(
    distribution: Distribution, *, first: int, last: int, missing: Mapping[int, Sequence[Run]]
) -> Iterator[Stretch]:
    """The copies of `first..last`, given what each slot lacks of the entries it should hold.

    A run may span entries that are not the slot's own; they do not count.
    """
    if first > last:
        return
    turns: dict[int, int] = {first: 0}  # entry to the slots whose state changes there
    for slot, runs in missing.items():
        for begin, end in runs:
            begin, end = max(begin, first), min(end, last)
            if begin <= end:
                turns[begin] = turns.get(begin, 0) ^ 1 << slot
                turns[end + 1] = turns.get(end + 1, 0) ^ 1 << slot
    starts = sorted(entry for entry in turns if entry <= last)
    absent = 0
    for index, start in enumerate(starts):
        absent ^= turns[start]
        end = starts[index + 1] - 1 if index + 1 < len(starts) else last
        masks = distribution.masks_of(first=start, last=end)
        copies = min((mask & ~absent).bit_count() for mask in masks)
        yield Stretch(start, end, copies)


def worst_copies(metadata: LedgerMetadata, present: Collection[BookieId]) -> int | None:
    """The copies of the entry that has fewest, if only these bookies were there.

    By the record alone, as if every bookie had what it should. None for a ledger without entries.
    The fragment of an open ledger that still grows counts as if it had entries of every kind.
    """
    distribution = Distribution.of(metadata)
    worst: int | None = None
    for found in metadata.ranges():
        copies = _copies_in(distribution, found, present)
        if copies is not None and (worst is None or copies < worst):
            worst = copies
    return worst


def sourceless_runs(metadata: LedgerMetadata, present: Collection[BookieId]) -> tuple[Run, ...]:
    """Entries of settled fragments that none of these bookies should have.

    With striping a run may span entries that somebody has: it names the fragment's share.
    """
    distribution = Distribution.of(metadata)
    found = []
    for settled in metadata.ranges():
        if settled.last_entry_id is not None:
            copies = _copies_in(distribution, settled, present)
            if copies == 0:
                found.append((settled.fragment.first_entry_id, settled.last_entry_id))
    return tuple(found)


def stores_entries_on(metadata: LedgerMetadata, bookie_id: BookieId) -> bool:
    """Whether some entry should be there. The growing fragment counts: there may be one soon."""
    distribution = Distribution.of(metadata)
    for found in metadata.ranges():
        for slot, bookie in enumerate(found.fragment.ensemble):
            if bookie != bookie_id:
                continue
            if found.last_entry_id is None:
                return True
            first, last = found.fragment.first_entry_id, found.last_entry_id
            if distribution.count_of(slot=slot, first=first, last=last):
                return True
    return False


def _copies_in(
    distribution: Distribution, found: FragmentRange, present: Collection[BookieId]
) -> int | None:
    first, last = found.fragment.first_entry_id, found.last_entry_id
    if last is None:
        last = first + _ENDLESS
    if first > last:
        return None
    here = mask_of([i for i, bookie in enumerate(found.fragment.ensemble) if bookie in present])
    return min((mask & here).bit_count() for mask in distribution.masks_of(first=first, last=last))
