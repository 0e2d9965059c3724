"""The bytes of an entry log: header, runs, footer. Pure. The page is docs/formats/entry-log.md.

An entry log is a header, runs back to back, and a footer once it is sealed. A run holds entries
of one ledger, sorted by id, each behind its length: exactly what a batch read answers with, so
that a stretch of neighbours is one slice. One CRC protects a whole run, for scrubbing,
compaction and rebuilding; single entries are protected by their digest, from end to end.

The header is never written again. The footer only saves time: without one, the run headers say
everything, and a log is never taken to be empty because its footer is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from crc32c import crc32c

from bookie.storage.index_format import STORE_ID_BYTES, check_version
from bookie.storage.indexed_run import LENGTH_BYTES, RUN_HEADER_BYTES
from wire.errors import CorruptionError

HEADER_BYTES: Final = 4096
TAIL_BYTES: Final = 24
#: A location has 32 bits for the offset.
LOG_BYTES_MAX: Final = 2**32 - 1
#: Default size at which a log is sealed and the next one begun.
LOG_BYTES_TARGET: Final = 1 << 30
#: Ledger ids of a footer that are sorted by one call.
_SORTED_AT_ONCE: Final = 4096

RUN_MARKER: Final = 0xFFFFFFFE
FOOTER_MARKER: Final = 0xFFFFFFFD

_MAGIC: Final = b"BKPYLOG1"
_END_MAGIC: Final = b"BKPYEND1"
_VERSION: Final = 1

_HEADER = struct.Struct(">8sHHI16sQ")  # magic, version, kind, log id, store id, created ms
_U32 = struct.Struct(">I")
_RUN_FRONT = struct.Struct(">II")  # marker, CRC of what follows
# ledger, first, last, count, body bytes, body CRC, log id, write sequence
_RUN_REST = struct.Struct(">QQQIIIIQ")
_RUN_HEADER = struct.Struct(">IIQQQIIIIQ")
_FOOTER_FRONT = struct.Struct(">II")
_FOOTER_REST = struct.Struct(">IIQ")  # log id, ledger count, end of data
_FOOTER_LEDGER = struct.Struct(">QQIIBB")  # ledger, bytes, entries, runs, flags, key bytes
_TAIL = struct.Struct(">QI")  # footer offset, footer bytes
_TAIL_END = struct.Struct(">I8s")  # CRC, magic
_ENTRY_IDS = struct.Struct(">qq")  # what every entry begins with: ledger, entry

assert _RUN_HEADER.size == RUN_HEADER_BYTES
assert _TAIL.size + _TAIL_END.size == TAIL_BYTES


class LogKind(IntEnum):
    FLUSH = 0
    COMPACTION = 1


class LogHeader(NamedTuple):
    log_id: int
    kind: LogKind
    store_id: bytes
    created_ms: int

    def encode(self) -> bytes:
        assert len(self.store_id) == STORE_ID_BYTES
        data = _HEADER.pack(
            _MAGIC, _VERSION, self.kind, self.log_id, self.store_id, self.created_ms
        )
        data = data.ljust(HEADER_BYTES - 4, b"\0")
        return data + _U32.pack(crc32c(data))


def decode_log_header(data: bytes, path: str) -> LogHeader:
    what = f"header of entry log {path}"
    if len(data) != HEADER_BYTES or data[:8] != _MAGIC:
        raise CorruptionError(
            f"{path} is no entry log: it begins with {data[:8].hex() or 'nothing'}"
        )
    _, version, kind, log_id, store_id, created_ms = _HEADER.unpack_from(data)
    if crc32c(data[:-4]) != _U32.unpack_from(data, HEADER_BYTES - 4)[0]:
        raise CorruptionError(f"{what} fails its CRC")
    check_version(version, _VERSION, what)
    try:
        return LogHeader(log_id, LogKind(kind), store_id, created_ms)
    except ValueError:
        raise CorruptionError(f"{what} is of unknown kind {kind}") from None


class RunHeader(NamedTuple):
    """The header of one run, and where it was found."""

    offset: int
    ledger_id: int
    first: int
    last: int
    entry_count: int
    body_bytes: int
    body_crc: int
    log_id: int
    sequence: int  # the checkpoint that wrote the run first; compaction keeps it

    @property
    def body_offset(self) -> int:
        return self.offset + RUN_HEADER_BYTES

    @property
    def end(self) -> int:
        return self.offset + RUN_HEADER_BYTES + self.body_bytes

    def encode(self) -> bytes:
        return encode_run_header(*self[1:])


def encode_run_header(
    ledger_id: int,
    first: int,
    last: int,
    entry_count: int,
    body_bytes: int,
    body_crc: int,
    log_id: int,
    sequence: int,
) -> bytes:
    rest = _RUN_REST.pack(
        ledger_id, first, last, entry_count, body_bytes, body_crc, log_id, sequence
    )
    return _RUN_FRONT.pack(RUN_MARKER, crc32c(rest)) + rest


def decode_run_header(data: bytes, *, log_id: int, offset: int) -> RunHeader:
    """Check and decode the header at `offset`. `data` may go on behind it."""
    if len(data) < RUN_HEADER_BYTES:
        raise _bad_run(log_id, offset, "is cut short")
    marker, crc, *rest = _RUN_HEADER.unpack_from(data)
    if marker != RUN_MARKER:
        raise _bad_run(log_id, offset, f"begins with {marker:08x}")
    if crc32c(memoryview(data)[8:RUN_HEADER_BYTES]) != crc:
        raise _bad_run(log_id, offset, "fails the CRC of its header")
    header = RunHeader(offset, *rest)
    if header.log_id != log_id:
        raise _bad_run(log_id, offset, f"was written for log {header.log_id:08x}")
    return header


def check_body(header: RunHeader, body: bytes | memoryview) -> None:
    if len(body) != header.body_bytes:
        raise _bad_run(header.log_id, header.offset, "is cut short")
    if crc32c(body) != header.body_crc:
        raise _bad_run(header.log_id, header.offset, "fails the CRC of its body")


def check_entry(record: bytes, *, ledger_id: int, entry_id: int, where: str) -> bytes:
    """The entry in a record (length word and entry), if it is the one that was looked for."""
    if len(record) < LENGTH_BYTES + _ENTRY_IDS.size:
        raise CorruptionError(f"{where}: entry {ledger_id}/{entry_id} is cut short")
    (length,) = _U32.unpack_from(record)
    if length != len(record) - LENGTH_BYTES:
        raise CorruptionError(
            f"{where}: entry {ledger_id}/{entry_id} has {length} bytes, the index says "
            f"{len(record) - LENGTH_BYTES}"
        )
    found = _ENTRY_IDS.unpack_from(record, LENGTH_BYTES)
    if found != (ledger_id, entry_id):
        raise CorruptionError(
            f"{where}: entry {found[0]}/{found[1]} lies where the index has {ledger_id}/{entry_id}"
        )
    return record[LENGTH_BYTES:]


class LedgerTotals(NamedTuple):
    """What one log holds of one ledger. Bytes are those of bodies, as in live bytes."""

    body_bytes: int = 0
    entry_count: int = 0
    run_count: int = 0
    flags: int = 0  # those of the ledger's state in the index
    master_key: bytes = b""

    def plus(self, run: RunHeader) -> LedgerTotals:
        return self._replace(
            body_bytes=self.body_bytes + run.body_bytes,
            entry_count=self.entry_count + run.entry_count,
            run_count=self.run_count + 1,
        )


class Footer(NamedTuple):
    log_id: int
    end_of_data: int
    ledgers: Mapping[int, LedgerTotals]

    def encode(self) -> bytes:
        """Footer and tail, to be written at `end_of_data`."""
        return encode_footer(self.log_id, self.end_of_data, self.ledgers, self.ledgers.__getitem__)


def encode_footer(
    log_id: int,
    end_of_data: int,
    ledger_ids: Collection[int],
    totals_of: Callable[[int], LedgerTotals],
) -> bytes:
    """A footer of any number of ledgers, no more of which are in memory than the caller has."""
    rest = bytearray(_FOOTER_REST.pack(log_id, len(ledger_ids), end_of_data))
    for ledger_id in _ascending(ledger_ids):
        totals = totals_of(ledger_id)
        # A longer key has no room. It is left out: the footer is an aid for rebuilding, and
        # a ledger without a key takes the first one that is offered.
        key = totals.master_key if len(totals.master_key) <= 0xFF else b""
        rest += _FOOTER_LEDGER.pack(ledger_id, *totals[:4], len(key)) + key
    front = _FOOTER_FRONT.pack(FOOTER_MARKER, crc32c(rest))
    tail = _TAIL.pack(end_of_data, len(front) + len(rest))
    return b"".join((front, rest, tail, _TAIL_END.pack(crc32c(tail), _END_MAGIC)))


def _ascending(numbers: Iterable[int]) -> Iterator[int]:
    """Sorted, but not by one call: it would keep other threads waiting for milliseconds."""
    left = iter(numbers)
    sorted_pieces = []
    while piece := list(islice(left, _SORTED_AT_ONCE)):
        piece.sort()
        sorted_pieces.append(piece)
    return merge(*sorted_pieces)


def decode_tail(data: bytes) -> tuple[int, int] | None:
    """Offset and length of the footer, by the last bytes of a file; None if they are no tail."""
    if len(data) != TAIL_BYTES:
        return None
    crc, magic = _TAIL_END.unpack_from(data, _TAIL.size)
    if magic != _END_MAGIC or crc32c(data[: _TAIL.size]) != crc:
        return None
    offset, length = _TAIL.unpack_from(data)
    return offset, length


def is_footer(data: bytes, *, log_id: int, offset: int) -> bool:
    """Whether it is the whole, undamaged footer of this log, which ends its data at `offset`."""
    if len(data) < _FOOTER_FRONT.size + _FOOTER_REST.size:
        return False
    marker, crc = _FOOTER_FRONT.unpack_from(data)
    if marker != FOOTER_MARKER or crc32c(data[_FOOTER_FRONT.size :]) != crc:
        return False
    found_id, _, end_of_data = _FOOTER_REST.unpack_from(data, _FOOTER_FRONT.size)
    return (found_id, end_of_data) == (log_id, offset)


def decode_footer(data: bytes, *, log_id: int, offset: int) -> Footer | None:
    """None if it is not the whole, undamaged footer of this log: then hop the run headers."""
    if not is_footer(data, log_id=log_id, offset=offset):
        return None
    _, count, end_of_data = _FOOTER_REST.unpack_from(data, _FOOTER_FRONT.size)
    ledgers = {}
    position = _FOOTER_FRONT.size + _FOOTER_REST.size
    for _ in range(count):
        ledger_id, body_bytes, entries, runs, flags, key_bytes = _FOOTER_LEDGER.unpack_from(
            data, position
        )
        position += _FOOTER_LEDGER.size + key_bytes
        key = data[position - key_bytes : position]
        ledgers[ledger_id] = LedgerTotals(body_bytes, entries, runs, flags, key)
    return Footer(log_id, end_of_data, ledgers)


def log_name(log_id: int) -> str:
    return f"{log_id:08x}.log"


def log_id_of_name(name: str) -> int | None:
    """The log that a file name stands for; None for any other file."""
    digits, dot, suffix = name.partition(".")
    if len(digits) != 8 or (dot, suffix) != (".", "log") or digits != digits.lower():
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


def _bad_run(log_id: int, offset: int, what: str) -> CorruptionError:
    return CorruptionError(f"entry log {log_name(log_id)}: run at {offset} {what}")
