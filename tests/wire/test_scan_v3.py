"""What the direct scanners take, what they leave, and how they walk a buffer of frames."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.v3_checks import (
    CHECKS,
    EDITS,
    KEY,
    USUAL,
    check_add,
    edited,
    entry,
    framed,
    usual_add,
)
from tests.wire.v3_samples import payload_of, steady, v3_frames
from wire import messages
from wire.build_v3 import add_answers
from wire.codec_v3 import encode_request
from wire.errors import Status
from wire.scan_v3 import (
    ScannedAdd,
    scan_add,
    scan_add_answer,
    scan_add_answers,
    scan_adds,
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


# ---------------------------------------------------------------- buffers of many frames


def one_by_one(buffer: bytes, offset: int, end: int) -> tuple[list[ScannedAdd], int]:
    """What `scan_adds` means, without its memory of the last frame."""
    adds = []
    while offset + 4 <= end:
        frame_end = offset + 4 + int.from_bytes(buffer[offset : offset + 4], "big")
        add = scan_add(buffer, offset + 4, frame_end) if frame_end <= end else None
        if add is None:
            break
        adds.append(add)
        offset = frame_end
    return adds, offset


@st.composite
def buffers(draw: st.DrawFn) -> bytes:
    payloads = draw(
        st.lists(
            st.builds(
                usual_add,
                txn=st.integers(120, 140) | st.integers(0, 2**63 - 1),
                ledger_id=st.sampled_from((5, 6, 70_000, 70_001, 2**62)),
                entry_id=st.integers(120, 135) | st.integers(0, 2**63 - 1),
                payload=st.integers(0, 300).map(bytes),
                flags=st.sampled_from((0, 0, 0, 0, 2, 4, 0x100, 0x106)),
            ),
            min_size=1,
            max_size=12,
        )
    )
    if draw(st.booleans()):
        index = draw(st.integers(0, len(payloads) - 1))
        payloads[index] = edited(payloads[index], draw(EDITS))
    joined = b"".join(map(framed, payloads))
    if draw(st.booleans()):
        joined = edited(joined, draw(EDITS))
    return joined[: draw(st.integers(0, len(joined)) | st.just(len(joined)))]


@steady
@given(buffers())
def test_adds_are_scanned_together_as_one_by_one(buffer: bytes) -> None:
    assert scan_adds(buffer, 0, len(buffer)) == one_by_one(buffer, 0, len(buffer))


def test_second_frame_with_any_byte_changed_is_scanned_as_if_alone() -> None:
    """The layout of the first frame is tried on the second; no byte of it may slip through."""
    first, second = usual_add(txn=300), usual_add(txn=301, entry_id=6)
    frames = framed(first) + framed(second)
    begin = len(first) + 4
    for position in range(begin, len(frames)):
        for value in range(256):
            changed = frames[:position] + bytes((value,)) + frames[position + 1 :]
            assert scan_adds(changed, 0, len(changed)) == one_by_one(changed, 0, len(changed))


def test_adds_stop_before_the_first_other_frame() -> None:
    adds = b"".join(framed(usual_add(txn=txn, entry_id=txn)) for txn in range(10))
    other = framed(USUAL["read"])
    scanned, offset = scan_adds(b"junk" + adds + other + adds, 4, 4 + len(adds + other + adds))
    assert [add[0] for add in scanned] == list(range(10))
    assert offset == 4 + len(adds)


def test_adds_stop_before_an_incomplete_or_too_long_frame() -> None:
    frames = [framed(usual_add(txn=txn, payload=bytes(100 * txn))) for txn in range(3)]
    buffer = b"".join(frames)
    for cut in range(len(frames[2])):
        scanned, offset = scan_adds(buffer, 0, len(buffer) - 1 - cut)
        assert (len(scanned), offset) == (2, len(frames[0] + frames[1]))
    assert scan_adds(buffer, 0, len(buffer), frame_bytes_max=len(frames[1]))[1] == len(
        frames[0] + frames[1]
    )
    same = frames[1] * 3
    assert len(scan_adds(same, 0, len(same), frame_bytes_max=len(frames[1]))[0]) == 3
    assert scan_adds(same, 0, len(same), frame_bytes_max=len(frames[1]) - 1) == ([], 0)


def test_master_keys_of_one_ledger_are_one_object() -> None:
    buffer = b"".join(framed(usual_add(txn=txn)) for txn in range(4))
    adds, _ = scan_adds(buffer, 0, len(buffer))
    assert adds[1][4] == KEY
    assert adds[1][4] is adds[2][4] is adds[3][4]


def test_add_answers_are_scanned_up_to_the_first_refusal() -> None:
    done = [(txn, 70_000 + txn % 3, 2**txn) for txn in range(40)]
    acknowledged = add_answers(done)
    buffer = acknowledged + add_answers([(99, 1, 2)], Status.FENCED) + acknowledged
    assert scan_add_answers(buffer, 0, len(buffer)) == (done, len(acknowledged))
    assert scan_add_answers(buffer, 0, len(acknowledged) - 1)[0] == done[:-1]
