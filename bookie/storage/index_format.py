"""Keys and values of the index, as bytes. Pure: nothing here knows what database holds them.

`R` names runs of entry logs (their values are in `indexed_run.py`), `L` ledger states, `G` entry
logs, `M` the log mark, `S` facts about the whole store. The page is docs/formats/index.md.

Numbers are big-endian, because keys must sort as numbers do.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from wire.errors import BadRequestError, CorruptionError, LedgerError
from wire.types import LedgerId

#: Version of the whole database, kept under `S`; a release opens its own and older ones only.
INDEX_FORMAT: Final = 1
STORE_ID_BYTES: Final = 16

LEDGER_PREFIX: Final = b"L"
LOG_PREFIX: Final = b"G"
RUN_PREFIX: Final = b"R"
MARK_KEY: Final = b"M"
FORMAT_KEY: Final = b"Sformat"
STORE_ID_KEY: Final = b"Sstore-id"
NEEDS_INTEGRITY_CHECK_KEY: Final = b"Sneeds-integrity-check"
CLEAN_SHUTDOWN_KEY: Final = b"Sclean-shutdown"
#: What it says is in doubt, because it was made anew from the logs or the journal has lost its end,
#: and no start since has completed its replay.
REBUILT_KEY: Final = b"Srebuilt"
#: Ledgers may have been here that nothing here knows any more, and nobody has asked the metadata.
FORGOTTEN_KEY: Final = b"Sforgotten"
#: The boot in which adds are acknowledged without a sync; the next one has lost what was in memory.
UNSYNCED_KEY: Final = b"Sunsynced"

_RUN_KEY = struct.Struct(">cQQQ")  # R, ledger, last entry, location
_LEDGER_KEY = struct.Struct(">cQ")
_LOG_KEY = struct.Struct(">cI")
_LEDGER_VALUE = struct.Struct(">BBHIQQ")  # version, flags, key bytes, zero, journal file, offset
_TOMBSTONE = struct.Struct(">QQ")
_U16 = struct.Struct(">H")
_LOG_VALUE = struct.Struct(">BQQQ")
_MARK_VALUE = struct.Struct(">QH")
_JOURNAL_POSITION = struct.Struct(">HQQQ")

_LEDGER_VERSION: Final = 1
_FENCED, _LIMBO, _TOMBSTONED, _HAS_EXPLICIT_LAC = 1, 2, 4, 8
_LEDGER_FLAGS: Final = _FENCED | _LIMBO | _TOMBSTONED | _HAS_EXPLICIT_LAC


class NewerFormatError(LedgerError):
    """A newer release wrote this. Start that release again; this one must not guess."""


def check_version(found: int, known: int, what: str) -> None:
    if found > known:
        raise NewerFormatError(
            f"{what} has format version {found}, this release reads up to {known}: "
            "start the release that wrote it"
        )
    if found != known:
        raise CorruptionError(f"{what} has format version {found}, which never existed")


def run_key(ledger_id: int, last: int, location: int) -> bytes:
    """Sorts by ledger, then by last entry; the location makes it unique.

    Ending in the *last* entry, it lets a seek to an entry land on the first run that can hold
    it. Without the location, adding entry 511 once more would replace the key of run 0..511.
    """
    return _RUN_KEY.pack(b"R", ledger_id, last, location)


def run_prefix(ledger_id: int) -> bytes:
    """What the keys of all runs of a ledger begin with."""
    return _LEDGER_KEY.pack(b"R", ledger_id)


def decode_run_key(key: bytes) -> tuple[LedgerId, int, int]:
    """Ledger, last entry, location."""
    try:
        _, ledger_id, last, location = _RUN_KEY.unpack(key)
    except struct.error:
        raise CorruptionError(f"index key {key.hex()} is no run key: rebuild the index") from None
    return LedgerId(ledger_id), last, location


def location_of(*, log_id: int, offset: int) -> int:
    return log_id << 32 | offset


def ledger_key(ledger_id: int) -> bytes:
    return _LEDGER_KEY.pack(b"L", ledger_id)


def log_key(log_id: int) -> bytes:
    return _LOG_KEY.pack(b"G", log_id)


def id_in_key(key: bytes) -> int:
    """The ledger of an `L` key, the log of a `G` key."""
    return int.from_bytes(key[1:], "big")


class Tombstone(NamedTuple):
    """A ledger that was deleted here: when, and at which checkpoint."""

    time_ms: int
    checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLedgerState:
    """What must survive a restart about one ledger, besides its entries.

    Written when it changes, not with every add: the last entry and the LAC are found again from
    the entries themselves. The journal position is that of the change.
    """

    #: Empty while unknown: after a rebuild, or in limbo.
    master_key: bytes = field(default=b"", repr=False)
    fenced: bool = False
    limbo: bool = False
    tombstone: Tombstone | None = None
    explicit_lac: bytes | None = None  # as the client sent it
    journal_file_id: int = 0
    journal_offset: int = 0

    def __post_init__(self) -> None:
        for name, data in ("master key", self.master_key), ("explicit LAC", self.explicit_lac):
            if data is not None and len(data) > 0xFFFF:
                raise BadRequestError(f"{name} of {len(data)} bytes; at most 65535 can be stored")

    @property
    def flags(self) -> int:
        return (
            _FENCED * self.fenced
            | _LIMBO * self.limbo
            | _TOMBSTONED * (self.tombstone is not None)
            | _HAS_EXPLICIT_LAC * (self.explicit_lac is not None)
        )

    def encode(self) -> bytes:
        value = _LEDGER_VALUE.pack(
            _LEDGER_VERSION,
            self.flags,
            len(self.master_key),
            0,
            self.journal_file_id,
            self.journal_offset,
        )
        if self.tombstone is not None:
            value += _TOMBSTONE.pack(*self.tombstone)
        value += self.master_key
        if self.explicit_lac is not None:
            value += _U16.pack(len(self.explicit_lac)) + self.explicit_lac
        return value


def decode_ledger_state(ledger_id: int, value: bytes) -> StoredLedgerState:
    what = f"state of ledger {ledger_id} in the index"
    check_version(value[0] if value else 0, _LEDGER_VERSION, what)
    try:
        _, flags, key_bytes, _, file_id, offset = _LEDGER_VALUE.unpack_from(value)
        position = _LEDGER_VALUE.size
        tombstone = explicit_lac = None
        if flags & _TOMBSTONED:
            tombstone = Tombstone(*_TOMBSTONE.unpack_from(value, position))
            position += _TOMBSTONE.size
        master_key = value[position : position + key_bytes]
        position += key_bytes
        if flags & _HAS_EXPLICIT_LAC:
            (lac_bytes,) = _U16.unpack_from(value, position)
            position += _U16.size + lac_bytes
            explicit_lac = value[position - lac_bytes : position]
    except struct.error:
        raise CorruptionError(f"{what} is cut short: rebuild the index") from None
    if flags & ~_LEDGER_FLAGS or position != len(value):
        raise CorruptionError(f"{what} has unknown flags or a wrong length: rebuild the index")
    return StoredLedgerState(
        master_key=master_key,
        fenced=flags & _FENCED != 0,
        limbo=flags & _LIMBO != 0,
        tombstone=tombstone,
        explicit_lac=explicit_lac,
        journal_file_id=file_id,
        journal_offset=offset,
    )


class LogState(IntEnum):
    OPEN = 0
    SEALED = 1
    COMPACTION = 2  # open, and written by compaction
    DAMAGED = 3  # holds a run that fails its CRC; compaction leaves it alone


class StoredLog(NamedTuple):
    """What the index knows about one entry log. `live_bytes` counts bodies of indexed runs."""

    state: LogState
    size: int
    live_bytes: int
    created_ms: int

    def encode(self) -> bytes:
        return _LOG_VALUE.pack(*self)


def decode_log(log_id: int, value: bytes) -> StoredLog:
    try:
        state, size, live_bytes, created_ms = _LOG_VALUE.unpack(value)
        return StoredLog(LogState(state), size, live_bytes, created_ms)
    except (struct.error, ValueError):
        raise CorruptionError(
            f"record of entry log {log_id:08x} in the index is {value.hex()}: rebuild the index"
        ) from None


class JournalPosition(NamedTuple):
    """Where replay of one journal directory begins: a block, and the sequence it must have."""

    directory: int
    file_id: int
    block_offset: int
    block_sequence: int


class LogMark(NamedTuple):
    """How far the journals are disposable: everything before these positions is in the index."""

    checkpoint: int
    journals: tuple[JournalPosition, ...]

    def encode(self) -> bytes:
        head = _MARK_VALUE.pack(self.checkpoint, len(self.journals))
        return head + b"".join(_JOURNAL_POSITION.pack(*journal) for journal in self.journals)


def decode_mark(value: bytes) -> LogMark:
    try:
        checkpoint, count = _MARK_VALUE.unpack_from(value)
        if len(value) != _MARK_VALUE.size + count * _JOURNAL_POSITION.size:
            raise struct.error
    except struct.error:
        raise CorruptionError(
            f"log mark in the index is {value.hex()}: rebuild the index"
        ) from None
    positions = _JOURNAL_POSITION.iter_unpack(value[_MARK_VALUE.size :])
    return LogMark(checkpoint, tuple(JournalPosition(*position) for position in positions))


def encode_flag(on: bool) -> bytes:
    """The value of a yes-or-no fact under `S`; a missing key says no."""
    return b"\1" if on else b"\0"


def decode_flag(value: bytes | None) -> bool:
    if value not in (None, b"\0", b"\1"):
        raise CorruptionError(f"store-wide flag in the index is {value!r}: rebuild the index")
    return value == b"\1"
