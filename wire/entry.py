"""Entries as stored: `ledger id | entry id | LAC | ledger length | digest | payload`.

The ids are inside, so an entry can be checked wherever it turns up. The functions for many entries
do in one loop what the client's hot path needs, without an object per entry; the ones for a single
entry serve everything else.

Many entries inside one `bytes` object are described by `bounds`, one more number than there are
entries: entry `i` lies in `data[bounds[i] + skip : bounds[i + 1]]`, where `skip` is what the
container puts before each one (4 in records, 28 in v2 read answers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from crc32c import crc32c

from wire.digest import JOIN_BYTES_MAX, Digest
from wire.errors import CorruptionError
from wire.types import NO_ENTRY, DigestType, LedgerId

ENTRY_HEADER_BYTES: Final = 32
LAC_HEADER_BYTES: Final = 16

_HEADER: Final = struct.Struct(">qqqq")  # ledger id, entry id, LAC, ledger length so far
_LAC_HEADER: Final = struct.Struct(">qq")  # ledger id, LAC
_U32: Final = struct.Struct(">I")
_HEAD_CRC32C: Final = struct.Struct(">qqqqI")  # the header and a CRC32C behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry whose digest was found right."""

    ledger_id: LedgerId
    entry_id: int
    lac: int  # what the writer had confirmed when it packaged the entry
    length: int  # payload bytes of the ledger up to and with this entry, in order of the add calls
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The entries of one answer up to the first bad one, as parallel lists.

    A bad entry does not spoil the good ones before it: they are used, and the rest is read from
    another replica. `error` says why the list ends early.
    """

    payloads: list[bytes]
    lengths: list[int]
    lac: int  # the highest LAC seen
    error: CorruptionError | None


def encode_entry(
    payload: bytes, *, ledger_id: int, entry_id: int, lac: int, length: int, digest: Digest
) -> bytes:
    """One entry. `length` counts this payload too."""
    header = _HEADER.pack(ledger_id, entry_id, lac, length)
    return b"".join((header, digest.of(header, payload), payload))


def encode_entries(
    payloads: Iterable[bytes],
    *,
    ledger_id: int,
    first_entry_id: int,
    lac: int,
    length: int,
    digest: Digest,
) -> list[bytes]:
    """Consecutive entries. `length` is that of the ledger before the first of them."""
    pack, digest_of, join = _HEADER.pack, digest.of, b"".join
    entry_id = first_entry_id
    entries: list[bytes] = []
    for payload in payloads:
        length += len(payload)
        header = pack(ledger_id, entry_id, lac, length)
        entries.append(join((header, digest_of(header, payload), payload)))
        entry_id += 1
    return entries


def encode_records(
    payloads: Iterable[bytes],
    *,
    ledger_id: int,
    first_entry_id: int,
    lac: int,
    length: int,
    digest: Digest,
    prefix: bytes = b"",
) -> bytes:
    """The same entries as one run of records (`u32 size | entry`), the body of a batch.

    With a prefix, which the size counts, they are frames. One join for all of them: an entry is
    never a `bytes` object of its own.
    """
    pack, overhead = _HEADER.pack, len(prefix) + ENTRY_HEADER_BYTES + digest.size
    entry_id = first_entry_id
    pieces: list[bytes] = []
    if digest.type is DigestType.CRC32C:  # the usual one, without a call of ours per entry
        pack_record = _record_crc32c(len(prefix)).pack
        for payload in payloads:
            size = len(payload)
            length += size
            header = pack(ledger_id, entry_id, lac, length)
            if size <= JOIN_BYTES_MAX:
                checksum = crc32c(header + payload)
            else:
                checksum = crc32c(payload, crc32c(header))
            pieces += (pack_record(size + overhead, prefix, header, checksum), payload)
            entry_id += 1
        return b"".join(pieces)
    pack_size, digest_of = _U32.pack, digest.of
    for payload in payloads:
        size = len(payload)
        length += size
        header = pack(ledger_id, entry_id, lac, length)
        pieces += (
            pack_size(size + overhead), prefix, header, digest_of(header, payload), payload
        )  # fmt: skip
        entry_id += 1
    return b"".join(pieces)


@lru_cache(maxsize=8)
def _record_crc32c(prefix_bytes: int) -> struct.Struct:
    """Length of the rest, prefix, header, digest."""
    return struct.Struct(f">I{prefix_bytes}s32sI")


def decode_entry(
    body: bytes | memoryview, *, ledger_id: int, entry_id: int | None, digest: Digest
) -> Entry:
    """Check one entry and split it. `entry_id` is None after asking for the last one."""
    data = bytes(body)
    if len(data) < ENTRY_HEADER_BYTES:
        raise _short(len(data), ENTRY_HEADER_BYTES + digest.size, ledger_id, entry_id)
    _, found_entry, lac, length = _HEADER.unpack_from(data)
    wanted = found_entry if entry_id is None else entry_id
    if fault := _fault(data, 0, len(data), ledger_id, wanted, digest):
        raise fault
    return Entry(
        ledger_id=LedgerId(ledger_id),
        entry_id=found_entry,
        lac=lac,
        length=length,
        payload=data[ENTRY_HEADER_BYTES + digest.size :],
    )


def decode_entries(
    data: bytes,
    bounds: Sequence[int],
    skip: int,
    *,
    ledger_id: int,
    entry_ids: Sequence[int],
    digest: Digest,
) -> Entries:
    """Check many entries inside one buffer, which must be those of `entry_ids`, in this order."""
    assert len(bounds) == len(entry_ids) + 1
    payloads: list[bytes] = []
    lengths: list[int] = []
    lac_max = NO_ENTRY
    error = None
    unpack_from, unpack_crc32c, digest_of = _HEADER.unpack_from, _HEAD_CRC32C.unpack_from, digest.of
    plain_crc32c = digest.type is DigestType.CRC32C
    payload_offset = ENTRY_HEADER_BYTES + digest.size
    begins = iter(bounds)
    begin = next(begins)
    for entry_id, end in zip(entry_ids, begins, strict=True):
        position = begin + skip
        begin = end
        payload_start = position + payload_offset
        if payload_start <= end:
            header, payload = data[position : position + 32], data[payload_start:end]
            if plain_crc32c:  # the usual one, without a call of ours per entry
                found_ledger, found_entry, lac, length, stored = unpack_crc32c(data, position)
                if end - payload_start <= JOIN_BYTES_MAX:
                    good = crc32c(header + payload) == stored
                else:
                    good = crc32c(payload, crc32c(header)) == stored
            else:
                found_ledger, found_entry, lac, length = unpack_from(data, position)
                good = digest_of(header, payload) == data[position + 32 : payload_start]
            if good and found_entry == entry_id and found_ledger == ledger_id:
                payloads.append(payload)
                lengths.append(length)
                if lac > lac_max:
                    lac_max = lac
                continue
        error = _fault(data, position, end, ledger_id, entry_id, digest)
        assert error is not None, "the loop and the explanation check the same things"
        break
    return Entries(payloads=payloads, lengths=lengths, lac=lac_max, error=error)


def encode_lac(*, ledger_id: int, lac: int, digest: Digest) -> bytes:
    """The body that tells bookies a LAC without an entry; the digest covers the two numbers."""
    header = _LAC_HEADER.pack(ledger_id, lac)
    return header + digest.of(header, b"")


def decode_lac(body: bytes | memoryview, *, ledger_id: int, digest: Digest) -> int:
    """Check an explicit-LAC body and return the LAC."""
    data = bytes(body)
    if len(data) != LAC_HEADER_BYTES + digest.size:
        raise CorruptionError(
            f"explicit LAC of ledger {ledger_id} has {len(data)} bytes, not"
            f" {LAC_HEADER_BYTES + digest.size}: use another replica"
        )
    found_ledger, lac = _LAC_HEADER.unpack_from(data)
    if found_ledger != ledger_id:
        raise CorruptionError(
            f"explicit LAC asked of ledger {ledger_id} names ledger {found_ledger}:"
            " use another replica"
        )
    if digest.of(data[:LAC_HEADER_BYTES], b"") != data[LAC_HEADER_BYTES:]:
        raise CorruptionError(
            f"explicit LAC {lac} of ledger {ledger_id} does not match its"
            f" {digest.type.name} digest: use another replica"
        )
    return int(lac)


def _fault(
    data: bytes, position: int, end: int, ledger_id: int, entry_id: int, digest: Digest
) -> CorruptionError | None:
    """What is wrong with the entry in `data[position:end]`, if anything is."""
    digest_start = position + ENTRY_HEADER_BYTES
    payload_start = digest_start + digest.size
    if payload_start > end:
        return _short(end - position, payload_start - position, ledger_id, entry_id)
    found_ledger, found_entry, _, _ = _HEADER.unpack_from(data, position)
    if (found_ledger, found_entry) != (ledger_id, entry_id):
        return CorruptionError(
            f"asked for entry {entry_id} of ledger {ledger_id}, got bytes of entry {found_entry}"
            f" of ledger {found_ledger}: use another replica"
        )
    expected = digest.of(data[position:digest_start], data[payload_start:end])
    if expected != data[digest_start:payload_start]:
        return CorruptionError(
            f"entry {entry_id} of ledger {ledger_id} does not match its {digest.type.name} digest:"
            " use another replica, and check the password if every replica fails"
        )
    return None


def _short(found: int, wanted: int, ledger_id: int, entry_id: int | None) -> CorruptionError:
    name = "last entry" if entry_id is None else f"entry {entry_id}"
    return CorruptionError(
        f"{name} of ledger {ledger_id} has {max(found, 0)} bytes, at least {wanted} are needed:"
        " use another replica"
    )
