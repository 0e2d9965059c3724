"""What the direct scanners take, what they leave, and how they walk a buffer of frames."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.wire.v3_checks import (
    CHECKS,
    KEY,
    USUAL,
    check_add,
    entry,
)
from tests.wire.v3_samples import payload_of, v3_frames
from wire import messages
from wire.build_v3 import add_answers
from wire.codec_v3 import encode_request
from wire.errors import Status
from wire.scan_v3 import (
    scan_add,
    scan_add_answer,
    scan_add_answers,
    scan_read,
    scan_read_answer,
)
from wire.types import Flag, LedgerId
from wire.varint import encode_varint

FRAMES = v3_frames()


def usual_request(vector: dict[str, Any]) -> str | None:
    fields = vector["fields"]
    if vector["operation"] == "ADD_ENTRY":
        return "add"
    if vector["operation"] == "READ_ENTRY" and set(fields["field_order"]) == {1, 2}:
        return "read"
    return None


def usual_answer(vector: dict[str, Any]) -> str | None:
    fields = vector["fields"]
    if fields["status"] != "EOK":
        return None
    if vector["operation"] == "ADD_ENTRY":
        return "add answer"
    if "body_hex" in fields and "lac_update_timestamp" not in fields:
        return "read answer"
    return None


@pytest.mark.parametrize("kind", CHECKS)
def test_what_java_sends_on_the_hot_path_is_usual(kind: str) -> None:
    """Of every recorded frame the scanner takes exactly those it was made for."""
    for vector in FRAMES:
        is_request = vector["direction"] == "request"
        if is_request == kind.endswith("answer"):
            continue
        expected = (usual_request if is_request else usual_answer)(vector) == kind
        fields = vector["fields"]
        body = fields.get("body")
        if kind == "add" and expected:
            expected = (body["ledger_id"], body["entry_id"]) == (
                fields["ledger_id"], fields["entry_id"],
            )  # fmt: skip
        assert CHECKS[kind](payload_of(vector)) == expected, vector["name"]


@pytest.mark.parametrize("flags", range(8))
@pytest.mark.parametrize("flag_last", [False, True])
def test_every_combination_of_flags_is_usual(flags: int, flag_last: bool) -> None:
    recovery, high_priority, deferred = (bool(flags & bit) for bit in (1, 2, 4))
    body = entry(7, 8)
    message = b"\x08\x07\x10\x08\x1a\x14" + KEY + b"\x22" + encode_varint(len(body)) + body
    message += b"\x28\x01" if deferred else b""
    if recovery:
        message = message + b"\xa0\x06\x01" if flag_last else b"\xa0\x06\x01" + message
    header = b"\x08\x03\x10\x02\x18\x09" + (b"\x20\x64" if high_priority else b"")
    payload = (
        b"\x0a" + bytes((len(header),)) + header + b"\xaa\x06" + bytes((len(message),)) + message
    )
    assert check_add(payload)
    scanned = scan_add(payload, 0, len(payload))
    assert scanned is not None
    assert scanned[3] == (
        Flag.RECOVERY_ADD * recovery
        + Flag.HIGH_PRIORITY * high_priority
        + Flag.DEFERRED_SYNC * deferred
    )


def test_flag_at_both_ends_is_unusual() -> None:
    """A field given twice is for the library to judge, even where both agree."""
    body = entry(7, 8)
    message = b"\xa0\x06\x01\x08\x07\x10\x08\x1a\x14" + KEY + b"\x22\x20" + body
    header = b"\x0a\x06\x08\x03\x10\x02\x18\x09\xaa\x06"
    once = header + bytes((len(message),)) + message
    twice = header + bytes((len(message) + 3,)) + message + b"\xa0\x06\x01"
    assert check_add(once)
    assert not check_add(twice)


@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("buffer_type", [bytes, bytearray, memoryview])
def test_any_buffer_at_any_offset_will_do(kind: str, buffer_type: type[Any]) -> None:
    payload = USUAL[kind]
    scanner: Any = {
        "add": scan_add, "read": scan_read,
        "add answer": scan_add_answer, "read answer": scan_read_answer,
    }[kind]  # fmt: skip
    plain = scanner(payload, 0, len(payload))
    moved = scanner(buffer_type(b"\x0a" * 11 + payload + b"\x28\x01"), 11, 11 + len(payload))
    offsets = {"add": (5, 6), "read answer": (3, 4)}.get(kind, ())
    assert moved == tuple(
        value + 11 if index in offsets else value for index, value in enumerate(plain)
    )


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "body"),
    [
        (1, 2, entry(1, 3)),  # another entry inside
        (1, 2, entry(3, 2)),  # another ledger inside
        (1, 2, entry(1, 2)[:31]),  # too short for the header of an entry
        (1, -1, struct.pack(">qqqq", 1, -1, 0, 0)),
        (-1, 2, struct.pack(">qqqq", -1, 2, 0, 0)),
    ],
)
def test_entry_that_a_bookie_must_refuse_is_unusual(
    ledger_id: int, entry_id: int, body: bytes
) -> None:
    request = messages.AddRequest(
        ledger_id=LedgerId(ledger_id), entry_id=entry_id, master_key=KEY, body=body
    )
    payload = encode_request(request, transaction_id=1)[4:]
    assert scan_add(payload, 0, len(payload)) is None


def test_add_answers_are_scanned_up_to_the_first_refusal() -> None:
    done = [(txn, 70_000 + txn % 3, 2**txn) for txn in range(40)]
    acknowledged = add_answers(done)
    buffer = acknowledged + add_answers([(99, 1, 2)], Status.FENCED) + acknowledged
    assert scan_add_answers(buffer, 0, len(buffer)) == (done, len(acknowledged))
    assert scan_add_answers(buffer, 0, len(acknowledged) - 1)[0] == done[:-1]
