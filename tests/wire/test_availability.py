"""Entry lists: what Java's reader finds in ours, and what ours finds in Java's."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.v3_samples import recorded, steady
from wire.availability import Availability, decode_availability, encode_availability, runs_of
from wire.errors import ProtocolError

HEADER_BYTES = 64
GROUP = struct.Struct(">qqii")


def java_finds(encoded: bytes, entry_id: int) -> bool:
    """Apache's look-up, written down separately: one group, and its bound one id too far."""
    version, count = struct.unpack_from(">ii", encoded)
    assert version == 0
    candidates = [GROUP.unpack_from(encoded, HEADER_BYTES + 24 * index) for index in range(count)]
    candidates = [group for group in candidates if group[0] <= entry_id]
    if not candidates:
        return False
    first, last, size, period = max(candidates)
    if entry_id > last + size:
        return False
    offset = entry_id - first
    return bool(offset < size if period == 0 else offset % period < size)


def groups_of(encoded: bytes) -> list[tuple[int, int, int, int]]:
    return [
        (first, last, size, period)
        for first, last, size, period in GROUP.iter_unpack(encoded[HEADER_BYTES:])
    ]


def encode_ids(*entry_ids: int) -> bytes:
    return encode_availability(runs_of(entry_ids))


def ids_in(availability: Availability, first: int, last: int) -> list[int]:
    return [
        entry_id
        for start, end in availability.runs(first, last)
        for entry_id in range(start, end + 1)
    ]


ID_SETS = st.one_of(
    st.sets(st.integers(0, 60)),
    # striped: what a bookie holds of a ledger, with some of it lost or doubled by others' failures
    st.builds(
        lambda ensemble, slots, count, lost: {
            entry_id
            for entry_id in range(count)
            if entry_id % ensemble in slots and entry_id not in lost
        },
        st.integers(1, 7),
        st.sets(st.integers(0, 6)),
        st.integers(0, 120),
        st.sets(st.integers(0, 120), max_size=3),
    ),
)


def test_documented_example_is_one_periodic_group() -> None:
    expected = (
        "0000000000000001"
        + "00" * 56
        + "0000000000000000"
        + "0000000000000006"
        + "0000000200000003"
    )
    assert encode_ids(0, 1, 3, 4, 6, 7).hex() == expected


def test_no_entries_are_a_header_alone() -> None:
    assert encode_ids() == bytes(64)
    empty = decode_availability(bytes(64))
    assert (empty.count, empty.last_entry_id) == (0, -1)
    assert not empty.is_available(0)
    assert list(empty.missing([(0, 4)])) == [(0, 4)]


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(vector, id=vector["name"])
        for vector in recorded("wire-v3.json")
        if "availability_hex" in vector["fields"]
    ],
)
def test_recorded_list_is_read_and_written_alike(vector: dict[str, Any]) -> None:
    encoded = bytes.fromhex(vector["fields"]["availability_hex"])
    entry_ids = vector["fields"]["entry_ids"]
    decoded = decode_availability(encoded)
    assert ids_in(decoded, 0, 1000) == entry_ids
    assert decoded.count == len(entry_ids)
    assert encode_ids(*entry_ids) == encoded  # runs of unequal length: nothing to merge


@steady
@given(ID_SETS)
def test_java_finds_exactly_the_given_ids(entry_ids: set[int]) -> None:
    encoded = encode_ids(*sorted(entry_ids))
    assert {id_ for id_ in range(-3, 140) if java_finds(encoded, id_)} == entry_ids


@steady
@given(ID_SETS)
def test_our_reader_finds_exactly_the_given_ids(entry_ids: set[int]) -> None:
    decoded = decode_availability(encode_ids(*sorted(entry_ids)))
    assert {id_ for id_ in range(-3, 140) if decoded.is_available(id_)} == entry_ids
    assert ids_in(decoded, 0, 140) == sorted(entry_ids)
    assert decoded.count == len(entry_ids)
    assert decoded.last_entry_id == max(entry_ids, default=-1)


@steady
@given(ID_SETS)
def test_groups_never_interleave(entry_ids: set[int]) -> None:
    groups = groups_of(encode_ids(*sorted(entry_ids)))
    last = -1
    for first, last_start, size, period in groups:
        assert first > last
        assert period == 0 or period > size
        last = last_start + size - 1


@steady
@given(ID_SETS, ID_SETS)
def test_missing_is_the_difference(held: set[int], expected: set[int]) -> None:
    decoded = decode_availability(encode_ids(*sorted(held)))
    missing = list(decoded.missing(runs_of(sorted(expected))))
    found = [id_ for first, last in missing for id_ in range(first, last + 1)]
    assert found == sorted(expected - held)


