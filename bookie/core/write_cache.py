"""Entries that are in the journal and not yet in an entry log, in small generations.

A generation collects entries until it is full, is sealed, flushed and dropped. Many small ones
return memory steadily and bound what a restart replays. Inside a generation each ledger has a part:
a dictionary for entries that came alone and a list of runs for those that came together.

Newest wins: a part never holds an id in both places with the older one in front.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from bookie.core.ledger import NOT_DIRTY, Ledger
from bookie.core.runs import Run, cut_out, join, run_of_frames, runs_of_entries
from wire.types import ID_MAX

#: Below this many entries per run the index costs more than the entries.
RUN_ITEMS_MIN: Final = 4
#: What an entry costs in the write cache beside its bytes: dictionary slot, id and object header.
ENTRY_OVERHEAD_BYTES: Final = 100
#: What a run costs, and each of its entries if their ids or sizes take a list.
RUN_OVERHEAD_BYTES: Final = 400
PLACE_BYTES: Final = 12
#: Fewer adds than this are kept one by one, unless there are runs that they go on from.
FRAMES_MIN: Final = 8


class Part:
    """What one generation holds of one ledger."""

    __slots__ = ("_firsts", "_ordered", "entries", "generation", "ledger", "low", "runs")

    def __init__(self, ledger: Ledger, generation: int) -> None:
        self.ledger = ledger
        self.generation = generation
        self.low = ID_MAX  # no id here is below it
        self.entries: dict[int, bytes] = {}
        self.runs: list[Run] = []
        self._firsts: list[int] = []
        self._ordered = True  # runs ascend and do not overlap: a look-up may bisect

    def add_run(self, run: Run) -> None:
        if self.runs and run.first <= self.runs[-1].last:
            self._ordered = False
        if self.entries:
            for entry_id in self.entries.keys() & set(run.ids):
                del self.entries[entry_id]
        self.runs.append(run)
        self._firsts.append(run.first)
        self.low = min(self.low, run.first)

    def add_frames(self, ids: Sequence[int], data: bytes, bounds: Sequence[int]) -> int:
        """Adds as they were received, ascending by id: frame i is data[bounds[i] : bounds[i + 1]].

        What that takes of the cache is the answer.
        """
        size, count = bounds[-1] - bounds[0], len(ids)
        if count < FRAMES_MIN and not self.runs:
            self.add_entries(ids, cut_out(data, bounds))
            return size + count * ENTRY_OVERHEAD_BYTES
        self.add_run(run_of_frames(ids, data, bounds))
        return size + RUN_OVERHEAD_BYTES + count * PLACE_BYTES

    def add_entries(self, ids: Sequence[int], entries: Iterable[bytes]) -> None:
        """Entries that came alone, ascending by id."""
        self.entries.update(zip(ids, entries, strict=True))
        if ids[0] < self.low:
            self.low = ids[0]

    def find(self, entry_id: int) -> bytes | None:
        entry = self.entries.get(entry_id)
        if entry is not None or not self.runs:
            return entry
        run = self.find_run(entry_id)
        return None if run is None else run.entry(entry_id)

    def find_run(self, entry_id: int) -> Run | None:
        """The newest run that holds the entry."""
        if self._ordered:
            at = bisect_right(self._firsts, entry_id) - 1
            if at < 0 or self.runs[at].position(entry_id) < 0:
                return None
            return self.runs[at]
        for run in reversed(self.runs):
            if run.position(entry_id) >= 0:
                return run
        return None

    @property
    def last_entry(self) -> int:
        """The highest id here. A part is never empty when somebody asks."""
        return max(chain(self.entries, (run.last for run in self.runs)))

    def entry_ids(self) -> Iterator[int]:
        return chain(self.entries, *(run.ids for run in self.runs))

    def runs_to_write(self) -> Iterable[Run]:
        """Everything as runs within the limits of a log, older copies of an id first."""
        if not self.runs:
            return runs_of_entries(self.entries)
        if not self.entries:
            return join(self.runs)
        if max(self.entries) < min(self._firsts):  # so began what then came in greater numbers
            return join(chain(runs_of_entries(self.entries), self.runs))
        return chain(join(self.runs), runs_of_entries(self.entries))


class Generation:
    """What one checkpoint will write."""

    __slots__ = ("bytes", "changed", "detached", "items", "number", "opened_at", "parts")

    def __init__(self, number: int, opened_at: float) -> None:
        self.number = number
        self.opened_at = opened_at
        self.bytes = 0
        self.items = 0  # entries and batches
        self.parts: list[Part] = []
        self.detached = 0  # how many parts their ledgers no longer know
        self.changed: set[Ledger] = set()  # ledgers whose state this checkpoint must write

    def __bool__(self) -> bool:
        return bool(self.parts or self.changed)


class WriteCache:
    """The open generation and the sealed ones, oldest first. Owned by the event loop."""

    def __init__(self, *, first_generation: int, now: float) -> None:
        self.active = Generation(first_generation, now)
        self.sealed: deque[Generation] = deque()
        self._dying: deque[Part] = deque()
        self.bytes = 0  # of all generations not yet dropped

    def part(self, ledger: Ledger) -> Part:
        """The ledger's part in the open generation.

        Sealing leaves parts where they are: a ledger's newest one becomes an older one only when
        the next begins. Ten thousand of them at once would stall the loop.
        """
        part = ledger.active
        number = self.active.number
        if part is None or part.generation != number:
            if part is not None:
                ledger.sealed.append(part)
            ledger.touched = True
            part = ledger.active = Part(ledger, number)
            self.active.parts.append(part)
        return part

    def grow(self, size: int, items: int) -> None:
        """Account for what was put into a part; called once per batch."""
        self.active.bytes += size
        self.active.items += items
        self.bytes += size

    def is_due(self, *, bytes_min: int, bytes_max: int) -> bool:
        """Whether the open generation should be sealed.

        Many ledgers make short runs, and a run costs as much as several entries: such a generation
        may grow further, so that its runs do.
        """
        active = self.active
        if active.bytes < bytes_min:
            return False
        return active.bytes >= bytes_max or active.items >= RUN_ITEMS_MIN * len(active.parts)

    def change(self, ledger: Ledger) -> None:
        """The ledger's state is newer than what the index holds."""
        ledger.dirty = self.active.number
        self.active.changed.add(ledger)

    def seal(self, now: float) -> Generation:
        """Close the open generation and begin the next one."""
        generation = self.active
        self.sealed.append(generation)
        self.active = Generation(generation.number + 1, now)
        return generation

    def detach_some(self, count: int) -> bool:
        """The oldest generation is checkpointed, so readers find its entries in the index: take up
        to `count` of its parts from their ledgers. Whether that was the last of them."""
        oldest = self.sealed[0]
        start = oldest.detached
        oldest.detached = min(start + count, len(oldest.parts))
        for part in oldest.parts[start : oldest.detached]:
            ledger = part.ledger
            if ledger.active is part:
                ledger.active = None
            else:
                ledger.sealed.remove(part)
        return oldest.detached == len(oldest.parts)

    def drop(self, generation: Generation) -> None:
        """Let go of the oldest generation, which is checkpointed."""
        assert self.sealed[0] is generation, "generations are checkpointed in order"
        self.detach_some(len(generation.parts))
        self.sealed.popleft()
        self.bytes -= generation.bytes
        for ledger in generation.changed:
            if ledger.dirty == generation.number:
                ledger.dirty = NOT_DIRTY
        self._dying.extend(generation.parts)
        generation.parts = []

    def free_some(self, count: int) -> bool:
        """Free up to `count` dropped entries; whether more are left. Freeing all at once stalls."""
        while self._dying and count > 0:
            entries, runs = self._dying[0].entries, self._dying[0].runs
            if len(entries) + len(runs) <= count:
                count -= len(entries) + len(runs) + 1
                self._dying.popleft()
            elif runs:
                some = min(count, len(runs))
                del runs[-some:]
                count -= some
            else:
                for entry_id in list(islice(entries, count)):
                    del entries[entry_id]
                count = 0
        return bool(self._dying)


def lowest(ledger: Ledger) -> int:
    """No id of this ledger below it is in the write cache."""
    low = ID_MAX if ledger.active is None else ledger.active.low
    return min(low, *[part.low for part in ledger.sealed]) if ledger.sealed else low


def find(ledger: Ledger, entry_id: int) -> bytes | None:
    """An entry of the write cache, newest generation first."""
    if ledger.active is not None and (entry := ledger.active.find(entry_id)) is not None:
        return entry
    for part in reversed(ledger.sealed):
        if (entry := part.find(entry_id)) is not None:
            return entry
    return None
