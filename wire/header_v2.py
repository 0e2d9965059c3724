"""The first word of every v2 payload, and the status numbers of v2."""

from __future__ import annotations

from typing import Final, NamedTuple

from wire.errors import STATUS_BY_V2, ProtocolError, Status

#: Versions 0 to this one are understood; answers repeat the version of their request.
VERSION_MAX: Final = 2


class Header(NamedTuple):
    """Version 0 has an opcode only; the others add 16 bits of flags."""

    version: int
    opcode: int
    flags: int


def status_on_wire(status: Status) -> int:
    """The number of a status in v2.

    Java's v2 decoder has no mapping for "unknown ledger state", throws, and loses every other
    request of the connection; it is told EIO, which says as little about the entry.
    """
    return Status.IO_ERROR.v2 if status is Status.UNKNOWN_LEDGER_STATE else status.v2


def status_from_wire(code: int) -> Status:
    status = STATUS_BY_V2.get(code)
    if status is None:
        raise ProtocolError(f"answer with status {code}, which v2 does not have")
    return status


def header_word(version: int, opcode: int, flags: int = 0) -> int:
    """The first four bytes of a payload as a number. Version 0 has no room for flags."""
    if version == 0:
        assert not flags, "version 0 cannot carry flags"
        return opcode
    return version << 24 | opcode << 16 | flags


def split_word(word: int) -> Header:
    version = word >> 24
    if version == 0:
        return Header(0, word & 0xFF, 0)
    return Header(version, word >> 16 & 0xFF, word & 0xFFFF)
