"""Striping and coverage, for every shape up to six, against the definitions spelled out."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger_client.core.distribution import Distribution, mask_of, slots_in
from wire.types import ID_MAX

SHAPES = [
    (ensemble, write, ack)
    for ensemble in range(1, 7)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]
#: Around zero, and around the ids at which a 32-bit modulus goes wrong.
STARTS = (0, 1, 2**31 - 4, 2**32 - 4, ID_MAX - 12)

shapes = st.sampled_from(SHAPES)


@pytest.mark.parametrize(
    ("entry_id", "slots"),
    [
        (0, (0, 1, 2)),
        (5, (0, 1, 2)),
        (1, (1, 2, 3)),
        (2, (2, 3, 4)),
        (3, (3, 4, 0)),
        (9, (4, 0, 1)),
    ],
)
def test_write_set_follows_the_table_of_five_three_two(
    entry_id: int, slots: tuple[int, ...]
) -> None:
    assert Distribution(5, 3, 2).write_set(entry_id) == slots


def test_slot_holds_what_the_table_says() -> None:
    table = {0: [0, 3, 4], 1: [0, 1, 4], 2: [0, 1, 2], 3: [1, 2, 3], 4: [2, 3, 4]}
    distribution = Distribution(5, 3, 2)
    for slot, entries in table.items():
        assert distribution.entries_of(slot=slot, first=0, last=4) == entries


def test_phase_is_the_entry_id_and_not_the_start_of_the_fragment() -> None:
    """A fragment that starts at 7: entry 7 is on slots 2, 3, 4, and slot 1 begins with entry 9."""
    distribution = Distribution(5, 3, 2)
    assert distribution.write_set(7) == (2, 3, 4)
    assert distribution.next_entry_of(slot=1, entry_id=7) == 9


@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_to_ask_who_holds_an_entry_agrees(shape: tuple[int, int, int]) -> None:
    distribution = Distribution(*shape)
    for start in STARTS:
        for entry_id in range(start, start + 12):
            slots = distribution.write_set(entry_id)
            assert [s % shape[0] for s in slots] == [
                int((entry_id + i) % shape[0]) for i in range(shape[1])
            ]
            for slot in range(shape[0]):
                assert distribution.holds(slot=slot, entry_id=entry_id) == (slot in slots)


@pytest.mark.parametrize("shape", SHAPES)
def test_ranges_agree_with_single_entries(shape: tuple[int, int, int]) -> None:
    distribution = Distribution(*shape)
    for first in (0, 3, 2**31 - 3):
        for last in range(first, first + 14):
            entries = range(first, last + 1)
            for slot in range(shape[0]):
                held = [e for e in entries if distribution.holds(slot=slot, entry_id=e)]
                assert list(distribution.entries_of(slot=slot, first=first, last=last)) == held
                assert distribution.count_of(slot=slot, first=first, last=last) == len(held)
                bits = distribution.bits_of(slot=slot, first=first, last=last)
                assert [first + bit for bit in slots_in(bits)] == held
            used = sorted({slot for e in entries for slot in distribution.write_set(e)})
            assert list(distribution.slots_of(first=first, last=last)) == used


@pytest.mark.parametrize("shape", SHAPES)
def test_neighbouring_entries_of_a_slot_are_the_nearest_it_holds(
    shape: tuple[int, int, int],
) -> None:
    distribution = Distribution(*shape)
    for slot in range(shape[0]):
        for entry_id in (*range(10), *range(2**31 - 5, 2**31 + 5)):
            window = range(max(0, entry_id - 12), entry_id + 13)
            held = [e for e in window if distribution.holds(slot=slot, entry_id=e)]
            after = min(e for e in held if e >= entry_id)
            before = max((e for e in held if e <= entry_id), default=None)
            assert distribution.next_entry_of(slot=slot, entry_id=entry_id) == after
            assert distribution.previous_entry_of(slot=slot, entry_id=entry_id) == before


@pytest.mark.parametrize("shape", SHAPES)
def test_coverage_means_that_no_ack_quorum_is_unknown(shape: tuple[int, int, int]) -> None:
    """The definition, over every set of known slots: look for a quorum among the others."""
    ensemble, _, ack = shape
    distribution = Distribution(*shape)
    for count in range(ensemble + 1):
        for known in combinations(range(ensemble), count):
            unknown = set(range(ensemble)) - set(known)
            hidden = any(
                len(unknown & set(distribution.write_set(entry_id))) >= ack
                for entry_id in range(ensemble)
            )
            assert distribution.is_covered(known) == (not hidden)


@pytest.mark.parametrize(
    ("shape", "always_enough"),
    [((3, 3, 2), 2), ((4, 3, 2), 3), ((5, 3, 2), 4), ((5, 5, 3), 3), ((2, 2, 2), 1),
     ((2, 2, 1), 2), ((6, 3, 3), 4), ((3, 2, 2), 2)],
)  # fmt: skip
def test_coverage_needs_as_many_answers_as_the_table_says(
    shape: tuple[int, int, int], always_enough: int
) -> None:
    distribution = Distribution(*shape)
    slots = range(shape[0])
    assert all(distribution.is_covered(known) for known in combinations(slots, always_enough))
    fewer = list(combinations(slots, always_enough - 1))
    assert not all(distribution.is_covered(known) for known in fewer)


def test_two_opposite_answers_of_four_do_not_cover() -> None:
    """F8: entry 1 lives on slots 1, 2, 3, of which only slot 2 answered."""
    assert not Distribution(4, 3, 2).is_covered([0, 2])


def test_two_opposite_answers_of_six_cover_when_all_must_acknowledge() -> None:
    """F55: with (6,3,3) each window holds 0 or 3."""
    distribution = Distribution(6, 3, 3)
    assert distribution.is_covered([0, 3])
    assert not distribution.is_covered([0, 2])


@given(
    shape=shapes,
    acknowledged=st.integers(0, 63),
    first=st.integers(0, 2**33),
    count=st.integers(1, 20),
)
def test_quorum_of_a_batch_is_the_quorum_of_each_entry(
    shape: tuple[int, int, int], acknowledged: int, first: int, count: int
) -> None:
    distribution = Distribution(*shape)
    last = first + count - 1
    each = all(
        sum(acknowledged >> slot & 1 for slot in distribution.write_set(e)) >= shape[2]
        for e in range(first, last + 1)
    )
    assert (
        distribution.has_ack_quorum(acknowledged & (1 << shape[0]) - 1, first=first, last=last)
        == each
    )


@given(shape=shapes, failed=st.integers(0, 63), first=st.integers(0, 50), count=st.integers(1, 20))
def test_write_sets_are_lost_when_their_quorum_is_out_of_reach(
    shape: tuple[int, int, int], failed: int, first: int, count: int
) -> None:
    distribution = Distribution(*shape)
    failed &= (1 << shape[0]) - 1
    lost: set[int] = set()
    for entry_id in range(first, first + count):
        slots = distribution.write_set(entry_id)
        bad = {slot for slot in slots if failed >> slot & 1}
        if shape[1] - len(bad) < shape[2]:
            lost |= bad
    found = distribution.lost_write_sets(failed, first=first, last=first + count - 1)
    assert set(slots_in(found)) == lost


@given(slots=st.sets(st.integers(0, 70)))
def test_masks_and_slots_are_two_forms_of_one_set(slots: set[int]) -> None:
    assert list(slots_in(mask_of(slots))) == sorted(slots)
