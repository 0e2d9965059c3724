"""Entries that stay where they were received: checked in place, an object for all of them.

A scan looks at every entry and keeps none: what it wants of them is their digests checked, their
lengths, and the payloads behind one another in some other buffer. Cutting each entry out of its
answer first (`wire.entry.decode_entries`) costs more than the rest of the scan's own work, so here
nothing is cut out for longer than its digest takes.

The checks answer yes or no for a whole answer. Only after a no is it looked at entry by entry, by
the code that says what is wrong.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from crc32c import crc32c

from wire.digest import JOIN_BYTES_MAX, Digest
from wire.entry import ENTRY_HEADER_BYTES, decode_entries
from wire.errors import CorruptionError
from wire.types import DigestType

_IDS: Final = struct.Struct(">qq")  # ledger id, entry id
_LAC: Final = struct.Struct(">q")
_LAC_OFFSET: Final = 16
_HEAD_CRC32C: Final = struct.Struct(">qq16xI")


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Payload `i` is `data[bounds[i] + offset : bounds[i + 1]]`; `data` is a whole answer."""

    data: bytes
    bounds: Sequence[int]  # a range where all entries have one size
    offset: int = 0

    @classmethod
    def joined(cls, payloads: Sequence[bytes | memoryview]) -> EntryRun:
        """Payloads that came apart, such as those of stripes."""
        return cls(b"".join(payloads), list(accumulate(map(len, payloads), initial=0)))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, part: slice) -> EntryRun:
        """The same bytes, fewer of the entries; the step is 1."""
        begin, end, _ = part.indices(len(self))
        return EntryRun(self.data, self.bounds[begin : max(begin, end) + 1], self.offset)

    def bytes_before(self, index: int) -> int:
        """Bytes of the payloads before this one; with `len` all of them."""
        return self.bounds[index] - self.bounds[0] - index * self.offset

    @property
    def bytes(self) -> int:
        return self.bytes_before(len(self))

    @property
    def lengths(self) -> array[int]:
        bounds, offset = self.bounds, self.offset
        if isinstance(bounds, range):
            return array("i", (bounds.step - offset,)) * len(self)
        return array("i", [end - begin - offset for begin, end in pairwise(bounds)])

    @property
    def views(self) -> list[memoryview]:
        """The payloads where they are, to be joined or copied."""
        view, offset = memoryview(self.data), self.offset
        return [view[begin + offset : end] for begin, end in pairwise(self.bounds)]


def check_entries(
    data: bytes,
    bounds: Sequence[int],
    skip: int,
    *,
    ledger_id: int,
    entry_ids: range,
    digest: Digest,
) -> tuple[int, CorruptionError | None]:
    """How many entries are good, from the first on, and what is wrong with the one behind.

    They must be those of `entry_ids`, in this order; `skip` is what lies before each.
    """
    assert len(bounds) == len(entry_ids) + 1
    if digest.type is DigestType.CRC32C:  # the usual one
        if isinstance(bounds, range):
            are_good = _are_equal_good(data, bounds, skip, ledger_id, entry_ids)
        else:
            are_good = _are_mixed_good(data, bounds, skip, ledger_id, entry_ids)
        if are_good:
            return len(entry_ids), None
    found = decode_entries(
        data, bounds, skip, ledger_id=ledger_id, entry_ids=entry_ids, digest=digest
    )
    return len(found.payloads), found.error


def compare_ids(
    data: bytes,
    bounds: Sequence[int],
    skip: int,
    *,
    ledger_id: int,
    entry_ids: range,
    digest: Digest,
) -> tuple[int, CorruptionError | None]:
    """The same for whoever trusts the bytes: only the ids inside are looked at."""
    offset = skip + ENTRY_HEADER_BYTES + digest.size
    unpack_from = _IDS.unpack_from
    for i, (entry_id, (begin, end)) in enumerate(zip(entry_ids, pairwise(bounds), strict=True)):
        if begin + offset > end:
            return i, CorruptionError(f"entry {entry_id} is shorter than its header")
        if unpack_from(data, begin + skip) != (ledger_id, entry_id):
            _, found = unpack_from(data, begin + skip)
            return i, CorruptionError(f"asked for entry {entry_id}, got entry {found}")
    return len(entry_ids), None


def lacs_of(data: bytes, bounds: Sequence[int], skip: int, count: int) -> list[int]:
    """The LAC that each of the first `count` entries carries."""
    unpack_from, offset = _LAC.unpack_from, skip + _LAC_OFFSET
    return [unpack_from(data, begin + offset)[0] for begin in bounds[:count]]


def _are_equal_good(
    data: bytes, bounds: range, skip: int, ledger_id: int, entry_ids: range
) -> bool:
    """Entries of one size: a single `iter_unpack` cuts them, and ids are compared by columns."""
    size = bounds.step - skip - ENTRY_HEADER_BYTES - 4
    if size < 0 or not entry_ids:
        return False
    begin, end, step = bounds[0] + skip, bounds[-1], bounds.step
    ids = struct.pack(f">{len(entry_ids)}q", *entry_ids)
    ledger = _LAC.pack(ledger_id)
    for i in range(8):
        if data[begin + 8 + i : end : step] != ids[i::8]:
            return False
        column = data[begin + i : end : step]
        if column.count(ledger[i]) != len(column):
            return False
    rows = _record(skip, size).iter_unpack(memoryview(data)[bounds[0] : end])
    if size <= JOIN_BYTES_MAX:
        for head, stored, payload in rows:
            if crc32c(head + payload) != stored:
                return False
    else:
        for head, stored, payload in rows:
            if crc32c(payload, crc32c(head)) != stored:
                return False
    return True


@lru_cache(maxsize=64)
def _record(skip: int, size: int) -> struct.Struct:
    """Header, digest, payload."""
    return struct.Struct(f">{skip}x{ENTRY_HEADER_BYTES}sI{size}s")


def _are_mixed_good(
    data: bytes, bounds: Sequence[int], skip: int, ledger_id: int, entry_ids: range
) -> bool:
    """Entries of any size, through views: a copy of each would cost more than the views do."""
    view, unpack_from = memoryview(data), _HEAD_CRC32C.unpack_from
    header_end, offset = skip + ENTRY_HEADER_BYTES, skip + ENTRY_HEADER_BYTES + 4
    for entry_id, (begin, end) in zip(entry_ids, pairwise(bounds), strict=True):
        if begin + offset > end:
            return False
        found_ledger, found_entry, stored = unpack_from(data, begin + skip)
        if found_entry != entry_id or found_ledger != ledger_id:
            return False
        header = crc32c(view[begin + skip : begin + header_end])
        if crc32c(view[begin + offset : end], header) != stored:
            return False
    return True
