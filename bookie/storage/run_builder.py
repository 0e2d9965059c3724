"""Entries into a run: its header for the entry log, its key and value for the index. Pure.

This is the CPU of the flush thread, so the work is per run wherever it can be: one CRC, ids by
subtraction, record sizes by four strided comparisons. Only a run whose entries have gaps or
different sizes is walked entry by entry, and only if the caller does not know the places.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from bookie.storage.entry_log_format import RunHeader
from bookie.storage.index_format import location_of, run_key
from bookie.storage.indexed_run import (
    LENGTH_BYTES,
    RUN_BYTES_MAX,
    RUN_ENTRIES_MAX,
    RUN_SPAN,
    encode_run_value,
)
from wire.errors import CorruptionError

#: More pieces than this are joined: a CRC and a comparison per piece would cost more than a copy.
_PIECES_MAX: Final = 8

_LENGTH = struct.Struct(">I")
_ENTRY_ID = struct.Struct(">q")
_ENTRY_ID_OFFSET: Final = LENGTH_BYTES + 8  # behind the length and the ledger id


class BuiltRun(NamedTuple):
    header: RunHeader
    body: Sequence[bytes | memoryview]  # to be written behind the header
    key: bytes
    value: bytes


def build_run(
    pieces: Sequence[bytes | memoryview],
    *,
    log_id: int,
    offset: int,
    ledger_id: int,
    first: int,
    last: int,
    count: int,
    sequence: int,
    entry_ids: Sequence[int] | None = None,
    starts: Sequence[int] | None = None,
) -> BuiltRun:
    """The run that these pieces make at this place.

    Every piece consists of whole records (length word and entry), in ascending order of id.
    `entry_ids` and `starts` (where each record begins, and where the body ends) are looked up
    in the records when they are needed and not given; `starts` may be a range.
    """
    assert 0 <= first <= last
    assert 0 < count <= RUN_ENTRIES_MAX
    assert count <= last - first + 1 <= RUN_SPAN
    if len(pieces) > _PIECES_MAX:
        pieces = [b"".join(pieces)]
    body_bytes = body_crc = 0
    for piece in pieces:
        body_crc = crc32c(piece, body_crc)
        body_bytes += len(piece)
    assert body_bytes <= RUN_BYTES_MAX or count == 1
    is_dense = last - first + 1 == count
    places: Sequence[int] | int
    if starts is None:
        places = _uniform_record_bytes(pieces, body_bytes, count)
    else:  # a range says that all records have one size
        places = starts.step if type(starts) is range else starts
    if not places or (not is_dense and entry_ids is None):
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        places = places or record_starts(body, count)
        if not is_dense and entry_ids is None:
            entry_ids = _entry_ids(body, places, count)
    header = RunHeader(
        offset, ledger_id, first, last, count, body_bytes, body_crc, log_id, sequence
    )
    value = encode_run_value(
        first=first,
        count=count,
        body_bytes=body_bytes,
        body_crc=body_crc,
        sequence=sequence,
        entry_ids=None if is_dense else entry_ids,
        starts=places,
    )
    key = run_key(ledger_id, last, location_of(log_id=log_id, offset=offset))
    return BuiltRun(header, pieces, key, value)


def rebuild_value(header: RunHeader, body: bytes | memoryview) -> bytes:
    """The index value of a run that is known only from its log. The body's CRC was checked.

    The sizes and ids of the records are in the body alone, so a rebuild reads it: all of it.
    """
    starts: Sequence[int] | int = _uniform_record_bytes([body], len(body), header.entry_count)
    starts = starts or record_starts(body, header.entry_count)
    entry_ids = None
    if header.last - header.first + 1 != header.entry_count:
        entry_ids = _entry_ids(body, starts, header.entry_count)
        found = entry_ids[0], entry_ids[-1]
        if found != (header.first, header.last):
            raise CorruptionError(
                f"run of entries {header.first}..{header.last} holds {found[0]}..{found[1]}"
            )
    return encode_run_value(
        first=header.first,
        count=header.entry_count,
        body_bytes=header.body_bytes,
        body_crc=header.body_crc,
        sequence=header.sequence,
        entry_ids=entry_ids,
        starts=starts,
    )


def record_starts(body: bytes | memoryview, count: int) -> Sequence[int]:
    """Where each record begins and, at the end, where the body does; it must fit exactly."""
    starts = array("I", [0])
    position = 0
    length_at = _LENGTH.unpack_from
    try:
        for _ in range(count):
            position += LENGTH_BYTES + length_at(body, position)[0]
            starts.append(position)
    except (struct.error, OverflowError):
        position = -1
    if position != len(body):
        raise CorruptionError(f"{len(body)} bytes are not {count} records behind their lengths")
    return starts


def _uniform_record_bytes(pieces: Sequence[bytes | memoryview], body_bytes: int, count: int) -> int:
    """The size of every record, 0 if they differ.

    If the first record's size divides the body, and at each multiple of it there is the same
    length word, then these are the records: each one begins where its predecessor ends.
    """
    size, rest = divmod(body_bytes, count)
    if rest or size < LENGTH_BYTES:
        return 0
    length = _LENGTH.pack(size - LENGTH_BYTES)
    for piece in pieces:
        records, rest = divmod(len(piece), size)
        if rest or any(piece[i::size] != length[i : i + 1] * records for i in range(4)):
            return 0
    return size


def _entry_ids(body: bytes | memoryview, starts: Sequence[int] | int, count: int) -> list[int]:
    if isinstance(starts, int):
        starts = range(0, starts * count, starts)
    id_at = _ENTRY_ID.unpack_from
    try:
        return [id_at(body, starts[n] + _ENTRY_ID_OFFSET)[0] for n in range(count)]
    except struct.error:
        raise CorruptionError("a record is too short to be an entry") from None
