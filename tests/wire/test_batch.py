"""ADD_BATCH: the frame, the walk that accepts or refuses it, and runs of records."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire import v2
from wire.batch import (
    BATCH_HEAD_BYTES,
    Walk,
    decode_batch,
    encode_batch,
    join_records,
    split_records,
    walk_batch,
)
from wire.errors import BadRequestError, ProtocolError, VersionError
from wire.messages import AddBatchRequest
from wire.types import LedgerId

KEY = bytes(range(20))


def batch(entry_ids: list[int], sizes: list[int], ledger_id: int = 7) -> AddBatchRequest:
    entries = [
        v2.entry(ledger_id, entry_id, bytes(sizes[i % len(sizes)]), lac=entry_id - 3)
        for i, entry_id in enumerate(entry_ids)
    ]
    return AddBatchRequest(
        request_id=2**64 - 1,
        ledger_id=LedgerId(ledger_id),
        first_entry_id=entry_ids[0],
        last_entry_id=entry_ids[-1],
        count=len(entry_ids),
        master_key=KEY,
        body=join_records(entries),
    )


def walk(request: AddBatchRequest) -> Walk:
    """Walk the records where a bookie finds them: inside a larger buffer."""
    data = b"before" + bytes(request.body) + b"behind"
    return walk_batch(data, 6, len(data) - 6, request)


def test_frame_is_laid_out_as_written_down() -> None:
    records = join_records([v2.entry(7, 1), v2.entry(7, 4)])
    frame = encode_batch(
        records,
        request_id=99,
        ledger_id=7,
        first_entry_id=1,
        last_entry_id=4,
        count=2,
        master_key=KEY,
        flags=0x0102,
    )
    assert frame == (
        struct.pack(">IBBH", 64 + 72, 2, 0x41, 0x0102)
        + KEY
        + struct.pack(">QHHqqqI", 99, 1, 0, 7, 1, 4, 2)
        + struct.pack(">I", 32)
        + v2.entry(7, 1)
        + struct.pack(">I", 32)
        + v2.entry(7, 4)
    )
    assert len(frame) - len(records) == BATCH_HEAD_BYTES


@pytest.mark.parametrize("sizes", [[0], [100], [3, 4], [9, 9, 9, 9, 10]], ids=str)
@pytest.mark.parametrize(
    "entry_ids",
    [
        [5],
        list(range(10)),
        list(range(3, 203)),
        list(range(0, 600, 3)),
        [i for i in range(300) if i % 3 != 1],
        [0, *range(50, 99)],
        list(range(2**63 - 40, 2**63)),
        [0, *range(2**63 - 40, 2**63)],
    ],
    ids=["one", "few", "dense", "striped", "two of three", "gap", "highest", "span"],
)
def test_walk_finds_every_record(entry_ids: list[int], sizes: list[int]) -> None:
    request = batch(entry_ids, sizes)
    found = walk(request)
    data = b"before" + bytes(request.body)
    assert list(found.entry_ids) == entry_ids
    assert len(found.bounds) == len(entry_ids) + 1
    records = [data[begin:end] for begin, end in pairwise(found.bounds)]
    assert b"".join(records) == request.body
    assert [int.from_bytes(record[12:20]) for record in records] == entry_ids
    assert found.lac == entry_ids[-1] - 3


def test_even_batch_is_walked_without_a_list_per_entry() -> None:
    found = walk(batch(list(range(0, 600, 3)), [100]))
    assert found.entry_ids == range(0, 598, 3)
    assert isinstance(found.bounds, range)


def test_unknown_format_is_a_version_error() -> None:
    request = batch([1, 2], [5])
    for other in (0, 2, 0xFFFF, 0x10001):
        with pytest.raises(VersionError, match=f"format {other}"):
            walk(replace(request, format=other))


def test_reserved_bytes_in_use_are_a_format_that_is_not_known() -> None:
    request = batch([1, 2], [5])
    frame = bytearray(
        encode_batch(
            bytes(request.body),
            request_id=1,
            ledger_id=7,
            first_entry_id=1,
            last_entry_id=2,
            count=2,
            master_key=KEY,
        )
    )
    frame[39] = 1
    decoded = decode_batch(bytes(frame[4:]), 0)
    with pytest.raises(VersionError):
        walk_batch(bytes(frame), BATCH_HEAD_BYTES, len(frame), decoded)


def test_request_too_short_for_its_fixed_part_is_no_message() -> None:
    request = batch([1], [5])
    frame = encode_batch(
        b"",
        request_id=1,
        ledger_id=7,
        first_entry_id=1,
        last_entry_id=1,
        count=1,
        master_key=request.master_key,
    )
    assert decode_batch(frame[4:], 0).body == b""
    for size in range(BATCH_HEAD_BYTES - 4):
        with pytest.raises(ProtocolError, match="fixed part"):
            decode_batch(frame[4 : 4 + size], 0)


@pytest.mark.parametrize("count", [1, 5, 200])
@pytest.mark.parametrize("sizes", [[100], [100, 101]], ids=["even", "uneven"])
def test_everything_wrong_inside_a_batch_is_a_bad_request(count: int, sizes: list[int]) -> None:
    """Each lie once, in batches that are walked by columns and by records."""
    good = batch(list(range(10, 10 + count)), sizes)
    walk(good)
    body = bytes(good.body)
    middle = list(walk(good).bounds)[count // 2] - 6

    def patched(offset: int, value: bytes) -> bytes:
        return body[: middle + offset] + value + body[middle + offset + len(value) :]

    negative, other = (-1).to_bytes(8, signed=True), (8).to_bytes(8)
    short = [v2.entry(7, i, bytes(100)) for i in range(10, 10 + count)]
    short[count // 2] = short[count // 2][:31]
    wrong = {
        "count 0": replace(good, count=0),
        "count too low": replace(good, count=count - 1),
        "count too high": replace(good, count=count + 1),
        "count enormous": replace(good, count=2**32 - 1),
        "first": replace(good, first_entry_id=9),
        "first negative": replace(good, first_entry_id=-1),
        "last": replace(good, last_entry_id=10 + count),
        "last below first": replace(good, last_entry_id=8),
        "last negative": replace(good, last_entry_id=-1),
        "ledger": replace(good, ledger_id=LedgerId(8)),
        "ledger negative": replace(good, ledger_id=LedgerId(-7)),
        "truncated": replace(good, body=body[:-1]),
        "one byte more": replace(good, body=body + b"\0"),
        "empty": replace(good, body=b""),
        "one entry's ledger": replace(good, body=patched(4, other)),
        "one entry's id negative": replace(good, body=patched(12, negative)),
        "one entry's id lower": replace(good, body=patched(12, bytes(8))),
        "one entry's id higher": replace(good, body=patched(12, (10 + count).to_bytes(8))),
        "one size": replace(good, body=patched(0, (99).to_bytes(4))),
        "one size enormous": replace(good, body=patched(0, (2**32 - 1).to_bytes(4))),
        "one entry short": replace(good, body=join_records(short)),
    }
    for name, request in wrong.items():
        try:
            accepted = walk(request)
        except BadRequestError:
            continue
        raise AssertionError(f"{name}: accepted as {accepted}")


@given(
    request=v2.add_batch_requests(), flips=st.lists(st.tuples(st.integers(0), st.integers(0, 255)))
)
def test_columns_accept_and_refuse_exactly_what_the_plain_walk_does(
    request: AddBatchRequest, flips: list[tuple[int, int]]
) -> None:
    """The plain walk, written again in the simplest way, is the judge."""
    body = bytearray(request.body)
    for position, value in flips[:1]:
        body[position % len(body)] = value
    request = replace(request, body=bytes(body))
    expected: list[int] | None = []
    position, previous = 0, -1
    while position < len(body) and expected is not None:
        size, ledger_id, entry_id = struct.unpack_from(">Iqq", body + bytes(20), position)
        position += 4 + size
        in_order = ledger_id == request.ledger_id and entry_id > previous
        if size < 32 or position > len(body) or not in_order:
            expected = None
        else:
            expected.append(entry_id)
            previous = entry_id
    if expected and (expected[0], expected[-1], len(expected)) != (
        request.first_entry_id,
        request.last_entry_id,
        request.count,
    ):
        expected = None
    if expected is None:
        with pytest.raises(BadRequestError):
            walk(request)
    else:
        assert list(walk(request).entry_ids) == expected


@given(entries=st.lists(st.binary(max_size=40), max_size=40))
def test_records_split_where_they_were_joined(entries: list[bytes]) -> None:
    data = b"..." + join_records(entries)
    bounds = split_records(data, 3, len(data))
    assert [data[a + 4 : b] for a, b in pairwise(bounds)] == entries


@given(count=st.integers(1, 50), size=st.integers(0, 40))
def test_records_of_one_size_split_into_a_range(count: int, size: int) -> None:
    data = join_records([bytes(size)] * count)
    assert split_records(data, 0, len(data)) == range(0, len(data) + 1, size + 4)


def test_records_that_do_not_add_up_are_no_message() -> None:
    data = join_records([b"abc", b"defg", b"h"])
    ends = {0, 7, 15, 20}
    for end in range(len(data) + 1):
        if end in ends:
            assert split_records(data, 0, end)[-1] == end
        else:
            with pytest.raises(ProtocolError, match="do not add up"):
                split_records(data, 0, end)
