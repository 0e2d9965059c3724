"""A run's header for the entry log, its key and value for the index. Pure.

This is the CPU of the flush thread. With many ledgers a checkpoint is thousands of runs of a few
entries, so nothing here makes objects on the way. A run that is known only from its log is walked
entry by entry if its entries have gaps or different sizes; else ids come by subtraction, and record
sizes by four strided comparisons.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from bookie.core.runs import Run
from bookie.storage.entry_log_format import RunHeader, encode_run_header
from bookie.storage.index_format import run_key
from bookie.storage.indexed_run import (
    LENGTH_BYTES,
    RUN_BYTES_MAX,
    RUN_ENTRIES_MAX,
    RUN_SPAN,
    encode_plain_value,
    encode_run_value,
)
from wire.errors import CorruptionError

_LENGTH = struct.Struct(">I")
_ENTRY_ID = struct.Struct(">q")
_ENTRY_ID_OFFSET: Final = LENGTH_BYTES + 8  # behind the length and the ledger id


def build_run(
    run: Run, log_id: int, offset: int, ledger_id: int, sequence: int
) -> tuple[bytes, bytes, bytes]:
    """Header, key and value of a run at this place."""
    ids, starts, body = run.ids, run.starts, run.body
    count, first, last, size = len(ids), ids[0], ids[-1], len(body)
    assert first >= 0
    assert 0 < count <= last - first + 1 <= RUN_SPAN
    assert count <= RUN_ENTRIES_MAX
    assert size <= RUN_BYTES_MAX or count == 1
    crc = crc32c(body)
    header = encode_run_header(ledger_id, first, last, count, size, crc, log_id, sequence)
    key = run_key(ledger_id, last, log_id << 32 | offset)
    if type(starts) is range and last - first + 1 == count:
        return header, key, encode_plain_value(first, count, size, crc, sequence, starts.step)
    value = encode_run_value(
        first,
        count,
        size,
        crc,
        sequence,
        None if last - first + 1 == count else ids,
        starts.step if type(starts) is range else starts,
    )
    return header, key, value


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
        header.first,
        header.entry_count,
        header.body_bytes,
        header.body_crc,
        header.sequence,
        entry_ids,
        starts,
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
