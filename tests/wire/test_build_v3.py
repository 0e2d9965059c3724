"""The direct builders and the numbers they write, against the codec and the library."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.wire.v3_checks import (
    IDS,
    KEY,
)
from tests.wire.v3_samples import steady
from wire import messages
from wire.build_v3 import (
    add_answers,
    add_requests,
    alike_add_answers,
    read_answer,
    read_answers,
    read_requests,
)
from wire.codec_v3 import decode_request, encode_request, encode_response
from wire.errors import Status
from wire.types import Flag, LedgerId
from wire.varint import decode_signed_varint, decode_varint, encode_varint

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


@steady
@given(
    st.lists(st.integers(2**14, 2**21 - 1), min_size=1, max_size=6),
    st.integers(0, 2**63 - 1),
    st.sampled_from(Status),
)
def test_answers_of_alike_ids_are_those_of_any_ids(
    numbers: list[int], ledger_id: int, status: Status
) -> None:
    raw = list(map(encode_varint, numbers))
    ledgers = [encode_varint(ledger_id)] * len(raw)
    expected = add_answers([(number, ledger_id, number) for number in numbers], status)
    assert alike_add_answers(raw, ledgers, raw, status) == expected


@steady
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**64 - 1) | st.integers(128, 16_383),
            IDS | st.integers(128, 16_383),
            st.sampled_from((b"", bytes(32), bytes(127), bytes(128), bytes(20_000))),
        ),
        min_size=1,
        max_size=6,
    ),
    IDS,
    st.none() | IDS,
    st.booleans(),
)
def test_read_answers_together_are_those_one_by_one(
    reads: list[tuple[int, int, bytes]], ledger_id: int, max_lac: int | None, same_size: bool
) -> None:
    if same_size:
        reads = [(txn, entry_id, reads[0][2]) for txn, entry_id, _ in reads]
    txns, ids, bodies = zip(*reads, strict=True)
    expected = b"".join(
        piece
        for txn, entry_id, body in reads
        for piece in read_answer(txn, ledger_id, entry_id, body, max_lac)
    )
    raw_txns = list(map(encode_varint, txns))
    assert read_answers(raw_txns, ledger_id, ids, bodies, max_lac) == expected


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
