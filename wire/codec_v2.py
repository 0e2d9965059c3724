"""v2 frames as messages and back: the hand-packed protocol, versions 0 to 2.

One message at a time, for everything that is not hot, for tools and as the judge in tests. Adds and
reads by the hundred go through `scan_v2` and `build_v2`, which make no object per entry.

A request that is whole but must not be carried out decodes to a `Refusal`, which holds the answer
to send: the connection goes on. Bytes that are no request raise ProtocolError: it is closed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from wire.batch import RECORD_HEAD_BYTES, decode_batch, encode_batch, join_records, split_records
from wire.bookkeeper_pb2 import AuthMessage
from wire.entry import ENTRY_HEADER_BYTES
from wire.errors import ProtocolError, Status
from wire.framing import frame
from wire.header_v2 import VERSION_MAX, header_word, split_word, status_from_wire, status_on_wire
from wire.messages import (
    AddBatchRequest,
    AddBatchResponse,
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    BatchReadResponse,
    Bytes,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
)
from wire.types import MASTER_KEY_BYTES, Flag, LedgerId, Opcode

#: Fences carry a master key from this version on.
_KEYED_FENCE_VERSION_MIN: Final = 2

_WORD: Final = struct.Struct(">I")
_IDS: Final = struct.Struct(">qq")
_READ: Final = struct.Struct(">Iqq")  # header word, ledger id, entry id
_BATCH_READ: Final = struct.Struct(">Iqqqiq")  # ..., request id, count, bytes
_ANSWER: Final = struct.Struct(">Iiqq")  # header word, status, ledger id, entry id
_BATCH_READ_ANSWER: Final = struct.Struct(">Iiqqq")  # ..., request id
_ADD_BATCH_ANSWER: Final = struct.Struct(">IiQqqq")  # ..., request id, ledger id, first, last

ADD_HEAD_BYTES: Final = 4 + MASTER_KEY_BYTES
_ADD_BYTES_MIN: Final = ADD_HEAD_BYTES + _IDS.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request to be answered with an error and nothing else."""

    response: Response
    reason: str


class RequestFrame(NamedTuple):
    """A request with its version, which the answer has to repeat."""

    version: int
    request: Request | Refusal


# Requests


def encode_request(request: Request, *, version: int = VERSION_MAX) -> bytes:
    """A request as a whole frame."""
    match request:
        case AddRequest():
            assert not request.deferred_sync, "v2 adds cannot be deferred; v3 or ADD_BATCH can"
            assert len(request.master_key) == MASTER_KEY_BYTES
            flags = _flags(recovery=request.recovery, high_priority=request.high_priority)
            head = _WORD.pack(header_word(version, Opcode.ADD, flags))
            return frame(b"".join((head, request.master_key, request.body)))
        case ReadRequest():
            word = header_word(version, Opcode.READ, _read_flags(request))
            fixed = _READ.pack(word, request.ledger_id, request.entry_id)
            return frame(fixed + _fence_key(request, version))
        case BatchReadRequest():
            fixed = _BATCH_READ.pack(
                header_word(version, Opcode.BATCH_READ, _read_flags(request)),
                request.ledger_id,
                request.first_entry_id,
                request.request_id,
                request.count_max,
                request.bytes_max,
            )
            return frame(fixed + _fence_key(request, version))
        case AddBatchRequest():
            assert version == VERSION_MAX, "ADD_BATCH exists in version 2 only"
            return encode_batch(
                bytes(request.body),
                request_id=request.request_id,
                ledger_id=request.ledger_id,
                first_entry_id=request.first_entry_id,
                last_entry_id=request.last_entry_id,
                count=request.count,
                master_key=request.master_key,
                flags=_flags(
                    recovery=request.recovery,
                    high_priority=request.high_priority,
                    deferred_sync=request.deferred_sync,
                ),
                format=request.format,
            )
        case AuthRequest():
            return _encode_auth(request.plugin, request.payload, version)
    raise AssertionError(f"v2 has no {type(request).__name__}")


