"""The small payloads of the tree: marks, locks, votes, check times, the delay, two identities.

Text ones are protobuf text, check times are binary, and the delay is plain decimal. Everything a
human debugs with `zkCli get` reads well, except the times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from metadata.model import InvalidMetadataError, check_bookie_id
from metadata.text_format import TextFormatError, format_text, parse_text
from wire.bookkeeper_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)
from wire.types import BookieId

_M = TypeVar("_M", bound=Message)

_DECIMAL: Final = re.compile(rb"[0-9]{1,10}")
_INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class UnderreplicationMark:
    """ "Copies of this ledger are missing": the bookies that should hold them, oldest loss first.

    Replicas are read as they are, even an id that we would not write: a mark that cannot be read
    is a ledger that nobody repairs.
    """

    replicas: tuple[BookieId, ...]
    ctime_ms: int | None = None  # when last marked, by the marker's clock

    def merged(self, replicas: Iterable[BookieId], *, now_ms: int | None) -> Self:
        """This mark with more replicas and a fresh time, or itself if all are listed already.

        Itself means: do not write. A write would bump the version and make a worker's delete
        fail for nothing. `now_ms` None leaves the time out, as the setting may ask.
        """
        added = [replica for replica in dict.fromkeys(replicas) if replica not in self.replicas]
        if not added:
            return self
        return type(self)((*self.replicas, *map(check_bookie_id, added)), now_ms)


def encode_mark(mark: UnderreplicationMark) -> bytes:
    return format_text(UnderreplicatedLedgerFormat(replica=mark.replicas, ctime=mark.ctime_ms))


def decode_mark(data: bytes, *, path: str = "mark") -> UnderreplicationMark:
    message = _parse(data, UnderreplicatedLedgerFormat(), path)
    return UnderreplicationMark(
        tuple(map(BookieId, message.replica)),
        message.ctime if message.HasField("ctime") else None,
    )


def encode_lock(owner: str) -> bytes:
    """Who holds the lock. Java writes a host name, whatever the field is called."""
    return format_text(LockDataFormat(bookieId=owner))


def decode_lock(data: bytes, *, path: str = "lock") -> str | None:
    message = _parse(data, LockDataFormat(), path)
    return message.bookieId if message.HasField("bookieId") else None


def encode_vote(bookie_id: BookieId) -> bytes:
    """Java's tools parse it as a bookie id, so it must be one."""
    return format_text(AuditorVoteFormat(bookieId=check_bookie_id(bookie_id)))


def decode_vote(data: bytes, *, path: str = "vote") -> BookieId | None:
    """None before anybody was ever elected."""
    message = _parse(data, AuditorVoteFormat(), path)
    if not message.HasField("bookieId"):
        return None
    try:
        return check_bookie_id(message.bookieId)
    except InvalidMetadataError as error:
        raise InvalidMetadataError(f"{path}: {error}") from None


def encode_check_time(time_ms: int) -> bytes:
    """When a periodic check last completed. The three kinds differ only in the field's name."""
    return CheckAllLedgersFormat(checkAllLedgersCTime=time_ms).SerializeToString()


def decode_check_time(data: bytes, *, path: str = "check time") -> int | None:
    message = CheckAllLedgersFormat()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise InvalidMetadataError(f"{path} is not a time, found {data[:40]!r}") from None
    return message.checkAllLedgersCTime if message.HasField("checkAllLedgersCTime") else None


def encode_delay(seconds: int) -> bytes:
    if not 0 <= seconds <= _INT32_MAX:
        raise InvalidMetadataError(f"delay of {seconds} seconds is outside 0..2^31-1")
    return str(seconds).encode()


def decode_delay(data: bytes, *, path: str = "lostBookieRecoveryDelay") -> int:
    if _DECIMAL.fullmatch(data) is None or int(data) > _INT32_MAX:
        raise InvalidMetadataError(f"{path} wants seconds in decimal, found {data[:40]!r}")
    return int(data)


def encode_underreplication_layout() -> bytes:
    return format_text(LedgerRereplicationLayoutFormat(type="BASIC", version=1))


def check_underreplication_layout(data: bytes, *, path: str = "underreplication/LAYOUT") -> None:
    """Another layout stops autorecovery: marks would be written where nobody looks."""
    message = _parse(data, LedgerRereplicationLayoutFormat(), path)
    if (message.type, message.version) != ("BASIC", 1):
        raise InvalidMetadataError(
            f"{path} asks for {message.type} version {message.version}, only BASIC version 1 "
            "is known; upgrade"
        )


def decode_instance_id(data: bytes, *, path: str = "INSTANCEID") -> str:
    """The cluster's own id. Java writes a UUID but compares any text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise InvalidMetadataError(f"{path} holds no instance id, found {data[:40]!r}")
    return text


def _parse(data: bytes, message: _M, path: str) -> _M:
    try:
        return parse_text(data, message)
    except TextFormatError as error:
        raise InvalidMetadataError(f"{path}: {error}") from error
