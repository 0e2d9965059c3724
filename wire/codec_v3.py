"""The v3 protocol: protobuf frames to the values of `messages` and back.

The protobuf library decides here what a valid message is; adds and reads of the usual shape take
the short cut of `scan_v3` and `build_v3` instead. Decoders take a payload, encoders return a whole
frame with its length.

Two rules come from how Java bookies tell v3 from v2 (docs/formats/wire-v3.md). Bytes that are no
complete `Request` are not an error yet: `NotV3Error` says that the connection speaks v2 from here
on. And a request that is complete but makes no sense still has a transaction id, so it is decoded
and left to the server to refuse with a status: an old version number in the header, an operation
that never had a message, or an operation whose message is missing (`BareRequest`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from wire import bookkeeper_pb2 as pb
from wire import messages
from wire.build_v3 import HIGH_PRIORITY
from wire.errors import STATUS_BY_V3, ProtocolError, Status
from wire.framing import frame
from wire.messages import Bytes, Request, Response
from wire.types import Operation
from wire.varint import encode_varint

VERSION: Final = 3

_HEADER_TAG: Final = b"\x0a"
_STATUS_TAG: Final = b"\x10"
_FLAG_TAG: Final = b"\xa0\x06"  # field 100 of both AddRequest and ReadRequest
_LENGTH_DELIMITED: Final = 2
_DEFERRED_SYNC: Final = 1


class NotV3Error(ProtocolError):
    """The bytes are no v3 request. On a connection that has not spoken v2 yet, they may be v2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What stands before every v3 message. Anything but version 3 is answered BAD_VERSION."""

    transaction_id: int  # unsigned; chosen by the client, copied into the answer
    operation: Operation
    version: int = VERSION
    priority: int = 0


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one of our values is written as the message of its operation."""

    operation: Operation
    number: int  # of the message inside Request and Response
    name: str
    value: type[Any]
    message: type[Any]
    fields: dict[str, str]  # our name to theirs; None with us is absent with them


_LEDGER: Final = {"ledger_id": "ledgerId"}
_ENTRY: Final = {**_LEDGER, "entry_id": "entryId"}
_AUTH: Final = {"plugin": "authPluginName", "payload": "payload"}

_REQUESTS: Final = (
    _Shape(
        Operation.READ_ENTRY, 100, "readRequest", messages.ReadRequest, pb.ReadRequest,
        {
            **_ENTRY, "master_key": "masterKey",
            "previous_lac": "previousLAC", "timeout_ms": "timeOut",
        },
    ),
    _Shape(
        Operation.ADD_ENTRY, 101, "addRequest", messages.AddRequest, pb.AddRequest,
        {**_ENTRY, "master_key": "masterKey", "body": "body"},
    ),
    _Shape(Operation.AUTH, 102, "authRequest", messages.AuthRequest, pb.AuthMessage, _AUTH),
    _Shape(
        Operation.WRITE_LAC, 103, "writeLacRequest", messages.WriteLacRequest, pb.WriteLacRequest,
        {**_LEDGER, "lac": "lac", "master_key": "masterKey", "body": "body"},
    ),
    _Shape(
        Operation.READ_LAC, 104, "readLacRequest", messages.ReadLacRequest, pb.ReadLacRequest,
        _LEDGER,
    ),
    _Shape(
        Operation.GET_BOOKIE_INFO, 105, "getBookieInfoRequest",
        messages.BookieInfoRequest, pb.GetBookieInfoRequest, {"requested": "requested"},
    ),
    _Shape(
        Operation.START_TLS, 106, "startTLSRequest",
        messages.StartTlsRequest, pb.StartTLSRequest, {},
    ),
    _Shape(
        Operation.FORCE_LEDGER, 107, "forceLedgerRequest",
        messages.ForceRequest, pb.ForceLedgerRequest, _LEDGER,
    ),
    _Shape(
        Operation.GET_LIST_OF_ENTRIES_OF_LEDGER, 108, "getListOfEntriesOfLedgerRequest",
        messages.ListEntriesRequest, pb.GetListOfEntriesOfLedgerRequest, _LEDGER,
    ),
)  # fmt: skip
_RESPONSES: Final = (
    _Shape(
        Operation.READ_ENTRY, 100, "readResponse", messages.ReadResponse, pb.ReadResponse,
        {**_ENTRY, "body": "body", "max_lac": "maxLAC", "lac_update_ms": "lacUpdateTimestamp"},
    ),
    _Shape(
        Operation.ADD_ENTRY, 101, "addResponse", messages.AddResponse, pb.AddResponse, _ENTRY,
    ),
    _Shape(Operation.AUTH, 102, "authResponse", messages.AuthResponse, pb.AuthMessage, _AUTH),
    _Shape(
        Operation.WRITE_LAC, 103, "writeLacResponse",
        messages.WriteLacResponse, pb.WriteLacResponse, _LEDGER,
    ),
    _Shape(
        Operation.READ_LAC, 104, "readLacResponse", messages.ReadLacResponse, pb.ReadLacResponse,
        {**_LEDGER, "lac_body": "lacBody", "last_entry_body": "lastEntryBody"},
    ),
    _Shape(
        Operation.GET_BOOKIE_INFO, 105, "getBookieInfoResponse",
        messages.BookieInfoResponse, pb.GetBookieInfoResponse,
        {"total_bytes": "totalDiskCapacity", "free_bytes": "freeDiskSpace"},
    ),
    _Shape(
        Operation.START_TLS, 106, "startTLSResponse",
        messages.StartTlsResponse, pb.StartTLSResponse, {},
    ),
    _Shape(
        Operation.FORCE_LEDGER, 107, "forceLedgerResponse",
        messages.ForceResponse, pb.ForceLedgerResponse, _LEDGER,
    ),
    _Shape(
        Operation.GET_LIST_OF_ENTRIES_OF_LEDGER, 108, "getListOfEntriesOfLedgerResponse",
        messages.ListEntriesResponse, pb.GetListOfEntriesOfLedgerResponse,
        {**_LEDGER, "availability": "availabilityOfEntriesOfLedger"},
    ),
)  # fmt: skip
_REQUEST_OF: Final = {shape.operation: shape for shape in _REQUESTS}
_RESPONSE_OF: Final = {shape.operation: shape for shape in _RESPONSES}
_SHAPE_BY_VALUE: Final = {shape.value: shape for shape in _REQUESTS + _RESPONSES}

