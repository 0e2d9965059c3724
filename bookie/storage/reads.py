"""Reading entries: write cache, blocks in memory, index, entry log, in that order.

What is in memory, or in the page cache, is answered at once, in the event loop. What would have
to wait for the disk comes back as a `Cold`: a reader thread fetches it into the read cache, and
the same call then succeeds. Whole blocks are read for sequential readers only; a random reader
gets its one entry.

"No such entry" is a promise, and is said only when the index proved it. An entry that the index
knows and the log cannot deliver is tried in its older copies, and is an I/O error when all of
them fail.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from bookie.core.ledger import Ledger
from bookie.core.read_cache import BLOCK_BYTES_MAX, BlockKey, ReadCache
from bookie.core.runs import Run, run_of
from bookie.core.write_cache import Part, find, lowest
from bookie.storage.blocks import (
    GAP_MAX,
    Block,
    checked_block,
    entries_at,
    positions_in,
    rows_of,
)
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.ledger_directory import LedgerDirectory
from wire.errors import LedgerError, Status
from wire.types import LAST_ENTRY, NO_ENTRY

#: How many unreadable places are remembered, and for how long they are not tried again.
_BAD_PLACES_MAX: Final = 1024
_BAD_SECONDS: Final = 60.0
#: Blocks that are fetched before anybody waits for them, at one time.
AHEAD_MAX: Final = 16


class Cold(NamedTuple):
    """A piece of an entry log that must be fetched before the answer is known."""

    ledger: Ledger
    run: IndexedRun
    start: int  # positions of records in the run
    end: int
    ahead: bool = False  # nobody waits for it yet

    def count_held(self, row: list[int]) -> int:
        """How many ids of a row it holds, up to the first that it does not.

        One at least: it was made for the first of them, which may stand for another (LAST_ENTRY).
        """
        ids, _ = self.run.part(self.start, self.end)
        return len(positions_in(ids, row)) if row[0] >= ids[0] else 1


class Batch(NamedTuple):
    """Consecutive entries as rows of records."""

    pieces: list[bytes]
    entry_count: int


class Reads:
    """Owned by the event loop, but for `fetch`, which any thread may run."""

    def __init__(
        self,
        directories: Sequence[LedgerDirectory],
        *,
        cache_bytes: int,
        clock: Callable[[], float],
        on_damage: Callable[[int, IndexedRun, Exception], None],
        prefetch: Callable[[Cold], None] = lambda cold: None,
    ) -> None:
        """`prefetch` has a thread `fetch` a piece, and the loop `put` it."""
        self._directories = directories
        self._prefetch = prefetch
        self._fetching_ahead = 0
        self._clock = clock
        self._on_damage = on_damage  # directory, run, what was wrong
        self._bad: OrderedDict[tuple[int, int], float] = OrderedDict()
        self.cache: ReadCache[Block] = ReadCache(cache_bytes)
        self.entries_read = 0
        self.errors = 0

    def read(
        self, ledger: Ledger, entry_id: int, *, sequential: bool = False
    ) -> bytes | Status | Cold:
        """One entry, by id; LAST_ENTRY asks for the one with the highest id.

        `sequential`: its neighbours are wanted, too, so a whole block is worth fetching.
        """
        if entry_id == LAST_ENTRY:
            entry_id = self.last_entry(ledger)
            if ledger.limbo:
                return Status.UNKNOWN_LEDGER_STATE
        if entry_id < 0 or not ledger.exists:
            return ledger.absent()
        entry = find(ledger, entry_id)
        if entry is None:
            sequential = sequential or 0 < entry_id - ledger.last_read <= GAP_MAX
            found = self._block(ledger, entry_id, sequential=sequential)
            if not isinstance(found, Run):
                return found
            position = found.position(entry_id)
            entry = found.entry_at(position)
            if found.leads:
                self._read_ahead(ledger, found, position)
        ledger.last_read = entry_id
        self.entries_read += 1
        return entry

    def read_run(self, ledger: Ledger, entry_ids: Sequence[int]) -> list[bytes | Status | Cold]:
        """Many entries, each with its own answer; those of one block are cut out of it at once."""
        answers: list[bytes | Status | Cold] = []
        for row in rows_of(list(entry_ids)):
            self._read_row(ledger, row, answers)
        return answers

    def _read_row(
        self, ledger: Ledger, row: list[int], answers: list[bytes | Status | Cold]
    ) -> None:
        """Entries whose ids ascend, with small gaps at most."""
        low = lowest(ledger) if ledger.exists else 0  # below it, the log has the newest copy
        sequential = len(row) > 1
        at = 0
        while at < len(row):
            block = self.cache.latest(ledger.id, row[at])
            if block is None or row[at] >= low:
                answer = self.read(ledger, row[at], sequential=sequential)
                answers.append(answer)
                if type(answer) is Cold and row[at] < low:
                    # Whoever has to wait for a block has to wait for all that is wanted of it.
                    more = answer.count_held(row[at : bisect_left(row, low)]) - 1
                    answers += [answer] * more
                    at += more
                at += 1
                continue
            positions = positions_in(block.ids, row[at : bisect_left(row, low)])
            answers += entries_at(block, positions)
            at += len(positions)
            if block.leads:
                self._read_ahead(ledger, block, positions[-1] + 1)
            ledger.last_read = row[at - 1]
            self.entries_read += len(positions)

    def read_batch(
        self, ledger: Ledger, first: int, *, count_max: int, bytes_max: int
    ) -> Batch | Status | Cold:
        """Consecutive entries from `first` on, as many as the limits allow, at least one.

        Ends early at the first entry that is not here or not readable: a shorter batch is always
        legal, and proves nothing about what it lacks.
        """
        if first < 0 or not ledger.exists:
            return ledger.absent()
        pieces: list[bytes] = []
        entry_id = first
        room = bytes_max
        count_left = count_max if count_max > 0 else 2**31
        while count_left > 0:
            found = self._neighbours(ledger, entry_id)
            if not isinstance(found, Run):
                if entry_id == first:
                    return found
                break
            position = found.position(entry_id)
            count = min(found.neighbours(position), count_left)
            starts = found.starts
            begin = starts[position]
            if starts[position + count] - begin > room:
                count = _fitting(starts, position, count, begin + room)
                if entry_id == first:
                    count = max(count, 1)
            if count == 0:
                break
            piece = found.body[begin : starts[position + count]]
            pieces.append(piece)
            if type(found) is Block and found.leads:
                self._read_ahead(ledger, found, position + count)
            room -= len(piece)
            entry_id += count
            count_left -= count
        ledger.last_read = entry_id - 1
        self.entries_read += entry_id - first
        return Batch(pieces, entry_id - first)

    def last_entry(self, ledger: Ledger) -> int:
        """The highest entry id here, NO_ENTRY if there is none."""
        if not ledger.loaded:
            stored = self._directories[ledger.home].index.last_entry_id(ledger.id)
            return max(stored, ledger.last_entry)
        return ledger.last_entry

    def lac(self, ledger: Ledger) -> int | Status | Cold:
        """The highest LAC known here. After a restart it is found in the last stored entry."""
        if ledger.loaded:
            return ledger.lac
        index = self._directories[ledger.home].index
        stored = index.last_entry_id(ledger.id)
        if stored != NO_ENTRY:
            found = self._block(ledger, stored, sequential=False)
            if not isinstance(found, Run):
                return found
            entry = found.entry_at(found.position(stored))
            ledger.raise_lac(int.from_bytes(entry[16:24], "big", signed=True))
        if ledger.explicit_lac is not None:
            ledger.raise_lac(int.from_bytes(ledger.explicit_lac[8:16], "big", signed=True))
        ledger.last_entry = max(ledger.last_entry, stored)
        ledger.loaded = True
        return ledger.lac

    def fetch(self, cold: Cold) -> Block | Exception:
        """Read a cold piece; for a reader thread."""
        directory = self._directories[cold.ledger.home]
        try:
            data = directory.read(cold.run, cold.start, cold.end)
            block = checked_block(data, cold.ledger.id, cold.run, cold.start, cold.end)
        except (OSError, LedgerError) as error:
            return error
        block.leads = True  # a reader that had to wait once will have to wait again
        return block

    def put(self, cold: Cold, found: Block | Exception) -> None:
        """Take what `fetch` brought, unless its run has been deleted or moved meanwhile."""
        if cold.ahead:
            self._fetching_ahead -= 1
        if isinstance(found, Block):
            if self._is_alive(cold):
                self.cache.put(_key(cold), found)
                if not cold.ahead:
                    self.cache.remember(cold.ledger.id, found)
        elif not cold.ahead:  # whoever asks for it will hear of it
            # Also if the file is gone: moved runs are looked up anew, and found elsewhere.
            self._blame(cold.ledger, cold.run, found)

    def _read_ahead(self, ledger: Ledger, block: Block, position: int) -> None:
        """Once half of a block that had to be waited for is read, have the next one fetched."""
        if position * 2 < len(block.ids) or self._fetching_ahead >= AHEAD_MAX:
            return
        block.leads = False
        run, behind = block.source, block.last + 1
        if behind > run.last:
            index = self._directories[ledger.home].index
            try:
                runs = index.runs_from(ledger.id, behind, count_max=1)
            except LedgerError:  # likewise
                return
            if not runs:
                return
            run = runs[0]
        cold = _piece(ledger, run, run.position_from(behind), sequential=True)
        size = run.start(cold.end) - run.start(cold.start)
        if self.cache.takes(_key(cold), size) and not (run.is_damaged or self._is_bad(ledger, run)):
            self._fetching_ahead += 1
            self._prefetch(cold._replace(ahead=True))

    def _neighbours(self, ledger: Ledger, entry_id: int) -> Run | Status | Cold:
        """A run that holds the entry and, if it can, entries behind it."""
        for part in _parts(ledger):
            if entry_id in part.entries:
                ids = [entry_id]
                entries = [part.entries[entry_id]]
                size = len(entries[0])
                following = entry_id + 1
                while size < BLOCK_BYTES_MAX and following in part.entries:
                    entries.append(part.entries[following])
                    ids.append(following)
                    size += len(entries[-1])
                    following += 1
                return run_of(ids, entries)
            run = part.find_run(entry_id) if part.runs else None
            if run is not None:
                return run
        return self._block(ledger, entry_id, sequential=True)

    def _block(
        self, ledger: Ledger, entry_id: int, *, sequential: bool, again: bool = False
    ) -> Block | Status | Cold:
        """The block of an entry log that holds the entry."""
        block = self.cache.last(ledger.id)
        if block is not None and block.position(entry_id) >= 0:
            self.cache.hits += 1
            return block
        directory = self._directories[ledger.home]
        index = directory.index
        try:
            run: IndexedRun | None
            if block is not None and not again and block.source.position(entry_id) >= 0:
                run = block.source  # the next block of the same run: no need to look it up
            else:
                run = index.find_run(ledger.id, entry_id)
            if run is None:
                return ledger.absent()
            runs = [run]
            if run.is_damaged or self._is_bad(ledger, run):
                # Any copy will do, and the first one met is the cheapest; now look at all of them.
                runs = index.find_runs(ledger.id, entry_id)
        except LedgerError:
            self.errors += 1
            return Status.IO_ERROR
        for run in runs:
            if run.is_damaged or self._is_bad(ledger, run):
                continue
            cold = _piece(ledger, run, run.position(entry_id), sequential=sequential)
            block = self.cache.get(_key(cold))
            if block is None:
                try:
                    data = directory.read_cached(run, cold.start, cold.end)
                    if data is None:
                        return cold
                    block = checked_block(data, cold.ledger.id, cold.run, cold.start, cold.end)
                except (OSError, LedgerError) as error:
                    # A file that is gone: compaction moved the run since the look-up. Ask again.
                    is_moved = isinstance(error, FileNotFoundError) and not again
                    if not is_moved:
                        self._blame(ledger, run, error)
                    if is_moved or len(runs) == 1:
                        return self._block(ledger, entry_id, sequential=sequential, again=True)
                    continue
                if sequential:
                    self.cache.put(_key(cold), block)
            self.cache.remember(ledger.id, block)
            return block
        self.errors += 1
        return Status.IO_ERROR

    def _is_alive(self, cold: Cold) -> bool:
        try:
            return self._directories[cold.ledger.home].index.contains(cold.run.key)
        except LedgerError:  # whoever asks again will hear of it
            return False

    def _is_bad(self, ledger: Ledger, run: IndexedRun) -> bool:
        until = self._bad.get((ledger.home, run.location))
        return until is not None and self._clock() < until

    def _blame(self, ledger: Ledger, run: IndexedRun, error: Exception) -> None:
        self.errors += 1
        self._bad[ledger.home, run.location] = self._clock() + _BAD_SECONDS
        if len(self._bad) > _BAD_PLACES_MAX:
            self._bad.popitem(last=False)
        self._on_damage(ledger.home, run, error)


def _parts(ledger: Ledger) -> Iterator[Part]:
    if ledger.active is not None:
        yield ledger.active
    yield from reversed(ledger.sealed)


def _piece(ledger: Ledger, run: IndexedRun, position: int, *, sequential: bool) -> Cold:
    """The block of a run that holds the record at `position`, or just the record."""
    if not sequential:
        return Cold(ledger, run, position, position + 1)
    if run.body_bytes <= BLOCK_BYTES_MAX:
        return Cold(ledger, run, 0, run.entry_count)
    # Blocks are cut at fixed record positions, so that every reader cuts the same ones, and into
    # as many records each, so that none is hardly worth its look-up.
    step_max = max(1, run.entry_count * BLOCK_BYTES_MAX // run.body_bytes)
    block_count = -(-run.entry_count // step_max)
    step = -(-run.entry_count // block_count)
    start = position - position % step
    return Cold(ledger, run, start, min(start + step, run.entry_count))


def _key(cold: Cold) -> BlockKey:
    return cold.ledger.home, cold.run.location, cold.start << 16 | cold.end


def _fitting(starts: Sequence[int], position: int, count: int, limit: int) -> int:
    """How many records from `position` on end at or before `limit`."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        if starts[position + middle] <= limit:
            low = middle
        else:
            high = middle - 1
    return low
