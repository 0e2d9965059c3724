"""Blocks: neighbouring records of one run, as readers get them from an entry log.

The bytes are believed as far as a reader can check cheaply: the first and the last record must be
what the index says. Whether each entry is what its writer wrote, the client's digest tells.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from bookie.core.runs import PREFIX_BYTES, Run
from bookie.storage.indexed_run import IndexedRun
from wire.errors import CorruptionError

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


def are_neighbours(entry_ids: list[int]) -> bool:
    """Whether each id is the one before it and one."""
    first, count = entry_ids[0], len(entry_ids)
    return entry_ids[-1] - first == count - 1 and entry_ids == list(range(first, first + count))


def entries_at(block: Block, position: int, count: int) -> list[bytes]:
    """The entries at position..position+count-1."""
    starts, body = block.starts, block.body
    entries: list[bytes] = []
    if type(starts) is not range:
        borders = pairwise(starts[position : position + count + 1])
        return [body[start + PREFIX_BYTES : end] for start, end in borders]
    size = starts.step
    while count > 0:
        entries += _records(size, min(count, _CHUNK)).unpack_from(body, starts[position])
        position += _CHUNK
        count -= _CHUNK
    return entries


@lru_cache(maxsize=256)
def _records(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{PREFIX_BYTES}x{size - PREFIX_BYTES}s" * count)
