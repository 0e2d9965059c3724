"""Errors, named by what the caller should do next, and the one table that maps status codes.

Every error that this project raises on purpose is a `LedgerError`. A message says what was
found, where, and what to do about it, in one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class LedgerError(Exception):
    """Root of everything this project raises on purpose."""

    #: What it is about, for programs; the message says it to people. None where it does not apply.
    ledger_id: int | None = None
    entry_id: int | None = None
    bookie_id: str | None = None


class ProtocolError(LedgerError):
    """A peer sent bytes that are no message. The connection cannot be used any further."""


class TransientError(LedgerError):
    """The same request may succeed later, or now on another bookie."""


class BookieUnavailableError(TransientError):
    """No connection to the bookie: refused, unresolved, or lost before the answer."""


class RequestTimeoutError(TransientError):
    """The bookie did not answer in time; the request may or may not have been carried out."""


class TooManyRequestsError(TransientError):
    """The bookie is overloaded."""


class BookieIOError(TransientError):
    """The bookie could not read or write its storage; whether the entry exists stays open."""


class BadRequestError(LedgerError):
    """The bookie understood the request and finds it wrong."""


class ReadOnlyBookieError(TransientError):
    """The bookie takes no new entries at present; it still serves reads."""


class UnknownLedgerStateError(TransientError):
    """The bookie may have lost data of this ledger, so it neither confirms nor denies."""


class NotFoundError(LedgerError):
    """The bookie answered, and does not hold this ledger or entry."""


class NoSuchLedgerError(NotFoundError):
    """The ledger does not exist there."""


class NoSuchEntryError(NotFoundError):
    """The ledger exists there, the entry does not."""


class FencedError(LedgerError):
    """Another client took the ledger over. Stop writing; only recovery knows what survived."""


class UnauthorizedError(LedgerError):
    """Wrong ledger password, or a connection that is not authenticated."""


class VersionError(LedgerError):
    """The peer does not speak this version of the protocol."""


class CorruptionError(LedgerError):
    """Stored or received bytes fail their checksum. Use another replica and report this one."""


@dataclass(frozen=True, slots=True)
class _Row:
    v2: int
    v3: int
    client: int | None  # BKException code; None = depends on the operation
    error: type[LedgerError] | None


class Status(Enum):
    """The outcome of one request, in both protocol generations."""

    OK = _Row(0, 0, 0, None)
    NO_LEDGER = _Row(1, 402, -7, NoSuchLedgerError)
    NO_ENTRY = _Row(2, 403, -13, NoSuchEntryError)
    BAD_REQUEST = _Row(100, 404, None, BadRequestError)
    IO_ERROR = _Row(101, 501, None, BookieIOError)
    UNAUTHORIZED = _Row(102, 502, -102, UnauthorizedError)
    BAD_VERSION = _Row(103, 503, -16, VersionError)
    FENCED = _Row(104, 504, -101, FencedError)
    READ_ONLY = _Row(105, 505, -104, ReadOnlyBookieError)
    TOO_MANY_REQUESTS = _Row(106, 506, -105, TooManyRequestsError)
    UNKNOWN_LEDGER_STATE = _Row(107, 507, -108, UnknownLedgerStateError)

    @property
    def v2(self) -> int:
        return self.value.v2

    @property
    def v3(self) -> int:
        return self.value.v3

    @property
    def client_code(self) -> int | None:
        """The code that Apache's client reports, unless that depends on the operation."""
        return self.value.client

    @property
    def error(self) -> type[LedgerError] | None:
        return self.value.error


STATUS_BY_V2: Final = {status.v2: status for status in Status}
STATUS_BY_V3: Final = {status.v3: status for status in Status}
