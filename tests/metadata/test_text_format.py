"""Protobuf text: the spellings that Java reads, and what is refused."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.text_format import DEPTH_MAX, TextFormatError, format_text, parse_text
from wire.bookkeeper_pb2 import UnderreplicatedLedgerFormat
from wire.types import ID_MAX

#: The same examples on every run, and no clock: the machine may be busy.
steady = settings(deadline=None, derandomize=True)


def replicas_of(text: bytes) -> bytes:
    message = UnderreplicatedLedgerFormat()
    parse_text(text, message)
    return "|".join(message.replica).encode("latin-1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb'replica: "\a\b\f\n\r\t\v"', b"\a\b\f\n\r\t\v"),
        (rb'replica: "\x41\101\1\X4a\?"', b"AA\x01J?"),
        (rb"""replica: 'it\'s "so"'""", b'it\'s "so"'),
        (rb'replica: "a" "b" replica: "c"', b"ab|c"),
        (rb'replica: ["a", "b"]', b"a|b"),
        (rb"replica: []", b""),
        (rb'replica: "a", replica: "b";', b"a|b"),
        (b'# note\nreplica: "a" # more\n', b"a"),
        (b'extra: 1.5e-3 replica: "a" other { x: [1, 2] y < z: -inf > } last: "q"', b"a"),
        (b'[some.ext/name]: 5 replica: "a"', b"a"),
    ],
)
def test_text_is_read_in_every_spelling_that_java_reads(text: bytes, expected: bytes) -> None:
    assert replicas_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"replica",
        b"replica:",
        b'replica: "open',
        b'replica: "a\nb"',
        b'replica: "\\8"',
        b'replica: "\\xzz"',
        b'replica: "\\377"',  # not UTF-8
        b"replica: 5",
        b"replica: word",
        b'replica: ["a" "b", ]',
        b'replica: ["a"',
        b'ctime: "5"',
        b"ctime: [1]",
        b"ctime: 1.5",
        b"ctime: 09",
        b"ctime: 9223372036854775808",
        b"ctime: 99999999999999999999999999",
        b"ctime: 0x8000000000000000",
        b"extra",
        b"extra: }",
        b"extra { ",
        b"extra: - -",
        b"}",
        b"\x00",
        b"\xff",
        b": 5",
        b"[a: 5",
        b"[5]: 5",
    ],
)
def test_text_that_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(TextFormatError, match=r"^line \d+: .*, found"):
        parse_text(text, UnderreplicatedLedgerFormat())


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b"-1", -1),
        (b"0x10", 16),
        (b"017", 15),
        (b"-0x10", -16),
        (b"1794803203732", None),
    ],
)
def test_text_numbers_may_be_decimal_octal_or_hexadecimal(text: bytes, number: int | None) -> None:
    message = parse_text(b"ctime: " + text, UnderreplicatedLedgerFormat())
    assert message.ctime == (int(text) if number is None else number)


def test_text_takes_the_last_of_two_values_for_one_field() -> None:
    assert parse_text(b"ctime: 1 ctime: 2", UnderreplicatedLedgerFormat()).ctime == 2


def test_text_nests_only_so_deep() -> None:
    depth = DEPTH_MAX + 1
    with pytest.raises(TextFormatError, match="nested too deep"):
        parse_text(b"a {" * depth + b"}" * depth, UnderreplicatedLedgerFormat())
    parse_text(b"a {" * DEPTH_MAX + b"}" * DEPTH_MAX, UnderreplicatedLedgerFormat())
    with pytest.raises(TextFormatError):
        parse_text(b"a {" * 100_000, UnderreplicatedLedgerFormat())


@steady
@given(st.lists(st.text(max_size=20), max_size=3), st.none() | st.integers(-(2**63), ID_MAX))
def test_text_round_trips(replicas: list[str], ctime: int | None) -> None:
    message = UnderreplicatedLedgerFormat(replica=replicas, ctime=ctime)
    text = format_text(message)
    assert text.isascii()
    read: Message = parse_text(text, UnderreplicatedLedgerFormat())
    assert read == message
