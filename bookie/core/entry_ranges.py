"""Entry ids as ranges: which entries of a ledger are here, however they came. Pure.

Striping and overlapping copies make the same ids turn up in pieces and more than once. Whoever
asks what a bookie holds wants each id once, in order, neighbours together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

#: First and last id, both inclusive; what `wire/availability.py` calls a run.
Range: TypeAlias = tuple[int, int]


def ranges_of(ids: Sequence[int]) -> Iterator[Range]:
    """Ascending ids as ranges. Without gaps, as is usual, they are not looked at one by one."""
    start, count = 0, len(ids)
    while start < count:
        # Ids ascend strictly, so `id - index` never falls: equal at the end, equal throughout.
        offset = ids[start] - start
        low, high = start + 1, count
        if ids[-1] - (count - 1) == offset:
            low = count
        while low < high:
            middle = (low + high) // 2
            if ids[middle] - middle == offset:
                low = middle + 1
            else:
                high = middle
        yield ids[start], ids[low - 1]
        start = low


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same ids, ascending, each once; ranges that touch or overlap become one."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def entry_count(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)
