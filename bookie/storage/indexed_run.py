"""The index's knowledge of one run: the value behind an `R` key. Pure.

A key names a run, never an entry: at 100 ledgers that makes the index ten times smaller and its
CPU twelve times lower than one key per entry. The price is paid here: an entry's place is
computed from the run's ids and record starts, by arithmetic in the usual case (ids without
gaps, records of one size), by bisection otherwise.

The packed arrays are little-endian, because that is what `array` holds on the machines we meet.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, Literal

from bookie.core import runs
from bookie.storage.index_format import check_version
from wire.errors import CorruptionError

#: The limits of a run. Look-ups stop `RUN_SPAN` ids behind the entry they want, so a run that
#: spans more would hide entries: writers must keep to it, whatever else they relax.
RUN_ENTRIES_MAX: Final = runs.ENTRIES_MAX
RUN_BYTES_MAX: Final = runs.BYTES_MAX  # one entry that is bigger makes a run of its own
RUN_SPAN: Final = runs.SPAN_MAX  # last - first stays below it

RUN_HEADER_BYTES: Final = 56  # in front of the body, in the entry log
LENGTH_BYTES: Final = 4  # in front of each entry, in the body

_Code = Literal["H", "I"]

DENSE: Final = 1  # ids without gaps: no deltas are stored
FIXED: Final = 2  # records of one size: that size is stored instead of all starts
DAMAGED: Final = 4  # the body failed its CRC: the run counts as missing for integrity checks
SHORT: Final = 8  # no record is longer than 65535 bytes: sizes are stored in two bytes each

_PLAIN: Final = DENSE | FIXED
_VERSION: Final = 1
_KEY = struct.Struct(">cQQQ")
# version, flags, count, body bytes, first entry, body CRC, write sequence
_HEADER = struct.Struct(">BBHIqIQ")
_U32 = struct.Struct("<I")

_SHORT_MAX: Final = 0xFFFF

assert (array("I").itemsize, array("H").itemsize) == (4, 2)


def encode_run_value(
    first: int,
    count: int,
    body_bytes: int,
    body_crc: int,
    sequence: int,
    entry_ids: Sequence[int] | None,
    starts: Sequence[int] | int,
) -> bytes:
    """The value of a run key.

    `entry_ids` is None when the ids have no gaps. `starts` is the size of every record when they
    are all alike, else where each record begins in the body and, at the end, where the body does.
    """
    flags, deltas = DENSE, b""
    if entry_ids is not None:
        assert len(entry_ids) == count
        assert entry_ids[0] == first
        # A run spans fewer than RUN_SPAN ids, so two bytes hold every delta.
        flags, deltas = 0, _pack("H", (entry_id - first for entry_id in entry_ids))
    if isinstance(starts, int):
        assert starts * count == body_bytes
        flags, places = flags | FIXED, _U32.pack(starts)
    else:
        assert len(starts) == count + 1
        # Sizes, not places: they are half as long, and compress better.
        sizes = [end - start for start, end in pairwise(starts)]
        if max(sizes) <= _SHORT_MAX:
            flags, places = flags | SHORT, _pack("H", sizes)
        else:
            places = _pack("I", sizes)
    header = _HEADER.pack(_VERSION, flags, count, body_bytes, first, body_crc, sequence)
    return header + deltas + places


def encode_plain_value(
    first: int, count: int, body_bytes: int, body_crc: int, sequence: int, record_bytes: int
) -> bytes:
    """The same for a run without gaps whose records have one size, the usual one."""
    header = _HEADER.pack(_VERSION, _PLAIN, count, body_bytes, first, body_crc, sequence)
    return header + _U32.pack(record_bytes)


def mark_damaged(value: bytes) -> bytes:
    """The same run value, flagged: readers try it last, integrity checks not at all."""
    return value[:1] + bytes([value[1] | DAMAGED]) + value[2:]


class IndexedRun:
    """One run as the index knows it.

    Only the header is decoded at once: a look-up makes one of these for every run it passes, and
    asks most of them nothing but where they begin.
    """

    __slots__ = (
        "_deltas", "_flags", "_record_bytes", "_starts", "body_bytes", "body_crc", "entry_count",
        "first", "key", "last", "ledger_id", "location", "sequence", "value",
    )  # fmt: skip

    ledger_id: int
    last: int
    location: int  # log id << 32 | offset of the run's header
    entry_count: int
    body_bytes: int
    first: int
    body_crc: int
    sequence: int  # the checkpoint that wrote the run first; compaction keeps it
    _flags: int
    _record_bytes: int

    def __init__(self, key: bytes, value: bytes) -> None:
        self.key = key
        self.value = value
        self._deltas: array[int] | None = None
        self._starts: array[int] | None = None
        try:
            _, self.ledger_id, last, self.location = _KEY.unpack(key)
            version, flags, count, self.body_bytes, first, self.body_crc, self.sequence = (
                _HEADER.unpack_from(value)
            )
        except struct.error:
            raise self._corrupt("has a wrong length") from None
        if version != _VERSION:
            check_version(version, _VERSION, f"run {key.hex()} in the index")
        self.first, self.last, self.entry_count, self._flags = first, last, count, flags
        ids = last - first + 1
        if not 0 < count <= ids <= RUN_SPAN or (flags & DENSE and count != ids):
            raise self._corrupt("counts its entries wrongly")
        size = _HEADER.size if flags & DENSE else _HEADER.size + 2 * count
        places = 4 if flags & FIXED else (2 if flags & SHORT else 4) * count
        if len(value) != size + places:
            raise self._corrupt("has a wrong length")
        if flags & FIXED:
            (self._record_bytes,) = _U32.unpack_from(value, size)
            record_bytes = self._record_bytes
            if record_bytes * count != self.body_bytes or record_bytes < LENGTH_BYTES:
                raise self._corrupt("counts its bytes wrongly")

    def _corrupt(self, what: str) -> CorruptionError:
        return CorruptionError(f"run {self.key.hex()} in the index {what}: rebuild the index")

    @property
    def log_id(self) -> int:
        return self.location >> 32

    @property
    def offset(self) -> int:
        """Where the run's header is, in its log."""
        return self.location & 0xFFFFFFFF

    @property
    def body_offset(self) -> int:
        return (self.location & 0xFFFFFFFF) + RUN_HEADER_BYTES

    @property
    def is_damaged(self) -> bool:
        return self._flags & DAMAGED != 0

    def position(self, entry_id: int) -> int:
        """Which record of the run holds the entry; -1 if none does."""
        delta = entry_id - self.first
        if delta < 0 or entry_id > self.last:
            return -1
        if self._flags & DENSE:
            return delta
        deltas = self._deltas or self._load_deltas()
        position = bisect_left(deltas, delta)
        return position if deltas[position] == delta else -1

    def position_from(self, entry_id: int) -> int:
        """The first record whose entry is not below `entry_id`; `entry_count` if there is none."""
        delta = max(entry_id - self.first, 0)
        if self._flags & DENSE:
            return min(delta, self.entry_count)
        return bisect_left(self._deltas or self._load_deltas(), delta)

    def start(self, position: int) -> int:
        """Where a record begins in the body; of `entry_count`, where the body ends."""
        if self._flags & FIXED:
            return position * self._record_bytes
        return (self._starts or self._load_starts())[position]

    def locate(self, entry_id: int) -> tuple[int, int] | None:
        """Offset in the log and length of an entry's bytes; the length word lies before them."""
        position = self.position(entry_id)
        if position < 0:
            return None
        if self._flags & FIXED:
            size = self._record_bytes
            return self.body_offset + position * size + LENGTH_BYTES, size - LENGTH_BYTES
        starts = self._starts or self._load_starts()
        start = starts[position]
        return (
            self.body_offset + start + LENGTH_BYTES,
            starts[position + 1] - start - LENGTH_BYTES,
        )

    def entry_ids(self) -> Sequence[int]:
        first = self.first
        if self._flags & DENSE:
            return range(first, self.last + 1)
        return [first + delta for delta in self._deltas or self._load_deltas()]

    def starts(self) -> Sequence[int]:
        """Where each record begins in the body and, at the end, where the body does."""
        if self._flags & FIXED:
            return range(0, self.body_bytes + 1, self._record_bytes)
        return self._starts or self._load_starts()

    def part(self, start: int, end: int) -> tuple[Sequence[int], Sequence[int]]:
        """Ids of the records start..end-1, and where each begins if the first begins at 0.

        As ranges wherever these say it all, as `runs.Run` wants them.
        """
        ids: Sequence[int]
        starts: Sequence[int]
        first = self.first
        if self._flags & DENSE:
            ids = range(first + start, first + end)
        else:
            deltas = (self._deltas or self._load_deltas())[start:end]
            ids = runs.packed_ids([first + delta for delta in deltas])
        if self._flags & FIXED:
            size = self._record_bytes
            starts = range(0, (end - start) * size + 1, size)
        else:
            starts = (self._starts or self._load_starts())[start : end + 1]
            starts = runs.shifted(starts, -starts[0])
        return ids, starts

    def _load_deltas(self) -> array[int]:
        deltas = _unpack("H", self.value[_HEADER.size : _HEADER.size + 2 * self.entry_count])
        if deltas[0] != 0 or deltas[-1] != self.last - self.first:
            raise self._corrupt("does not begin and end at its entries")
        self._deltas = deltas
        return deltas

    def _load_starts(self) -> array[int]:
        code: _Code = "H" if self._flags & SHORT else "I"
        width = 2 if code == "H" else 4
        sizes = _unpack(code, self.value[-width * self.entry_count :])
        if sum(sizes) != self.body_bytes or min(sizes) < LENGTH_BYTES:
            raise self._corrupt("counts its bytes wrongly")
        starts = array("I", accumulate(sizes, initial=0))
        self._starts = starts
        return starts

    def __repr__(self) -> str:
        return (
            f"<run of ledger {self.ledger_id}, {self.entry_count} entries "
            f"{self.first}..{self.last} at {self.log_id:08x}+{self.offset}>"
        )


def _pack(code: _Code, numbers: Iterable[int]) -> bytes:
    packed = array(code, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(code: _Code, data: bytes) -> array[int]:
    numbers = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