def decode_request(payload: Bytes) -> RequestFrame:
    """A payload, without its length, as a request."""
    if len(payload) < _WORD.size:
        raise ProtocolError(f"v2 request of {len(payload)} bytes has no room for its header")
    version, opcode, flags = split_word(_WORD.unpack_from(payload)[0])
    if opcode == Opcode.ADD:
        return RequestFrame(version, _decode_add(payload, version, flags))
    if opcode == Opcode.READ:
        return RequestFrame(version, _decode_read(payload, version, flags))
    if opcode == Opcode.BATCH_READ:
        return RequestFrame(version, _decode_batch_read(payload, version, flags))
    if opcode == Opcode.AUTH:  # its version is not looked at: authentication comes first
        plugin, token = _decode_auth(payload)
        return RequestFrame(version, AuthRequest(plugin=plugin, payload=token))
    if opcode == Opcode.ADD_BATCH:
        batch = decode_batch(payload, flags)
        if version != VERSION_MAX:
            return RequestFrame(
                version, refuse_batch(batch, Status.BAD_VERSION, _bad_version(version))
            )
        return RequestFrame(version, batch)
    raise ProtocolError(f"v2 request with opcode {opcode} (version {version}), which v2 has not")


def refuse_batch(request: AddBatchRequest, status: Status, reason: str) -> Refusal:
    """A batch is accepted or refused as a whole; this refuses it."""
    response = AddBatchResponse(
        status=status,
        request_id=request.request_id,
        ledger_id=request.ledger_id,
        first_entry_id=request.first_entry_id,
        last_entry_id=request.last_entry_id,
    )
    return Refusal(response=response, reason=reason)


def _decode_add(payload: Bytes, version: int, flags: int) -> AddRequest | Refusal:
    if len(payload) < _ADD_BYTES_MIN:
        raise _short("add", payload, _ADD_BYTES_MIN)
    ledger_id, entry_id = _IDS.unpack_from(payload, ADD_HEAD_BYTES)
    body = payload[ADD_HEAD_BYTES:]

    def refuse(status: Status, reason: str) -> Refusal:
        response = AddResponse(status=status, ledger_id=LedgerId(ledger_id), entry_id=entry_id)
        return Refusal(response=response, reason=reason)

    if version > VERSION_MAX:
        return refuse(Status.BAD_VERSION, _bad_version(version))
    if len(body) < ENTRY_HEADER_BYTES:
        return refuse(
            Status.BAD_REQUEST, f"entry of {len(body)} bytes, its header has {ENTRY_HEADER_BYTES}"
        )
    if ledger_id < 0 or entry_id < 0:
        # The journals of Java bookies give negative ids meanings of their own.
        return refuse(Status.BAD_REQUEST, f"add of entry {entry_id} to ledger {ledger_id}")
    return AddRequest(
        ledger_id=LedgerId(ledger_id),
        entry_id=entry_id,
        master_key=bytes(payload[4:ADD_HEAD_BYTES]),
        body=body,
        recovery=bool(flags & Flag.RECOVERY_ADD),
        high_priority=bool(flags & Flag.HIGH_PRIORITY),
    )


def _decode_read(payload: Bytes, version: int, flags: int) -> ReadRequest | Refusal:
    if len(payload) < _READ.size:
        raise _short("read", payload, _READ.size)
    _, ledger_id, entry_id = _READ.unpack_from(payload)
    key = _decode_fence_key(payload, _READ.size, version, flags)
    if version > VERSION_MAX:
        return Refusal(
            response=ReadResponse(
                status=Status.BAD_VERSION, ledger_id=LedgerId(ledger_id), entry_id=entry_id
            ),
            reason=_bad_version(version),
        )
    return ReadRequest(
        ledger_id=LedgerId(ledger_id),
        entry_id=entry_id,
        fence=bool(flags & Flag.FENCE),
        master_key=key,
        high_priority=bool(flags & Flag.HIGH_PRIORITY),
        read_class_batch=bool(flags & Flag.READ_CLASS_BATCH),
    )