#: Requests that are complete without their message.
_MESSAGE_OPTIONAL: Final[dict[Operation, Request]] = {
    Operation.AUTH: messages.AuthRequest(plugin="", payload=b""),
    Operation.GET_BOOKIE_INFO: messages.BookieInfoRequest(),
    Operation.START_TLS: messages.StartTlsRequest(),
}
#: Their messages have no status of their own.
_OUTER_STATUS_ONLY: Final = (Operation.AUTH, Operation.START_TLS)


def decode_request(payload: Bytes) -> tuple[Header, Request]:
    """What a client asks. Raises `NotV3Error` for bytes that are no complete v3 request."""
    message = pb.Request()
    _parse(message, payload, NotV3Error)
    header = _decode_header(message.header)
    operation = header.operation
    shape = _REQUEST_OF.get(operation)
    if shape is None:
        return header, messages.BareRequest(operation=operation)
    if not message.HasField(shape.name):
        bare = messages.BareRequest(operation=operation)
        return header, _MESSAGE_OPTIONAL.get(operation, bare)
    inner = getattr(message, shape.name)
    values = _decode_fields(shape, inner)
    # A flag that is absent reads as the first of its enum, so its presence comes first. An unknown
    # one counts as absent.
    if operation is Operation.ADD_ENTRY:
        values["recovery"] = inner.HasField("flag")
        values["deferred_sync"] = bool(inner.writeFlags & _DEFERRED_SYNC)
        values["high_priority"] = header.priority > 0
    elif operation is Operation.READ_ENTRY:
        flag = inner.flag if inner.HasField("flag") else None
        values["fence"] = flag == pb.ReadRequest.FENCE_LEDGER
        values["piggyback"] = flag == pb.ReadRequest.ENTRY_PIGGYBACK
        values["high_priority"] = header.priority > 0
    request: Request = shape.value(**values)
    return header, request


def encode_request(request: Request, *, transaction_id: int) -> bytes:
    """The frame of a request. Its priority follows from the request's `high_priority`."""
    if isinstance(request, messages.BareRequest):
        return frame(_encode_header(request.operation, transaction_id))
    shape = _shape_of(request)
    inner = _encode_fields(shape, request)
    flag: int | None = None
    high_priority = False
    if isinstance(request, messages.AddRequest):
        high_priority = request.high_priority
        flag = pb.AddRequest.RECOVERY_ADD if request.recovery else None
        if request.deferred_sync:
            inner.writeFlags = _DEFERRED_SYNC
    elif isinstance(request, messages.ReadRequest):
        high_priority = request.high_priority
        assert not (request.fence and request.piggyback), "the message has room for one flag"
        if request.fence:
            flag = pb.ReadRequest.FENCE_LEDGER
        elif request.piggyback:
            flag = pb.ReadRequest.ENTRY_PIGGYBACK
    # The library would write the flag last, as Apache's 4.17 does; 4.18 writes it first.
    first = b"" if flag is None else _FLAG_TAG + encode_varint(flag)
    header = _encode_header(shape.operation, transaction_id, HIGH_PRIORITY if high_priority else 0)
    return frame(header + _encode_inner(shape, first + inner.SerializeToString()))


