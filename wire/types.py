"""Names and numbers that every part shares. Values only: nothing here does anything."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final, NewType

LedgerId = NewType("LedgerId", int)
BookieId = NewType("BookieId", str)

#: "No entry": the LAC of a ledger without confirmed entries, so that `lac + 1` always works.
NO_ENTRY: Final = -1
#: In a read request: "the entry with the highest id that you hold".
LAST_ENTRY: Final = -1

ID_MAX: Final = 2**63 - 1

MASTER_KEY_BYTES: Final = 20

#: Default limit on one frame, counting its four length bytes (`nettyMaxFrameSizeBytes`).
FRAME_BYTES_MAX: Final = 5 * 1024 * 1024


class DigestType(IntEnum):
    """How entries of a ledger are protected. Numbers are those of the metadata format."""

    CRC32 = 1
    HMAC = 2  # the API of Apache calls it MAC
    CRC32C = 3
    DUMMY = 4


class Opcode(IntEnum):
    """Operations of the v2 protocol. ADD_BATCH is ours; Java peers are never sent one."""

    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7
    ADD_BATCH = 0x41


class Flag(IntFlag):
    """Request flags of the v2 protocol."""

    NONE = 0
    FENCE = 0x0001
    RECOVERY_ADD = 0x0002
    HIGH_PRIORITY = 0x0004
    DEFERRED_SYNC = 0x0100  # ADD_BATCH only; v2 itself has none
    READ_CLASS_BATCH = 0x0200  # a hint that a scan is asking; Java ignores it


class Operation(IntEnum):
    """Operations of the v3 protocol."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    RANGE_READ_ENTRY = 3
    RANGE_ADD_ENTRY = 4
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    GET_LIST_OF_ENTRIES_OF_LEDGER = 11
    BATCH_READ_ENTRY = 12