def _decode_batch_read(payload: Bytes, version: int, flags: int) -> BatchReadRequest | Refusal:
    if len(payload) < _BATCH_READ.size:
        raise _short("batch read", payload, _BATCH_READ.size)
    _, ledger_id, first, request_id, count_max, bytes_max = _BATCH_READ.unpack_from(payload)
    key = _decode_fence_key(payload, _BATCH_READ.size, version, flags)

    if version > VERSION_MAX:
        return Refusal(
            response=BatchReadResponse(
                status=Status.BAD_VERSION,
                request_id=request_id,
                ledger_id=LedgerId(ledger_id),
                first_entry_id=first,
            ),
            reason=_bad_version(version),
        )
    return BatchReadRequest(
        request_id=request_id,
        ledger_id=LedgerId(ledger_id),
        first_entry_id=first,
        count_max=count_max,
        bytes_max=bytes_max,
        fence=bool(flags & Flag.FENCE),
        master_key=key,
        high_priority=bool(flags & Flag.HIGH_PRIORITY),
        read_class_batch=bool(flags & Flag.READ_CLASS_BATCH),
    )


# Answers


def encode_response(response: Response, *, version: int = VERSION_MAX) -> bytes:
    """An answer as a whole frame, with the version of its request."""
    match response:
        case AddResponse():
            word = header_word(version, Opcode.ADD)
            return frame(_encode_answer(word, response))
        case ReadResponse():
            fixed = _encode_answer(header_word(version, Opcode.READ), response)
            has_body = response.status is Status.OK and response.body is not None
            return frame(b"".join((fixed, response.body or b"")) if has_body else fixed)
        case BatchReadResponse():
            fixed = _BATCH_READ_ANSWER.pack(
                header_word(version, Opcode.BATCH_READ),
                status_on_wire(response.status),
                response.ledger_id,
                response.first_entry_id,
                response.request_id,
            )
            if response.status is not Status.OK or not response.entries:
                return frame(fixed)
            return frame(fixed + join_records([bytes(entry) for entry in response.entries]))
        case AddBatchResponse():
            return frame(
                _ADD_BATCH_ANSWER.pack(
                    header_word(version, Opcode.ADD_BATCH),
                    status_on_wire(response.status),
                    response.request_id,
                    response.ledger_id,
                    response.first_entry_id,
                    response.last_entry_id,
                )
            )
        case AuthResponse():
            assert response.status is Status.OK, "failed authentication is a closed connection"
            return _encode_auth(response.plugin, response.payload, version)
    raise AssertionError(f"v2 has no {type(response).__name__}")


def decode_response(payload: Bytes) -> Response:
    """A payload, without its length, as an answer. Version and flags of it mean nothing."""
    if len(payload) < _WORD.size:
        raise ProtocolError(f"v2 answer of {len(payload)} bytes has no room for its header")
    opcode = split_word(_WORD.unpack_from(payload)[0]).opcode
    if opcode == Opcode.ADD:
        status, ledger_id, entry_id = _decode_answer("add", payload)
        return AddResponse(status=status, ledger_id=ledger_id, entry_id=entry_id)
    if opcode == Opcode.READ:
        status, ledger_id, entry_id = _decode_answer("read", payload)
        body = payload[_ANSWER.size :] if status is Status.OK else None
        return ReadResponse(status=status, ledger_id=ledger_id, entry_id=entry_id, body=body)
    if opcode == Opcode.BATCH_READ:
        return _decode_batch_read_answer(payload)
    if opcode == Opcode.ADD_BATCH:
        if len(payload) < _ADD_BATCH_ANSWER.size:
            raise _short("ADD_BATCH answer", payload, _ADD_BATCH_ANSWER.size)
        _, code, request_id, ledger, first, last = _ADD_BATCH_ANSWER.unpack_from(payload)
        return AddBatchResponse(
            status=status_from_wire(code),
            request_id=request_id,
            ledger_id=LedgerId(ledger),
            first_entry_id=first,
            last_entry_id=last,
        )
    if opcode == Opcode.AUTH:
        plugin, token = _decode_auth(payload)
        return AuthResponse(plugin=plugin, payload=token)
    raise ProtocolError(f"v2 answer with opcode {opcode}, which v2 has not")


