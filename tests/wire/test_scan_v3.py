"""The direct scanners and builders against the protobuf library, which is always right.

A scanner may call anything unusual, but what it accepts must mean the same to the library. The
tests look for a counterexample from three sides: messages assembled field by field in any order
with doubled, unknown and overlong parts; usual frames with bytes changed, dropped and inserted;
and every value of every byte of the head of a usual frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.wire.v3_samples import payload_of, steady, v3_frames
from wire import messages
from wire.build_v3 import add_answers, add_requests, read_answer, read_requests
from wire.codec_v3 import (
    Header,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from wire.errors import ProtocolError, Status
from wire.scan_v3 import (
    ScannedAdd,
    scan_add,
    scan_add_answer,
    scan_add_answers,
    scan_adds,
    scan_read,
    scan_read_answer,
)
from wire.types import Flag, LedgerId, Operation
from wire.varint import decode_signed_varint, decode_varint, encode_varint

KEY = bytes(range(20))
FRAMES = v3_frames()


def entry(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">QQqq", ledger_id, entry_id, -1, len(payload)) + payload


def usual_add(
    *,
    txn: int = 300,
    ledger_id: int = 70_000,
    entry_id: int = 5,
    payload: bytes = b"x",
    flags: int = 0,
) -> bytes:
    """A payload as our client builds it."""
    body = entry(ledger_id, entry_id, payload)
    pieces = add_requests([(txn, entry_id, body)], ledger_id=ledger_id, master_key=KEY, flags=flags)
    return b"".join(pieces)[4:]


# ---------------------------------------------------------------- the library's opinion


def check_add(payload: bytes) -> bool:
    """Whether the add was scanned; if so, the library must read the same."""
    scanned = scan_add(payload, 0, len(payload))
    if scanned is None:
        return False
    txn, ledger_id, entry_id, flags, key, start, end = scanned
    header, request = decode_request(payload)
    priority = header.priority
    assert header == Header(transaction_id=txn, operation=Operation.ADD_ENTRY, priority=priority)
    assert request == messages.AddRequest(
        ledger_id=LedgerId(ledger_id),
        entry_id=entry_id,
        master_key=key,
        body=payload[start:end],
        recovery=bool(flags & Flag.RECOVERY_ADD),
        high_priority=bool(flags & Flag.HIGH_PRIORITY),
        deferred_sync=bool(flags & Flag.DEFERRED_SYNC),
    )
    assert struct.unpack_from(">qq", payload, start) == (ledger_id, entry_id)
    assert ledger_id >= 0
    assert entry_id >= 0
    assert end - start >= 32
    return True


def check_read(payload: bytes) -> bool:
    scanned = scan_read(payload, 0, len(payload))
    if scanned is None:
        return False
    txn, ledger_id, entry_id, flags = scanned
    header, request = decode_request(payload)
    assert (header.transaction_id, header.version) == (txn, 3)
    assert request == messages.ReadRequest(
        ledger_id=LedgerId(ledger_id),
        entry_id=entry_id,
        high_priority=bool(flags & Flag.HIGH_PRIORITY),
    )
    return True


def check_add_answer(payload: bytes) -> bool:
    scanned = scan_add_answer(payload, 0, len(payload))
    if scanned is None:
        return False
    txn, ledger_id, entry_id = scanned
    header, response = decode_response(payload)
    assert header.transaction_id == txn
    assert response == messages.AddResponse(
        status=Status.OK, ledger_id=LedgerId(ledger_id), entry_id=entry_id
    )
    return True


def check_read_answer(payload: bytes) -> bool:
    scanned = scan_read_answer(payload, 0, len(payload))
    if scanned is None:
        return False
    txn, ledger_id, entry_id, start, end, max_lac = scanned
    header, response = decode_response(payload)
    assert header.transaction_id == txn
    assert response == messages.ReadResponse(
        status=Status.OK,
        ledger_id=LedgerId(ledger_id),
        entry_id=entry_id,
        body=payload[start:end],
        max_lac=max_lac,
    )
    return True


CHECKS: dict[str, Callable[[bytes], bool]] = {
    "add": check_add,
    "read": check_read,
    "add answer": check_add_answer,
    "read answer": check_read_answer,
}
USUAL: dict[str, bytes] = {
    "add": usual_add(payload=b"x" * 200),
    "read": read_requests([(300, 5)], ledger_id=70_000)[0][4:],
    "add answer": add_answers([(300, 70_000, 5)])[4:],
    "read answer": b"".join(read_answer(300, 70_000, -1, entry(70_000, 5, b"x" * 200), -1))[4:],
}


# ---------------------------------------------------------------- usual shapes are recognised


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


# ---------------------------------------------------------------- the search for a disagreement


def field(tag: int, value: bytes) -> bytes:
    return encode_varint(tag) + value


def blob(tag: int, value: bytes) -> bytes:
    return encode_varint(tag) + encode_varint(len(value)) + value


@st.composite
def numbers(draw: st.DrawFn, values: st.SearchStrategy[int]) -> bytes:
    """A varint, now and then longer than needed."""
    raw = encode_varint(draw(values))
    if len(raw) < 9 and draw(st.integers(0, 15)) == 0:
        return raw[:-1] + bytes((raw[-1] | 0x80,)) + b"\x80" * draw(st.integers(0, 2)) + b"\x00"
    return raw


IDS = st.one_of(
    st.sampled_from((0, 1, 5, 127, 128, 70_000, 2**35, 2**63 - 1)),
    st.integers(-(2**63), 2**63 - 1),
)
#: A varint, bytes, a fixed64, and a group: fields that no message has.
UNKNOWN = st.sampled_from(
    (
        field(7 << 3, b"\x05"),
        blob(9 << 3 | 2, b"zz"),
        field(50 << 3 | 1, bytes(8)),
        b"\x93\x03\x94\x03",
    )
)


@st.composite
def assembled(draw: st.DrawFn, operation: int, number: int, fields: list[bytes]) -> bytes:
    """A Request or Response around a message, with what hostile and future peers may add."""
    header = [
        field(0x08, draw(numbers(st.sampled_from((3, 3, 3, 3, 2, 4))))),
        field(0x10, bytes((operation,))),
        field(0x18, draw(numbers(st.integers(0, 2**64 - 1) | st.integers(0, 70_000)))),
    ]
    if draw(st.booleans()):
        header.append(field(0x20, draw(numbers(st.sampled_from((0, 1, 100, 127, 128, 2**32 - 1))))))
    outer = [blob(0x0A, disturbed(draw, header)), blob(number << 3 | 2, disturbed(draw, fields))]
    return disturbed(draw, outer)


def disturbed(draw: st.DrawFn, fields: list[bytes]) -> bytes:
    match draw(st.integers(0, 9)):
        case 0:
            fields = draw(st.permutations(fields))
        case 1:
            fields = [*fields, draw(st.sampled_from(fields))]
        case 2:
            fields = [*fields, draw(UNKNOWN)]
        case 3:
            fields = [draw(UNKNOWN), *fields]
        case 4:
            fields = fields[:-1]
    return b"".join(fields)


@st.composite
def assembled_adds(draw: st.DrawFn) -> bytes:
    ledger_id, entry_id = draw(IDS), draw(IDS)
    body = struct.pack(">qqqq", ledger_id, entry_id, -1, 0) + draw(st.binary(max_size=130))
    key = draw(st.sampled_from((KEY, KEY, KEY, b"", KEY[:19], KEY + b"!")))
    fields = [
        field(0x08, draw(numbers(st.just(ledger_id)))),
        field(0x10, draw(numbers(st.just(entry_id)))),
        blob(0x1A, key),
        blob(0x22, body),
    ]
    flag = draw(st.sampled_from((None, None, 1, 1, 2, 9, 200)))
    if draw(st.booleans()):
        fields.append(field(0x28, draw(numbers(st.sampled_from((0, 1, 3, 0x80, -1))))))
    if flag is not None:
        position = 0 if draw(st.booleans()) else len(fields)
        fields.insert(position, field(100 << 3, encode_varint(flag)))
    return draw(assembled(2, 101, fields))


@st.composite
def assembled_reads(draw: st.DrawFn) -> bytes:
    fields = [field(0x08, draw(numbers(IDS))), field(0x10, draw(numbers(IDS)))]
    if draw(st.integers(0, 3)) == 0:
        fields.append(blob(0x1A, KEY))
    return draw(assembled(1, 100, fields))


@st.composite
def assembled_answers(draw: st.DrawFn) -> bytes:
    is_read = draw(st.booleans())
    statuses = st.sampled_from((0, 0, 0, 0, 402, 999))
    fields = [
        field(0x08, draw(numbers(statuses))),
        field(0x10, draw(numbers(IDS))),
        field(0x18, draw(numbers(IDS))),
    ]
    if is_read:
        fields.append(blob(0x22, draw(st.binary(max_size=200))))
        if draw(st.booleans()):
            fields.append(field(0x28, draw(numbers(IDS))))
        if draw(st.integers(0, 4)) == 0:
            fields.append(field(0x30, draw(numbers(IDS))))
    operation, number = (1, 100) if is_read else (2, 101)
    message = draw(assembled(operation, number, fields))
    # The outer status stands between header and message where both are in their usual place.
    status = field(0x10, draw(numbers(statuses)))
    header_end = 2 + message[1]
    return message[:header_end] + status + message[header_end:]


@steady
@given(assembled_adds())
def test_assembled_add_is_unusual_or_read_alike(payload: bytes) -> None:
    check_add(payload)


@steady
@given(assembled_reads())
def test_assembled_read_is_unusual_or_read_alike(payload: bytes) -> None:
    check_read(payload)


@steady
@given(assembled_answers())
def test_assembled_answer_is_unusual_or_read_alike(payload: bytes) -> None:
    check_add_answer(payload)
    check_read_answer(payload)


EDITS = st.lists(
    st.tuples(st.sampled_from("=+-"), st.integers(0, 400), st.integers(0, 255)), max_size=4
)


def edited(payload: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    changed = bytearray(payload)
    for kind, position, value in edits:
        position %= len(changed) + 1
        if kind == "+":
            changed.insert(position, value)
        elif position < len(changed) > 1:
            if kind == "=":
                changed[position] = value
            else:
                del changed[position]
    return bytes(changed)


@pytest.mark.parametrize("kind", CHECKS)
@steady
@given(edits=EDITS)
def test_edited_frame_is_unusual_or_read_alike(
    kind: str, edits: list[tuple[str, int, int]]
) -> None:
    CHECKS[kind](edited(USUAL[kind], edits))


@pytest.mark.parametrize("kind", CHECKS)
def test_every_value_of_every_byte_is_unusual_or_read_alike(kind: str) -> None:
    payload = USUAL[kind]
    assert CHECKS[kind](payload)
    positions = [*range(min(len(payload), 64)), *range(max(64, len(payload) - 12), len(payload))]
    for position in positions:
        for value in range(256):
            changed = bytearray(payload)
            changed[position] = value
            CHECKS[kind](bytes(changed))


@pytest.mark.parametrize("kind", CHECKS)
def test_every_prefix_is_unusual(kind: str) -> None:
    payload = USUAL[kind]
    for length in range(len(payload)):
        # An answer without its last field, the LAC, would be whole if its lengths agreed.
        assert not CHECKS[kind](payload[:length])


# ---------------------------------------------------------------- buffers of many frames


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


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


# ---------------------------------------------------------------- builders


ANSWERED = st.lists(
    st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 20_000), IDS, IDS), max_size=6
)


@steady
@given(ANSWERED, st.sampled_from(Status))
def test_add_answers_are_the_codecs_byte_for_byte(
    adds: list[tuple[int, int, int]], status: Status
) -> None:
    expected = b"".join(
        encode_response(
            messages.AddResponse(status=status, ledger_id=LedgerId(ledger_id), entry_id=entry_id),
            transaction_id=txn,
        )
        for txn, ledger_id, entry_id in adds
    )
    assert add_answers(adds, status) == expected


def test_scanned_adds_are_answered_as_they_are() -> None:
    buffer = b"".join(framed(usual_add(txn=txn, entry_id=txn)) for txn in range(4))
    adds, _ = scan_adds(buffer, 0, len(buffer))
    answers = add_answers(adds)
    assert scan_add_answers(answers, 0, len(answers))[0] == [add[:3] for add in adds]


@steady
@given(st.integers(0, 2**64 - 1), IDS, IDS, st.binary(max_size=300), st.none() | IDS)
@example(1, 2, 3, bytes(100_000), 2)
def test_read_answer_is_the_codecs_byte_for_byte(
    txn: int, ledger_id: int, entry_id: int, body: bytes, max_lac: int | None
) -> None:
    response = messages.ReadResponse(
        status=Status.OK,
        ledger_id=LedgerId(ledger_id),
        entry_id=entry_id,
        body=body,
        max_lac=max_lac,
    )
    pieces = read_answer(txn, ledger_id, entry_id, body, max_lac)
    assert b"".join(pieces) == encode_response(response, transaction_id=txn)
    assert pieces[1] is body


@steady
@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), IDS, st.binary(max_size=200)), max_size=5),
    IDS,
    st.binary(max_size=21),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@example([(1, 2, bytes(100_000))], 7, KEY, False, False, True)
def test_add_requests_are_the_codecs_byte_for_byte(
    entries: list[tuple[int, int, bytes]],
    ledger_id: int,
    key: bytes,
    recovery: bool,
    high_priority: bool,
    deferred_sync: bool,
) -> None:
    flags = (
        Flag.RECOVERY_ADD * recovery
        + Flag.HIGH_PRIORITY * high_priority
        + Flag.DEFERRED_SYNC * deferred_sync
    )
    expected = b"".join(
        encode_request(
            messages.AddRequest(
                ledger_id=LedgerId(ledger_id),
                entry_id=entry_id,
                master_key=key,
                body=body,
                recovery=recovery,
                high_priority=high_priority,
                deferred_sync=deferred_sync,
            ),
            transaction_id=txn,
        )
        for txn, entry_id, body in entries
    )
    built = add_requests(entries, ledger_id=ledger_id, master_key=key, flags=flags)
    assert b"".join(built) == expected


@steady
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), IDS), max_size=5), IDS, st.booleans())
def test_read_requests_are_the_codecs_byte_for_byte(
    entries: list[tuple[int, int]], ledger_id: int, high_priority: bool
) -> None:
    expected = [
        encode_request(
            messages.ReadRequest(
                ledger_id=LedgerId(ledger_id), entry_id=entry_id, high_priority=high_priority
            ),
            transaction_id=txn,
        )
        for txn, entry_id in entries
    ]
    flags = Flag.HIGH_PRIORITY if high_priority else 0
    assert read_requests(entries, ledger_id=ledger_id, flags=flags) == expected


# ---------------------------------------------------------------- numbers


@steady
@given(st.integers(-(2**63), 2**64 - 1))
@example(0)
@example(2**14 - 1)
@example(2**14)
@example(2**28 - 1)
@example(2**28)
def test_varint_is_the_librarys(value: int) -> None:
    unsigned = value % 2**64
    raw = encode_varint(value)
    payload = (
        b"\x0a" + bytes((5 + len(raw),)) + b"\x08\x03\x10\x07\x18" + raw + b"\xc2\x06\x02\x08\x01"
    )
    assert decode_request(payload)[0].transaction_id == unsigned
    assert decode_varint(raw) == unsigned
    assert decode_signed_varint(raw) == (unsigned - 2**64 if unsigned >= 2**63 else unsigned)
    assert (len(raw) == 1) or raw[-1] != 0


def test_overlong_and_overflowing_varints_mean_what_the_library_says() -> None:
    for raw in (
        b"\x80\x00",
        b"\x85\x80\x80\x00",
        b"\xff" * 9 + b"\x7f",
        b"\x85" + b"\x80" * 8 + b"\x7e",
    ):
        header = b"\x08\x03\x10\x07\x18" + raw
        payload = b"\x0a" + bytes((len(header),)) + header + b"\xc2\x06\x02\x08\x01"
        assert decode_request(payload)[0].transaction_id == decode_varint(raw)


def test_number_of_more_than_64_bits_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        encode_varint(2**64)


def test_library_refuses_what_the_tests_call_incomplete() -> None:
    """The oracle itself: a check that accepted everything would prove nothing."""
    with pytest.raises(ProtocolError):
        decode_request(USUAL["add"][:-1])
