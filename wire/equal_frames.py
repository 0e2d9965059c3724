"""Frames of one size that end in an entry id and are alike before it, scanned many at a time."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

#: Frames of one size are unpacked this many at a time.
_CHUNK: Final = 64


class EqualFrames(NamedTuple):
    """Frames of one size that end in an entry id and are alike before it."""

    size: int
    one: struct.Struct
    many: struct.Struct

    @classmethod
    def of_size(cls, size: int) -> EqualFrames:
        row = f"{size - 8}sq"
        return cls(size, struct.Struct(">" + row), struct.Struct(">" + row * _CHUNK))


def scan_equal_frames(
    shape: EqualFrames, data: bytes, position: int, end: int
) -> tuple[list[int], int]:
    """The ids of frames that equal the one at `position` in everything else."""
    size = shape.size
    prefix = data[position : position + size - 8]
    entry_ids: list[int] = []
    unpack_many = shape.many.unpack_from
    # Looking at the neighbour first keeps frames of many ledgers in turn from unpacking 64 each.
    while position + _CHUNK * size <= end and data.startswith(prefix, position + size):
        values = unpack_many(data, position)
        if values[::2].count(prefix) != _CHUNK:
            break
        entry_ids += values[1::2]
        position += _CHUNK * size
    whole = end - (end - position) % size
    for found, entry_id in shape.one.iter_unpack(memoryview(data)[position:whole]):
        if found != prefix:
            break
        entry_ids.append(entry_id)
        position += size
    return entry_ids, position