def decode_response(payload: Bytes) -> tuple[Header, Response]:
    """What a bookie answers. The outer status counts unless it is OK; then the inner one does.

    An OK without the message it needs is refused: Java takes it for a success, that is, for an add
    that was stored or an entry that is empty. A wrong answer must not become either.
    """
    message = pb.Response()
    _parse(message, payload, ProtocolError)
    header = _decode_header(message.header)
    operation = header.operation
    status = STATUS_BY_V3[message.status]
    shape = _RESPONSE_OF.get(operation)
    if shape is not None and message.HasField(shape.name):
        inner = getattr(message, shape.name)
        if status is Status.OK and operation not in _OUTER_STATUS_ONLY:
            status = STATUS_BY_V3[inner.status]
        response: Response = shape.value(status=status, **_decode_fields(shape, inner))
        return header, response
    if status is not Status.OK:
        return header, messages.BareResponse(operation=operation, status=status)
    if operation is Operation.START_TLS:  # its message is empty, so nothing is missing
        return header, messages.StartTlsResponse(status=status)
    raise ProtocolError(f"v3 response to {operation.name} says OK but lacks its message")


def encode_response(response: Response, *, transaction_id: int, priority: int = 0) -> bytes:
    """The frame of an answer. `priority` is the request's; only AUTH and bare answers repeat it."""
    status = encode_varint(response.status.v3)
    if isinstance(response, messages.BareResponse):
        header = _encode_header(response.operation, transaction_id, priority)
        return frame(header + _STATUS_TAG + status)
    shape = _shape_of(response)
    inner = _encode_fields(shape, response)
    if shape.operation not in _OUTER_STATUS_ONLY:
        inner.status = response.status.v3
    if shape.operation is not Operation.AUTH:
        priority = 0
    header = _encode_header(shape.operation, transaction_id, priority)
    body = _encode_inner(shape, inner.SerializeToString())
    return frame(header + _STATUS_TAG + status + body)


def refusal(request: Request, status: Status) -> Response:
    """The answer of `request`'s shape that says why it was not carried out, with its ids.

    AUTH, START_TLS and bare requests are refused with a bare answer.
    """
    assert status is not Status.OK, "OK is no refusal"
    if isinstance(request, messages.BareRequest):
        return messages.BareResponse(operation=request.operation, status=status)
    operation = _shape_of(request).operation
    if operation in _OUTER_STATUS_ONLY:
        return messages.BareResponse(operation=operation, status=status)
    shape = _RESPONSE_OF[operation]
    ids = {name: getattr(request, name) for name in _ENTRY if name in shape.fields}
    response: Response = shape.value(status=status, **ids)
    return response


def _parse(
    message: pb.Request | pb.Response, payload: Bytes, error_type: type[ProtocolError]
) -> None:
    kind = type(message).__name__
    try:
        message.ParseFromString(payload)  # type: ignore[arg-type]  # it takes any buffer
    except DecodeError as error:
        found = bytes(payload[:8]).hex(" ")
        raise error_type(
            f"payload of {len(payload)} bytes, beginning {found}, is no v3 {kind}"
        ) from error
    # Unknown numbers in required enums end here too: the library treats such fields as absent.
    if not message.IsInitialized():
        raise error_type(f"v3 {kind} lacks a required field, or has an unknown number in one")


def _decode_header(header: pb.BKPacketHeader) -> Header:
    return Header(
        transaction_id=header.txnId,
        operation=Operation(header.operation),
        version=header.version,
        priority=header.priority,
    )


def _decode_fields(shape: _Shape, message: Any) -> dict[str, Any]:
    values = {
        ours: getattr(message, theirs)
        for ours, theirs in shape.fields.items()
        if message.HasField(theirs)
    }
    plugin = values.get("plugin")
    if isinstance(plugin, bytes):  # how the library hands out a string that is no UTF-8
        values["plugin"] = plugin.decode(errors="replace")
    return values


def _shape_of(value: Request | Response) -> _Shape:
    shape = _SHAPE_BY_VALUE.get(type(value))
    if shape is None:
        raise AssertionError(f"v3 has no {type(value).__name__}")
    return shape


def _encode_fields(shape: _Shape, value: Request | Response) -> Any:
    fields: dict[str, Any] = {}
    for ours, theirs in shape.fields.items():
        field = getattr(value, ours)
        if field is not None:
            fields[theirs] = bytes(field) if isinstance(field, memoryview) else field
    return shape.message(**fields)


def _encode_header(operation: Operation, transaction_id: int, priority: int = 0) -> bytes:
    header = pb.BKPacketHeader(
        version=pb.VERSION_THREE,
        operation=int(operation),  # type: ignore[arg-type]  # the numbers are the same
        txnId=transaction_id,
        priority=priority or None,
    ).SerializeToString()
    return _HEADER_TAG + encode_varint(len(header)) + header


def _encode_inner(shape: _Shape, message: bytes) -> bytes:
    tag = encode_varint(shape.number << 3 | _LENGTH_DELIMITED)
    return tag + encode_varint(len(message)) + message
