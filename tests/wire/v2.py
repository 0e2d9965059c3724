"""Shared by the v2 tests: captured frames, their fields as messages, and random messages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from wire.batch import join_records
from wire.errors import Status
from wire.messages import (
    AddBatchRequest,
    AddBatchResponse,
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
)
from wire.types import Flag, LedgerId

_VECTORS = Path(__file__).parents[1] / "vectors"

_STATUSES = {
    "EOK": Status.OK,
    "ENOLEDGER": Status.NO_LEDGER,
    "ENOENTRY": Status.NO_ENTRY,
    "EBADREQ": Status.BAD_REQUEST,
    "EIO": Status.IO_ERROR,
    "EUA": Status.UNAUTHORIZED,
    "EBADVERSION": Status.BAD_VERSION,
    "EFENCED": Status.FENCED,
    "EREADONLY": Status.READ_ONLY,
    "ETOOMANYREQUESTS": Status.TOO_MANY_REQUESTS,
}


@cache
def load(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((_VECTORS / name).read_text())
    return vectors


def vectors() -> list[dict[str, Any]]:
    """The captured v2 frames."""
    return [vector for vector in load("wire-v2.json") if vector["version"] == "v2"]


def frames(direction: str) -> list[bytes]:
    """The different captured frames of one direction."""
    found = (bytes.fromhex(v["frame_hex"]) for v in vectors() if v["direction"] == direction)
    return list(dict.fromkeys(found))


def probes() -> dict[str, bytes]:
    """Hand-made byte sequences, most of them wrong, that were sent to a Java bookie as v2."""
    return {
        probe["name"]: b"".join(bytes.fromhex(part) for part in probe["sent_hex"])
        for probe in load("probes.json")
        if probe["sent_hex"] is not None and not probe["name"].startswith("v3.")
    }


def request_of(vector: dict[str, Any]) -> Request:
    """The message that a captured request must decode to."""
    fields = vector["fields"]
    flags = fields["flags"]
    key = fields.get("master_key_hex")
    match vector["operation"]:
        case "ADDENTRY":
            return AddRequest(
                ledger_id=LedgerId(fields["ledger_id"]),
                entry_id=fields["entry_id"],
                master_key=bytes.fromhex(key),
                body=bytes.fromhex(fields["body_hex"]),
                recovery=bool(flags & Flag.RECOVERY_ADD),
                high_priority=bool(flags & Flag.HIGH_PRIORITY),
            )
        case "READENTRY":
            return ReadRequest(
                ledger_id=LedgerId(fields["ledger_id"]),
                entry_id=fields["entry_id"],
                fence=bool(flags & Flag.FENCE),
                master_key=bytes.fromhex(key) if key is not None else None,
                high_priority=bool(flags & Flag.HIGH_PRIORITY),
            )
        case "BATCH_READ_ENTRY":
            return BatchReadRequest(
                request_id=fields["request_id"],
                ledger_id=LedgerId(fields["ledger_id"]),
                first_entry_id=fields["start_entry_id"],
                count_max=fields["max_count"],
                bytes_max=fields["max_size"],
                fence=bool(flags & Flag.FENCE),
                master_key=bytes.fromhex(key) if key is not None else None,
                high_priority=bool(flags & Flag.HIGH_PRIORITY),
            )
    assert vector["operation"] == "AUTH"
    return AuthRequest(
        plugin=fields["auth_plugin_name"], payload=bytes.fromhex(fields["auth_payload_hex"])
    )


def response_of(vector: dict[str, Any]) -> Response:
    """The message that a captured answer must decode to."""
    fields = vector["fields"]
    if vector["operation"] == "AUTH":
        return AuthResponse(
            plugin=fields["auth_plugin_name"], payload=bytes.fromhex(fields["auth_payload_hex"])
        )
    status = _STATUSES[fields["status"]]
    ledger_id, entry_id = LedgerId(fields["ledger_id"]), fields["entry_id"]
    match vector["operation"]:
        case "ADDENTRY":
            return AddResponse(status=status, ledger_id=ledger_id, entry_id=entry_id)
        case "READENTRY":
            body = bytes.fromhex(fields["body_hex"]) if "body_hex" in fields else None
            return ReadResponse(status=status, ledger_id=ledger_id, entry_id=entry_id, body=body)
    assert vector["operation"] == "BATCH_READ_ENTRY"
    return BatchReadResponse(
        status=status,
        request_id=fields["request_id"],
        ledger_id=ledger_id,
        first_entry_id=entry_id,
        entries=tuple(bytes.fromhex(entry) for entry in fields["entries_hex"]),
    )


# Random messages

ids = st.integers(0, 2**63 - 1).map(LedgerId)
signed = st.integers(-(2**63), 2**63 - 1)
unsigned = st.integers(0, 2**64 - 1)
keys = st.binary(min_size=20, max_size=20)
statuses = st.sampled_from([s for s in Status if s is not Status.UNKNOWN_LEDGER_STATE])
errors = statuses.filter(lambda status: status is not Status.OK)


def entry(ledger_id: int, entry_id: int, rest: bytes = b"", *, lac: int = -1) -> bytes:
    """An entry as a bookie sees it: ids that matter, and bytes that do not."""
    numbers = (ledger_id, entry_id, lac, len(rest))
    return b"".join(n.to_bytes(8, signed=True) for n in numbers) + rest


@st.composite
def add_requests(draw: st.DrawFn) -> AddRequest:
    ledger_id, entry_id = draw(ids), draw(ids)
    return AddRequest(
        ledger_id=ledger_id,
        entry_id=entry_id,
        master_key=draw(keys),
        body=entry(ledger_id, entry_id, draw(st.binary(max_size=64)), lac=draw(signed)),
        recovery=draw(st.booleans()),
        high_priority=draw(st.booleans()),
    )


@st.composite
def read_requests(draw: st.DrawFn) -> ReadRequest:
    key = draw(st.none() | keys)
    return ReadRequest(
        ledger_id=LedgerId(draw(signed)),
        entry_id=draw(signed),
        fence=key is not None,
        master_key=key,
        high_priority=draw(st.booleans()),
        read_class_batch=draw(st.booleans()),
    )


@st.composite
def batch_read_requests(draw: st.DrawFn) -> BatchReadRequest:
    key = draw(st.none() | keys)
    return BatchReadRequest(
        request_id=draw(signed),
        ledger_id=LedgerId(draw(signed)),
        first_entry_id=draw(ids),
        count_max=draw(st.integers(-(2**31), 2**31 - 1)),
        bytes_max=draw(signed),
        fence=key is not None,
        master_key=key,
        high_priority=draw(st.booleans()),
        read_class_batch=draw(st.booleans()),
    )


@st.composite
def add_batch_requests(draw: st.DrawFn) -> AddBatchRequest:
    ledger_id = draw(ids)
    entry_ids = sorted(draw(st.sets(st.integers(0, 100), min_size=1, max_size=40)))
    sizes = draw(st.sampled_from([[5], [0, 7, 300]]))
    entries = [entry(ledger_id, i, bytes(sizes[i % len(sizes)]), lac=i - 2) for i in entry_ids]
    return AddBatchRequest(
        request_id=draw(unsigned),
        ledger_id=ledger_id,
        first_entry_id=entry_ids[0],
        last_entry_id=entry_ids[-1],
        count=len(entry_ids),
        master_key=draw(keys),
        body=join_records(entries),
        recovery=draw(st.booleans()),
        high_priority=draw(st.booleans()),
        deferred_sync=draw(st.booleans()),
    )


auths = st.tuples(st.text(max_size=20), st.binary(max_size=40))
requests: st.SearchStrategy[Request] = st.one_of(
    add_requests(),
    read_requests(),
    batch_read_requests(),
    add_batch_requests(),
    auths.map(lambda auth: AuthRequest(plugin=auth[0], payload=auth[1])),
)
responses: st.SearchStrategy[Response] = st.one_of(
    st.builds(AddResponse, status=statuses, ledger_id=signed, entry_id=signed),
    st.builds(
        ReadResponse,
        status=st.just(Status.OK),
        ledger_id=signed,
        entry_id=signed,
        body=st.binary(max_size=64),
    ),
    st.builds(ReadResponse, status=errors, ledger_id=signed, entry_id=signed),
    st.builds(
        BatchReadResponse,
        status=st.just(Status.OK),
        request_id=signed,
        ledger_id=signed,
        first_entry_id=signed,
        entries=st.lists(st.binary(max_size=40), max_size=8).map(tuple),
    ),
    st.builds(
        BatchReadResponse, status=errors, request_id=signed, ledger_id=signed, first_entry_id=signed
    ),
    st.builds(
        AddBatchResponse,
        status=statuses,
        request_id=unsigned,
        ledger_id=signed,
        first_entry_id=signed,
        last_entry_id=signed,
    ),
    auths.map(lambda auth: AuthResponse(plugin=auth[0], payload=auth[1])),
)
