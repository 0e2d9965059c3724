"""Entries checked in place: the same verdict as cutting them out, whatever is wrong with them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.batch import RECORD_HEAD_BYTES, split_records
from wire.digest import Digest, digest_for
from wire.entry import ENTRY_HEADER_BYTES, decode_entries, encode_entries, encode_records
from wire.entry_run import EntryRun, check_entries, compare_ids, lacs_of
from wire.types import DigestType

CRC32C = digest_for(DigestType.CRC32C)
#: What lies before the records of an answer, and behind them.
BEFORE, BEHIND = b"before", b"behind"

payload_lists = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1, max_size=12),
    # All of one size, on either side of the one up to which header and payload are joined.
    st.tuples(st.integers(1, 12), st.sampled_from([0, 1, 33, 512, 513, 700])).map(
        lambda given: [bytes([i]) * given[1] for i in range(given[0])]
    ),
)
digests = st.sampled_from(
    [digest_for(kind, b"key" if kind is DigestType.HMAC else b"") for kind in DigestType]
)


def answer(
    payloads: list[bytes], digest: Digest = CRC32C, first: int = 5, ledger_id: int = 7
) -> bytes:
    records = encode_records(
        payloads, ledger_id=ledger_id, first_entry_id=first, lac=first - 1, length=0, digest=digest
    )
    return BEFORE + records + BEHIND


def run_of(data: bytes, digest: Digest = CRC32C) -> EntryRun:
    bounds = split_records(data, len(BEFORE), len(data) - len(BEHIND))
    return EntryRun(data, bounds, RECORD_HEAD_BYTES + ENTRY_HEADER_BYTES + digest.size)


@given(payload_lists, digests)
def test_good_entries_are_found_good_and_stay_where_they_are(
    payloads: list[bytes], digest: Digest
) -> None:
    data = answer(payloads, digest)
    run = run_of(data, digest)
    entry_ids = range(5, 5 + len(payloads))

    for check in (check_entries, compare_ids):
        found = check(
            data, run.bounds, RECORD_HEAD_BYTES, ledger_id=7, entry_ids=entry_ids, digest=digest
        )
        assert found == (len(payloads), None)
    assert run.data is data
    assert list(map(bytes, run.views)) == payloads
    assert list(run.lengths) == list(map(len, payloads))
    assert run.bytes == sum(map(len, payloads))
    assert lacs_of(data, run.bounds, RECORD_HEAD_BYTES, len(payloads)) == [4] * len(payloads)


@given(payload_lists, digests, st.data())
def test_verdict_is_that_of_cutting_out_whichever_byte_is_wrong(
    payloads: list[bytes], digest: Digest, draw: st.DataObject
) -> None:
    data = bytearray(answer(payloads, digest))
    bounds = run_of(bytes(data), digest).bounds
    # Not the sizes of records: those are checked before anybody looks inside.
    places = [i for begin, end in pairwise(bounds) for i in range(begin + 4, end)]
    data[draw.draw(st.sampled_from(places))] ^= draw.draw(st.integers(1, 255))
    entry_ids = range(5, 5 + len(payloads))
    wanted = decode_entries(
        bytes(data), bounds, RECORD_HEAD_BYTES, ledger_id=7, entry_ids=entry_ids, digest=digest
    )

    good, error = check_entries(
        bytes(data), bounds, RECORD_HEAD_BYTES, ledger_id=7, entry_ids=entry_ids, digest=digest
    )

    assert (good, str(error)) == (len(wanted.payloads), str(wanted.error))
    assert good < len(payloads) or digest.type is DigestType.DUMMY


@pytest.mark.parametrize("payloads", [[b"a", b"b"], [b"a", b"bc"]], ids=["equal", "mixed"])
@pytest.mark.parametrize("check", [check_entries, compare_ids])
@pytest.mark.parametrize(("ledger_id", "first"), [(8, 5), (7, 6), (7, 4)])
def test_entries_of_other_ids_are_not_taken_for_those_asked_for(
    payloads: list[bytes], check: object, ledger_id: int, first: int
) -> None:
    assert callable(check)
    data = answer(payloads)
    good, error = check(
        data, run_of(data).bounds, RECORD_HEAD_BYTES,
        ledger_id=ledger_id, entry_ids=range(first, first + 2), digest=CRC32C,
    )  # fmt: skip
    assert good == 0
    assert error is not None


@pytest.mark.parametrize("check", [check_entries, compare_ids])
@pytest.mark.parametrize("cut", [1, 4, 40])
def test_entry_without_room_for_its_header_is_bad(check: object, cut: int) -> None:
    assert callable(check)
    entries = encode_entries(
        [b"", b""], ledger_id=7, first_entry_id=0, lac=-1, length=0, digest=CRC32C
    )
    data = entries[0] + entries[1][:-cut]
    for bounds in ([0, 36, len(data)], range(0, 36 - cut + 1, 36 - cut) if cut < 36 else [0, 0]):
        count = len(bounds) - 1
        good, error = check(
            data[: bounds[-1]], bounds, 0, ledger_id=7, entry_ids=range(count), digest=CRC32C
        )
        assert good == count - 1
        assert error is not None


@given(payload_lists, st.integers(0, 12), st.integers(0, 12))
def test_part_of_a_run_is_those_entries(payloads: list[bytes], begin: int, end: int) -> None:
    for run in (run_of(answer(payloads)), EntryRun.joined(payloads)):
        part = run[begin:end]
        assert list(map(bytes, part.views)) == payloads[begin:end]
        assert len(part) == len(payloads[begin:end])
        assert list(part.lengths) == list(map(len, payloads[begin:end]))
        sizes = [sum(map(len, payloads[begin:end][:i])) for i in range(len(part) + 1)]
        assert [part.bytes_before(i) for i in range(len(part) + 1)] == sizes
