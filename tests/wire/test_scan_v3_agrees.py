"""The search for bytes that a direct scanner and the protobuf library read differently.

From three sides: messages assembled field by field in any order with doubled, unknown and overlong
parts; usual frames with bytes changed, dropped and inserted; and every value of every byte of the
head of a usual frame.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.v3_checks import (
    CHECKS,
    EDITS,
    IDS,
    KEY,
    USUAL,
    check_add,
    check_add_answer,
    check_read,
    check_read_answer,
    edited,
)
from tests.wire.v3_samples import steady
from wire.codec_v3 import decode_request
from wire.errors import ProtocolError
from wire.varint import encode_varint

T = TypeVar("T")


def field(tag: int, value: bytes) -> bytes:
    return encode_varint(tag) + value


def blob(tag: int, value: bytes) -> bytes:
    return encode_varint(tag) + encode_varint(len(value)) + value


def mostly(usual: T, *others: T) -> st.SearchStrategy[T]:
    """Few enough oddities that many messages have one and many have none: both sides matter."""
    return st.sampled_from((usual,) * 8 * len(others) + others)


@st.composite
def numbers(draw: st.DrawFn, values: st.SearchStrategy[int]) -> bytes:
    """A varint, now and then longer than needed."""
    raw = encode_varint(draw(values))
    if len(raw) < 9 and draw(st.integers(0, 39)) == 0:
        return raw[:-1] + bytes((raw[-1] | 0x80,)) + b"\x80" * draw(st.integers(0, 2)) + b"\x00"
    return raw


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
        field(0x08, draw(numbers(mostly(3, 2, 4)))),
        field(0x10, bytes((operation,))),
        field(
            0x18,
            draw(
                numbers(
                    st.integers(0, 70_000) | st.integers(0, 2**63 - 1) | st.integers(0, 2**64 - 1)
                )
            ),
        ),
    ]
    if draw(st.booleans()):
        header.append(field(0x20, draw(numbers(mostly(100, 0, 1, 127, 128, 2**32 - 1)))))
    outer = [blob(0x0A, disturbed(draw, header)), blob(number << 3 | 2, disturbed(draw, fields))]
    return disturbed(draw, outer)


def disturbed(draw: st.DrawFn, fields: list[bytes]) -> bytes:
    match draw(st.integers(0, 29)):
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
    key = draw(mostly(KEY, b"", KEY[:19], KEY + b"!"))
    fields = [
        field(0x08, draw(numbers(st.just(ledger_id)))),
        field(0x10, draw(numbers(st.just(entry_id)))),
        blob(0x1A, key),
        blob(0x22, body),
    ]
    flag = draw(st.none() | mostly(1, 2, 9, 200))
    if draw(st.booleans()):
        fields.append(field(0x28, draw(numbers(mostly(1, 0, 3, 0x80, -1)))))
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
    statuses = mostly(0, 402, 999)
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


def test_library_refuses_what_the_tests_call_incomplete() -> None:
    """The oracle itself: a check that accepted everything would prove nothing."""
    with pytest.raises(ProtocolError):
        decode_request(USUAL["add"][:-1])