@steady
@given(ID_SETS, st.integers(0, 130), st.integers(0, 130))
def test_runs_stay_within_what_was_asked(entry_ids: set[int], first: int, last: int) -> None:
    decoded = decode_availability(encode_ids(*sorted(entry_ids)))
    assert ids_in(decoded, first, last) == [
        id_ for id_ in sorted(entry_ids) if first <= id_ <= last
    ]


def test_striped_ledger_of_a_million_entries_is_one_group() -> None:
    runs = ((start, start + 1) for start in range(0, 1_000_000, 3))
    encoded = encode_availability(runs)
    assert groups_of(encoded) == [(0, 999_999, 2, 3)]
    decoded = decode_availability(encoded)
    assert decoded.count == 666_668
    assert list(decoded.missing([(999_990, 999_993)])) == [(999_992, 999_992)]


def test_runs_that_touch_are_one() -> None:
    assert groups_of(encode_availability([(0, 1), (2, 5), (7, 7)])) == [(0, 0, 6, 0), (7, 7, 1, 0)]


def test_id_given_twice_counts_once() -> None:
    assert list(runs_of([1, 1, 2, 2, 5])) == [(1, 2), (5, 5)]


def test_run_too_long_for_its_size_field_is_cut_without_gap_or_excess() -> None:
    limit = 2**31 - 1
    encoded = encode_availability([(5, 5 + 2 * limit + 9)])
    assert groups_of(encoded) == [
        (5, 5, limit, 0),
        (5 + limit, 5 + limit, limit, 0),
        (5 + 2 * limit, 5 + 2 * limit, 10, 0),
    ]
    edges = (5, 5 + limit, 5 + 2 * limit, 15 + 2 * limit)
    for entry_id in (edge + step for edge in edges for step in (-1, 0, 1)):
        inside = 5 <= entry_id <= 14 + 2 * limit
        assert java_finds(encoded, entry_id) is inside
        assert decode_availability(encoded).is_available(entry_id) is inside


def test_runs_too_far_apart_for_the_period_field_stay_single() -> None:
    assert groups_of(encode_ids(0, 2**31)) == [(0, 0, 1, 0), (2**31, 2**31, 1, 0)]
    assert groups_of(encode_ids(0, 2**31 - 1)) == [(0, 2**31 - 1, 1, 2**31 - 1)]


def listed(*groups: tuple[int, int, int, int], version: int = 0, count: int | None = None) -> bytes:
    header = struct.pack(">ii56x", version, len(groups) if count is None else count)
    return header + b"".join(GROUP.pack(*group) for group in groups)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        bytes(63),
        listed(version=1),
        listed(version=-1),
        listed(count=-1),
        listed(count=1),
        listed((0, 0, 1, 0), count=2**31 - 1),
        listed((0, 0, 1, 0))[:-1],
        listed((-1, -1, 1, 0)),
        listed((0, 0, 0, 0)),
        listed((0, 0, -1, 0)),
        listed((3, 0, 1, 3)),  # last before first
        listed((0, 7, 1, 3)),  # last between two runs
        listed((0, 3, 1, 0)),  # two runs without a period
        listed((0, 4, 3, 2)),  # runs overlap
        listed((0, 4, 2, -2)),
        listed((2**63 - 1, 2**63 - 1, 2, 0)),  # runs past the highest id
        listed((5, 5, 1, 0), (0, 0, 1, 0)),  # not ascending
        listed((0, 6, 2, 3), (4, 4, 1, 0)),  # interleaved
        listed((0, 0, 2, 0), (1, 1, 1, 0)),  # one id in two groups
    ],
)
def test_list_that_contradicts_itself_is_refused(encoded: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_availability(encoded)


def test_endless_list_is_asked_without_being_walked() -> None:
    """Two to the 62 runs in one group: every question is about the few ids that it names."""
    decoded = decode_availability(listed((0, 2**62, 1, 2)))
    assert decoded.count == 2**61 + 1
    assert decoded.last_entry_id == 2**62
    middle = 2**61
    assert decoded.is_available(middle)
    assert not decoded.is_available(middle + 1)
    assert list(decoded.missing([(middle, middle + 3)])) == [
        (middle + 1, middle + 1),
        (middle + 3, middle + 3),
    ]


@steady
@given(st.binary(max_size=200))
def test_random_bytes_are_a_list_or_refused(junk: bytes) -> None:
    for encoded in (junk, bytes(8) + junk, struct.pack(">ii56x", 0, len(junk) // 24) + junk):
        try:
            decoded = decode_availability(encoded)
        except ProtocolError:
            continue
        assert decoded.count >= 0
        assert sum(1 for _ in decoded.runs(0, 50)) <= 51
