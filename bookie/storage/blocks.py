"""Blocks: neighbouring records of one run, as readers get them from an entry log.

The bytes are believed as far as a reader can check cheaply: the first and the last record must be
what the index says. Whether each entry is what its writer wrote, the client's digest tells.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import sub
from typing import Final

from bookie.core.runs import PREFIX_BYTES, Run
from bookie.storage.indexed_run import IndexedRun
from wire.errors import CorruptionError

#: How far the next id of a sequential reader may be from the last one. A reader that asks each of
#: the bookies for its share leaves out what it has of the others.
GAP_MAX: Final = 8
#: Records of one size are cut this many at a time: 180 ns each, against 420 for slice by slice.
_CHUNK: Final = 64
_RECORD_HEAD: Final = struct.Struct(">Iqq")  # length, ledger id, entry id


class Block(Run):
    """Neighbouring records of one run in an entry log."""

    __slots__ = ("leads", "source")

    def __init__(
        self, ids: Sequence[int], starts: Sequence[int], body: bytes, source: IndexedRun
    ) -> None:
        super().__init__(ids, starts, body)
        self.source = source
        self.leads = False  # whether the next block is to be fetched when half of this one is read


def checked_block(data: bytes, ledger_id: int, run: IndexedRun, start: int, end: int) -> Block:
    """The records start..end-1 of a run, if the first and the last are what the index says."""
    ids, starts = run.part(start, end)
    if len(data) != starts[-1]:
        raise CorruptionError(f"{run} is cut short")
    for position in (0, len(ids) - 1):
        begin, behind = starts[position], starts[position + 1]
        size = behind - begin
        wanted = (size - PREFIX_BYTES, ledger_id, ids[position])
        if size < _RECORD_HEAD.size or _RECORD_HEAD.unpack_from(data, begin) != wanted:
            raise CorruptionError(
                f"entry log {run.log_id:08x}: entry {ledger_id}/{ids[position]} is not "
                f"where the index has it, at offset {run.body_offset + run.start(start)}"
            )
    return Block(ids, starts, data, run)


def rows_of(entry_ids: list[int]) -> Iterator[list[int]]:
    """The same ids, cut wherever one is not a little above the one before it."""
    if not entry_ids:
        return
    count = len(entry_ids)
    step = entry_ids[1] - entry_ids[0] if count > 1 else 1
    if 0 < step <= GAP_MAX and entry_ids == list(
        range(entry_ids[0], entry_ids[0] + count * step, step)
    ):
        yield entry_ids  # evenly, as nearly everybody asks
        return
    gaps = map(sub, entry_ids[1:], entry_ids)
    cuts = [at for at, gap in enumerate(gaps, 1) if not 0 < gap <= GAP_MAX]
    for start, end in pairwise((0, *cuts, count)):
        yield entry_ids[start:end]


def positions_in(ids: Sequence[int], row: list[int]) -> Sequence[int]:
    """Where the ids of a row stand among `ids`, up to the first that is not there.

    The row begins at `ids[0]` or behind it.
    """
    if type(ids) is range:
        first, count = ids[0], bisect_right(row, ids[-1])
        if row[count - 1] - row[0] == count - 1:  # without gaps, since they ascend
            return range(row[0] - first, row[0] - first + count)
        return [entry_id - first for entry_id in row[:count]]
    positions: list[int] = []
    at = 0
    for entry_id in row:
        at = bisect_left(ids, entry_id, at)
        if at == len(ids) or ids[at] != entry_id:
            break
        positions.append(at)
    return positions


def entries_at(block: Block, positions: Sequence[int]) -> list[bytes]:
    """The entries at these positions, which ascend."""
    starts, body = block.starts, block.body
    first, count = positions[0], len(positions)
    if type(starts) is not range:
        return [body[starts[at] + PREFIX_BYTES : starts[at + 1]] for at in positions]
    size = starts.step
    if positions[-1] - first >= count:  # with gaps
        places = [starts[at] for at in positions]
        return [body[place + PREFIX_BYTES : place + size] for place in places]
    entries: list[bytes] = []
    while count > 0:
        entries += _records(size, min(count, _CHUNK)).unpack_from(body, starts[first])
        first += _CHUNK
        count -= _CHUNK
    return entries


@lru_cache(maxsize=256)
def _records(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{PREFIX_BYTES}x{size - PREFIX_BYTES}s" * count)
