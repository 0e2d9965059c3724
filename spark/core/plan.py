"""From ledgers to partitions: cut by bytes and entry range, packed in order, spread over bookies.

A partition is what one task reads. It should be big enough that the price of a task (tens of
milliseconds) does not show, small enough that all tasks have something to do, and it should read
each bookie in long runs. A ledger costs something to begin, so many small ones are packed as if
each were larger by `open_cost`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

P = TypeVar("P")

#: A cut moves to an ensemble change that is at most so far off, as a share of what was wanted.
_NEAR: Final = 4
#: What beginning a ledger may count for, as a share of a partition.
_COST: Final = 4
#: A rest that is smaller than this share of what was wanted is not left to another partition.
_CRUMB: Final = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """Entries `first..last` of one ledger, all of which are to be read."""

    ledger_id: int
    first: int
    last: int
    bytes: int  # of these entries, estimated
    ensemble_size: int = 1  # of a striped ledger; 1 where every bookie holds every entry
    fragment_starts: tuple[int, ...] = ()  # first entries of fragments, ascending

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def entry_bytes(self) -> int:
        """The average size of an entry, at least 1."""
        return max(1, self.bytes // self.count)


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an extent that one task reads: extent number `index`, entries `first..last`."""

    index: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Aim:
    """How large a partition should be, and what one more ledger in it counts for."""

    goal: int
    open_cost: int


def aim(
    extents: Sequence[Extent],
    *,
    target: int,
    open_cost: int,
    parallelism: int,
    min_partitions: int | None = None,
) -> Aim:
    """The size to aim at.

    Not above the target; smaller if there would be fewer partitions than tasks that may run at
    once, but never so small that beginning a ledger outweighs reading it, unless the caller
    insists on a number of partitions. What a ledger costs is at most a quarter of a partition: were
    it all of it, no partition would have room for entries.
    """
    total = sum(extent.bytes for extent in extents)
    cost = min(open_cost, target // _COST)
    goal = target
    wanted = min_partitions or parallelism
    for _ in range(4):  # a smaller goal lowers the cost, which lowers the goal
        goal = min(target, -(-(total + cost * len(extents)) // wanted))
        if min_partitions is None:
            goal = max(goal, min(target, 2 * open_cost))
        cost = min(cost, goal // _COST)
    return Aim(goal=max(1, goal), open_cost=cost)


def split(extents: Sequence[Extent], wanted: Aim) -> Iterator[list[Piece]]:
    """Partitions in the order of the extents; together they hold every entry once.

    Next-fit: a partition takes what comes until it is full, so its entries are neighbours. A
    ledger that is cut is cut at an ensemble change if one is near, else at the end of a stripe,
    and each cut ends its partition: no partition has two pieces of one ledger.
    """
    pieces: list[Piece] = []
    room = wanted.goal
    for index, extent in enumerate(extents):
        room -= wanted.open_cost
        first = extent.first
        while first <= extent.last:
            left = extent.entry_bytes * (extent.last - first + 1)
            if pieces and room < min(left, max(1, wanted.goal // _CRUMB)):
                yield pieces  # what still fits would be a crumb of this ledger
                pieces, room = [], wanted.goal - wanted.open_cost
            last = _end(extent, first, max(extent.ensemble_size, room // extent.entry_bytes))
            pieces.append(Piece(index, first, last))
            room -= extent.entry_bytes * (last - first + 1)
            first = last + 1
            if first <= extent.last or room <= 0:
                yield pieces
                pieces, room = [], wanted.goal - wanted.open_cost * (first <= extent.last)
    if pieces:
        yield pieces


def _end(extent: Extent, first: int, count: int) -> int:
    """The last entry of a piece that begins at `first` and should have about `count` entries."""
    end = first + count - 1
    if end >= extent.last:
        return extent.last
    near = [
        start - 1
        for start in extent.fragment_starts
        if first < start <= extent.last and abs(start - 1 - end) <= count // _NEAR
    ]
    if near:
        end = min(near, key=lambda last: abs(last - end))
    else:
        end = max(first, end - (end + 1 - extent.first) % extent.ensemble_size)
    if extent.last - end < max(1, count // _CRUMB):
        return extent.last
    return end


def spread(partitions: Sequence[P], homes: Sequence[Hashable]) -> list[P]:
    """The same partitions so that neighbours begin on different bookies, as far as possible.

    Spark starts tasks in the order of the list, so those that run at once are neighbours.
    `homes` says where each begins. One of each home in turn, the fullest first, so that none is
    left over for the end.
    """
    queues: dict[Hashable, deque[P]] = defaultdict(deque)
    for partition, home in zip(partitions, homes, strict=True):
        queues[home].append(partition)
    order = sorted(queues.values(), key=len, reverse=True)
    found: list[P] = []
    while order:
        found += [queue.popleft() for queue in order]
        order = [queue for queue in order if queue]
    return found


def replica_slot(ledger_id: int, run: int, ensemble_size: int) -> int:
    """The slot to begin a run of entries with, where every bookie holds every entry.

    Drawn from ledger and run, so that tasks spread without knowing of each other.
    """
    # Fibonacci hashing: neighbouring ledgers and runs land far apart, and equally in every process.
    mixed = (ledger_id * 0x9E3779B97F4A7C15 + run * 0xC2B2AE3D27D4EB4F) & 0xFFFFFFFFFFFFFFFF
    return (mixed >> 32) % ensemble_size


def moved_on(slots: Sequence[int], attempt: int) -> list[int]:
    """Another first choice for a task that is tried again: its replica may be what failed it."""
    begin = attempt % len(slots)
    return [*slots[begin:], *slots[:begin]]