def _encode_answer(word: int, response: AddResponse | ReadResponse) -> bytes:
    code = status_on_wire(response.status)
    return _ANSWER.pack(word, code, response.ledger_id, response.entry_id)


def _decode_answer(name: str, payload: Bytes) -> tuple[Status, LedgerId, int]:
    if len(payload) < _ANSWER.size:
        raise _short(f"{name} answer", payload, _ANSWER.size)
    _, code, ledger_id, entry_id = _ANSWER.unpack_from(payload)
    return status_from_wire(code), LedgerId(ledger_id), entry_id


def _decode_batch_read_answer(payload: Bytes) -> BatchReadResponse:
    if len(payload) < _BATCH_READ_ANSWER.size:
        raise _short("batch read answer", payload, _BATCH_READ_ANSWER.size)
    _, code, ledger_id, first, request_id = _BATCH_READ_ANSWER.unpack_from(payload)
    status = status_from_wire(code)
    entries: tuple[bytes, ...] = ()
    if status is Status.OK:
        data = bytes(payload)
        bounds = split_records(data, _BATCH_READ_ANSWER.size, len(data))
        entries = tuple(data[begin + RECORD_HEAD_BYTES : end] for begin, end in pairwise(bounds))
    return BatchReadResponse(
        status=status,
        request_id=request_id,
        ledger_id=LedgerId(ledger_id),
        first_entry_id=first,
        entries=entries,
    )


# Parts of both


def _flags(*, recovery: bool, high_priority: bool, deferred_sync: bool = False) -> int:
    return (
        (Flag.RECOVERY_ADD if recovery else 0)
        | (Flag.HIGH_PRIORITY if high_priority else 0)
        | (Flag.DEFERRED_SYNC if deferred_sync else 0)
    )


def _read_flags(request: ReadRequest | BatchReadRequest) -> int:
    return (
        (Flag.FENCE if request.fence else 0)
        | (Flag.HIGH_PRIORITY if request.high_priority else 0)
        | (Flag.READ_CLASS_BATCH if request.read_class_batch else 0)
    )


def _fence_key(request: ReadRequest | BatchReadRequest, version: int) -> bytes:
    if not request.fence or version < _KEYED_FENCE_VERSION_MIN:
        return b""
    assert request.master_key is not None
    assert len(request.master_key) == MASTER_KEY_BYTES
    return request.master_key


def _decode_fence_key(payload: Bytes, offset: int, version: int, flags: int) -> bytes | None:
    """The key of a fence. The flag decides that there is one, never the length of the payload."""
    if not flags & Flag.FENCE or version < _KEYED_FENCE_VERSION_MIN:
        return None
    key = bytes(payload[offset : offset + MASTER_KEY_BYTES])
    if len(key) < MASTER_KEY_BYTES:
        raise ProtocolError(f"fence with {len(key)} bytes of master key, not {MASTER_KEY_BYTES}")
    return key


def _encode_auth(plugin: str, payload: bytes, version: int) -> bytes:
    message = AuthMessage(authPluginName=plugin, payload=payload)
    word = _WORD.pack(header_word(version, Opcode.AUTH))
    return frame(word + message.SerializeToString())


def _decode_auth(payload: Bytes) -> tuple[str, bytes]:
    """Plugin name and token. Either one missing makes it no message, as it does for Java."""
    try:
        message = AuthMessage.FromString(bytes(payload[_WORD.size :]))
    except DecodeError as error:
        raise ProtocolError(f"v2 AUTH without a readable AuthMessage: {error}") from error
    # The library checks neither that required fields are there nor that a string is UTF-8.
    if not message.IsInitialized() or not isinstance(message.authPluginName, str):
        raise ProtocolError("v2 AUTH whose AuthMessage lacks its plugin name or its token")
    return message.authPluginName, message.payload


def _bad_version(version: int) -> str:
    return f"v2 request of version {version}; 0 to {VERSION_MAX} are understood"


def _short(name: str, payload: Bytes, wanted: int) -> ProtocolError:
    return ProtocolError(f"v2 {name} of {len(payload)} bytes, at least {wanted} are needed")
