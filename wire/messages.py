"""Requests and answers as values: what both protocol generations can say.

The codecs turn them into frames and back. The hot paths (adds and reads of entries) have scanners
that make no object per entry; these classes serve everything else, tests and tools.

An answer to an error keeps its operation's shape, with the ids of the request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from wire.errors import Status
from wire.types import LedgerId, Operation

Bytes: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    ledger_id: LedgerId
    entry_id: int
    master_key: bytes = field(repr=False)
    body: Bytes  # the whole entry: ids, LAC, length, digest, payload
    recovery: bool = False
    high_priority: bool = False
    deferred_sync: bool = False  # v3 and ADD_BATCH only


@dataclass(frozen=True, slots=True, kw_only=True)
class AddResponse:
    status: Status
    ledger_id: LedgerId
    entry_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBatchRequest:
    """Our own request: many entries of one ledger as one unit (docs/formats/batch-frames.md)."""

    request_id: int
    ledger_id: LedgerId
    first_entry_id: int
    last_entry_id: int
    count: int
    master_key: bytes = field(repr=False)
    body: Bytes  # count x (u32 length, entry)
    format: int = 1
    recovery: bool = False
    high_priority: bool = False
    deferred_sync: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBatchResponse:
    status: Status
    request_id: int
    ledger_id: LedgerId
    first_entry_id: int
    last_entry_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    ledger_id: LedgerId
    entry_id: int  # LAST_ENTRY = the one with the highest id
    fence: bool = False
    master_key: bytes | None = field(default=None, repr=False)  # meaningful with `fence`
    high_priority: bool = False
    read_class_batch: bool = False  # v2 only: a scan is asking
    previous_lac: int | None = None  # v3: present = long poll
    timeout_ms: int | None = None  # v3: how long to park
    piggyback: bool = False  # v3: deliver entry `previous_lac + 1`


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResponse:
    status: Status
    ledger_id: LedgerId
    entry_id: int
    body: Bytes | None = None
    max_lac: int | None = None  # v3 only
    lac_update_ms: int | None = None  # v3 only


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReadRequest:
    request_id: int
    ledger_id: LedgerId
    first_entry_id: int
    count_max: int  # <= 0: no limit by count
    bytes_max: int
    fence: bool = False
    master_key: bytes | None = field(default=None, repr=False)
    high_priority: bool = False
    read_class_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReadResponse:
    status: Status
    request_id: int
    ledger_id: LedgerId
    first_entry_id: int
    entries: tuple[Bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLacRequest:
    ledger_id: LedgerId
    lac: int
    master_key: bytes = field(repr=False)
    body: bytes  # the explicit-LAC body: ids and digest


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLacResponse:
    status: Status
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLacRequest:
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLacResponse:
    status: Status
    ledger_id: LedgerId
    lac_body: bytes | None = None
    last_entry_body: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceRequest:
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceResponse:
    status: Status
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieInfoRequest:
    requested: int | None = None  # bits: 1 = total capacity, 2 = free space


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieInfoResponse:
    status: Status
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntriesRequest:
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntriesResponse:
    status: Status
    ledger_id: LedgerId
    availability: bytes | None = None  # see wire/availability.py


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthRequest:
    plugin: str
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthResponse:
    plugin: str
    payload: bytes = field(repr=False)
    status: Status = Status.OK  # v3 only: in v2 failure is a closed connection


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTlsRequest:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTlsResponse:
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class BareRequest:
    """A v3 request that has only a header: its sub-message is absent, or there is none for it."""

    operation: Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class BareResponse:
    """A v3 answer that has only a header and a status."""

    operation: Operation
    status: Status


Request: TypeAlias = (
    AddRequest
    | AddBatchRequest
    | ReadRequest
    | BatchReadRequest
    | WriteLacRequest
    | ReadLacRequest
    | ForceRequest
    | BookieInfoRequest
    | ListEntriesRequest
    | AuthRequest
    | StartTlsRequest
    | BareRequest
)
Response: TypeAlias = (
    AddResponse
    | AddBatchResponse
    | ReadResponse
    | BatchReadResponse
    | WriteLacResponse
    | ReadLacResponse
    | ForceResponse
    | BookieInfoResponse
    | ListEntriesResponse
    | AuthResponse
    | StartTlsResponse
    | BareResponse
)
