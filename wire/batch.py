"""ADD_BATCH: many entries of one ledger as one frame, between our own client and bookie.

Layout and rules are in docs/formats/batch-frames.md. The body is a run of records, each `u32 size |
entry`, which is also what entry logs keep and what a batch read answers, so the same bytes travel
from the client's buffer to the reader's without being cut up.

A record run is described by `bounds`: record `i` is `data[bounds[i] : bounds[i + 1]]` and its entry
begins four bytes into it. When all records have one size, `bounds` is a `range` and costs nothing.

Measured per entry of 100 bytes, batches of hundreds: one `unpack_from` per record 190 ns, an
`iter_unpack` with the record size guessed 99, one huge `unpack` 77 (its format differs with every
count and size, so it must be compiled anew), comparing whole columns of bytes 57. Hence: columns
when all sizes agree, else the plain loop.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from wire.entry import ENTRY_HEADER_BYTES
from wire.errors import BadRequestError, ProtocolError, VersionError
from wire.messages import AddBatchRequest
from wire.types import Flag, LedgerId, Opcode

BATCH_FORMAT: Final = 1
#: Everything of a request before its records, with the length of the frame.
BATCH_HEAD_BYTES: Final = 68
RECORD_HEAD_BYTES: Final = 4

_HEAD: Final = struct.Struct(">IBBH20sQHHqqqI")
_FIXED: Final = struct.Struct(">20sQHHqqqI")  # the same from the master key on
_FIXED_OFFSET: Final = 4  # of the payload: behind version, opcode and flags
_RECORD: Final = struct.Struct(">Iqq")  # size, ledger id, entry id
_SIZE: Final = struct.Struct(">I")
_LAC: Final = struct.Struct(">q")
_LAC_OFFSET: Final = RECORD_HEAD_BYTES + 16

#: Below this many records the plain loop is done before the columns are set up.
_COLUMNS_COUNT_MIN: Final = 24


class Walk(NamedTuple):
    """The records of an accepted batch: where they are and which entries they hold."""

    entry_ids: Sequence[int]  # strictly ascending
    bounds: Sequence[int]
    lac: int  # of the last entry; within a batch the LAC never falls


def encode_batch(
    records: bytes,
    *,
    request_id: int,
    ledger_id: int,
    first_entry_id: int,
    last_entry_id: int,
    count: int,
    master_key: bytes,
    flags: int = 0,
    format: int = BATCH_FORMAT,
) -> bytes:
    """The whole frame around records that are already joined."""
    head = batch_head(
        len(records), request_id, ledger_id, first_entry_id, last_entry_id, count, master_key,
        flags, format,
    )  # fmt: skip
    return head + records


def batch_head(
    records_bytes: int,
    request_id: int,
    ledger_id: int,
    first_entry_id: int,
    last_entry_id: int,
    count: int,
    master_key: bytes,
    flags: int = 0,
    format: int = BATCH_FORMAT,
) -> bytes:
    """What comes before so many bytes of records; whoever sends both need not join them."""
    return _HEAD.pack(
        BATCH_HEAD_BYTES - 4 + records_bytes,
        2,
        Opcode.ADD_BATCH,
        flags,
        master_key,
        request_id,
        format & 0xFFFF,
        format >> 16,
        ledger_id,
        first_entry_id,
        last_entry_id,
        count,
    )


def join_records(entries: Sequence[bytes]) -> bytes:
    """Entries as a run of records: what the writer sends and the batch-read answer carries."""
    sizes = set(map(len, entries))
    if len(sizes) == 1:  # the same size before each: a separator, and one call in C
        separator = _SIZE.pack(sizes.pop())
        # Empty first, since `separator + ...` would make a second block of the same size.
        return separator.join([b"", *entries])
    pack = _SIZE.pack
    pieces: list[bytes] = []
    for entry in entries:
        pieces += (pack(len(entry)), entry)
    return b"".join(pieces)


def split_records(data: bytes, start: int, end: int) -> Sequence[int]:
    """The bounds of the records in `data[start:end]`, whose sizes must add up exactly."""
    if start == end:
        return range(start, start + 1)
    if end - start >= RECORD_HEAD_BYTES:
        size = RECORD_HEAD_BYTES + int.from_bytes(data[start : start + RECORD_HEAD_BYTES])
        count, odd = divmod(end - start, size)
        if not odd and _columns_equal(data, start, end, size, count, RECORD_HEAD_BYTES):
            return range(start, end + 1, size)
    bounds = [start]
    append, unpack_from, position = bounds.append, _SIZE.unpack_from, start
    last = end - RECORD_HEAD_BYTES
    while position <= last:
        position += RECORD_HEAD_BYTES + unpack_from(data, position)[0]
        append(position)
    if position != end:
        raise ProtocolError(
            f"records do not add up: {end - start} bytes announced, record {len(bounds) - 1} ends"
            f" {abs(position - end)} bytes {'behind' if position > end else 'before'} them"
        )
    return bounds


def decode_batch(payload: bytes | memoryview, flags: int) -> AddBatchRequest:
    """The fixed part of a request; its records are left for `walk_batch`."""
    if len(payload) < BATCH_HEAD_BYTES - 4:
        raise ProtocolError(
            f"ADD_BATCH of {len(payload)} bytes, its fixed part alone has {BATCH_HEAD_BYTES - 4}"
        )
    key, request_id, layout, reserved, ledger_id, first, last, count = _FIXED.unpack_from(
        payload, _FIXED_OFFSET
    )
    return AddBatchRequest(
        request_id=request_id,
        ledger_id=LedgerId(ledger_id),
        first_entry_id=first,
        last_entry_id=last,
        count=count,
        master_key=key,
        body=payload[BATCH_HEAD_BYTES - 4 :],
        format=reserved << 16 | layout,  # not zero: a format that we do not know
        recovery=bool(flags & Flag.RECOVERY_ADD),
        high_priority=bool(flags & Flag.HIGH_PRIORITY),
        deferred_sync=bool(flags & Flag.DEFERRED_SYNC),
    )


def walk_batch(data: bytes, start: int, end: int, request: AddBatchRequest) -> Walk:
    """Check the records in `data[start:end]` against the request and find their bounds.

    Raises VersionError for a format that we do not know and BadRequestError for anything that is
    wrong inside it: answers for this one batch, not reasons to close the connection.
    """
    if request.format != BATCH_FORMAT:
        raise VersionError(
            f"ADD_BATCH of format {request.format}, this bookie knows {BATCH_FORMAT}:"
            " send ordinary adds"
        )
    first, last, count = request.first_entry_id, request.last_entry_id, request.count
    if count == 0 or first < 0 or request.ledger_id < 0 or last - first < count - 1:
        raise BadRequestError(
            f"ADD_BATCH of {count} entries cannot be entries {first} to {last}"
            f" of ledger {request.ledger_id}"
        )
    size, odd = divmod(end - start, count)
    walk = None
    if not odd and count >= _COLUMNS_COUNT_MIN:
        walk = _walk_columns(data, start, end, size, request)
    return walk or _walk_records(data, start, end, request)


def _walk_columns(
    data: bytes, start: int, end: int, size: int, request: AddBatchRequest
) -> Walk | None:
    """The walk of records that all have `size` bytes; None if they do not, or are wrong.

    Column `i` is byte `i` of every record, taken by one strided slice. Size and ledger id are
    twelve columns that must each hold one value throughout. Ids that are evenly spaced (one
    writer, or striping over bookies that hold one copy in n) must equal the eight columns of the
    ids that are expected; other ids are unpacked and compared with their neighbours.
    """
    first, last, count = request.first_entry_id, request.last_entry_id, request.count
    entry_size = size - RECORD_HEAD_BYTES
    if entry_size < ENTRY_HEADER_BYTES:
        return None
    if data[start : start + 12] != struct.pack(">Iq", entry_size, request.ledger_id):
        return None
    if not _columns_equal(data, start, end, size, count, 12):
        return None
    ids = start + 12
    entry_ids: Sequence[int]
    step, uneven = divmod(last - first, count - 1)
    entry_ids = range(first, last + 1, step)
    expected = struct.pack(f">{count}q", *entry_ids) if not uneven else b""
    if uneven or any(data[ids + i : end : size] != expected[i::8] for i in range(8)):
        rows = struct.iter_unpack(f">12xq{size - 20}x", memoryview(data)[start:end])
        entry_ids = [entry_id for (entry_id,) in rows]
        if entry_ids[0] != first or entry_ids[-1] != last:
            return None
        if not all(map(operator.lt, entry_ids, entry_ids[1:])):
            return None
    (lac,) = _LAC.unpack_from(data, end - size + _LAC_OFFSET)
    return Walk(entry_ids, range(start, end + 1, size), lac)


def _walk_records(data: bytes, start: int, end: int, request: AddBatchRequest) -> Walk:
    """The walk of any records, one by one; it also words what is wrong with them."""
    ledger_id = request.ledger_id
    entry_ids: list[int] = []
    bounds = [start]
    add_id, add_bound, unpack_from = entry_ids.append, bounds.append, _RECORD.unpack_from
    position, previous = start, -1
    record_last = end - _RECORD.size
    while position <= record_last:
        size, found_ledger, entry_id = unpack_from(data, position)
        if found_ledger != ledger_id or entry_id <= previous or size < ENTRY_HEADER_BYTES:
            raise BadRequestError(
                f"ADD_BATCH record {len(entry_ids)} holds {size} bytes, entry {entry_id} of ledger"
                f" {found_ledger}; wanted at least {ENTRY_HEADER_BYTES} bytes, an entry above"
                f" {previous} of ledger {ledger_id}"
            )
        position += RECORD_HEAD_BYTES + size
        add_id(entry_id)
        add_bound(position)
        previous = entry_id
    if position != end:
        raise BadRequestError(
            f"ADD_BATCH records end {abs(position - end)} bytes"
            f" {'behind' if position > end else 'before'} the end of their frame"
        )
    found = (entry_ids[0], entry_ids[-1], len(entry_ids)) if entry_ids else (None, None, 0)
    if found != (request.first_entry_id, request.last_entry_id, request.count):
        raise BadRequestError(
            f"ADD_BATCH announces first, last, count = {request.first_entry_id},"
            f" {request.last_entry_id}, {request.count}; its records have {found}"
        )
    (lac,) = _LAC.unpack_from(data, bounds[-2] + _LAC_OFFSET)
    return Walk(entry_ids, bounds, lac)


def _columns_equal(data: bytes, start: int, end: int, size: int, count: int, width: int) -> bool:
    """Whether the first `width` bytes are the same in all `count` records of `size` bytes."""
    return all(data[start + i : end : size].count(data[start + i]) == count for i in range(width))
