"""Which slots lack copies, what is cut for them: against the plain definition, entry by entry."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autorecovery.core.fragments import (
    CopyJob,
    Cutter,
    DamagedFragment,
    choose_substitutes,
    find_damage,
    missing_runs,
    refilling,
    replacing,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.placement import Cluster, DefaultPolicy
from metadata.model import Fragment, LedgerMetadata, LedgerState
from wire.availability import runs_of
from wire.types import BookieId, DigestType, LedgerId

A, B, C, D, E, F = (BookieId(f"bk{letter}:3181") for letter in "ABCDEF")
ALL = (A, B, C, D, E, F)


def ledger(
    *fragments: tuple[int, str],
    quorum: tuple[int, int] = (2, 2),
    last: int | None = None,
    state: LedgerState | None = None,
) -> LedgerMetadata:
    """Fragments as (first entry, letters of bookies); closed at `last`, or open without it."""
    named = {bookie[2]: bookie for bookie in ALL}
    return LedgerMetadata(
        ledger_id=LedgerId(7),
        ensemble_size=len(fragments[0][1]),
        write_quorum=quorum[0],
        ack_quorum=quorum[1],
        fragments=tuple(
            Fragment(first, tuple(named[letter] for letter in letters))
            for first, letters in fragments
        ),
        state=state or (LedgerState.OPEN if last is None else LedgerState.CLOSED),
        last_entry_id=last,
        digest_type=DigestType.CRC32C,
        password=b"",
    )


def present(letters: str) -> frozenset[BookieId]:
    return frozenset(BookieId(f"bk{letter}:3181") for letter in letters)


# ---------------------------------------------------------------------- damage


def test_every_fragment_that_names_a_lost_bookie_is_damaged() -> None:
    metadata = ledger((0, "ABC"), (10, "ABD"), (20, "ACD"), last=29)
    damage = find_damage(metadata, present=present("ACD"))
    found = [(d.first_entry_id, d.last_entry_id, d.bad) for d in damage.settled]
    assert found == [(0, 9, (1,)), (10, 19, (1,))]
    assert damage.growing == ()


def test_growing_fragment_is_told_apart_from_settled_ones() -> None:
    """F39: an older fragment of an open ledger is settled, whatever the LAC says."""
    metadata = ledger((0, "ABC"), (10, "ABD"))
    damage = find_damage(metadata, present=present("ACD"))
    assert [(d.first_entry_id, d.last_entry_id) for d in damage.settled] == [(0, 9)]
    assert damage.growing == (B,)
    in_recovery = ledger((0, "ABC"), (10, "ABD"), state=LedgerState.IN_RECOVERY)
    assert find_damage(in_recovery, present=present("ACD")) == damage


def test_closed_empty_last_fragment_needs_another_bookie_and_no_entry() -> None:
    """F54."""
    metadata = ledger((0, "ABC"), (10, "ABD"), last=9)
    (damaged,) = find_damage(metadata, present=present("ABC")).settled
    assert (damaged.first_entry_id, damaged.is_empty, damaged.bad) == (10, True, (2,))
    job = replacing(metadata, damaged, {2: E}, present=present("ABC"), order=(0, 1, 2))
    assert job.runs == ()
    assert job.entries == 0
    assert Cutter(job).next(10) is None


def test_ledger_without_entries_is_repaired_by_metadata_alone() -> None:
    (damaged,) = find_damage(ledger((0, "ABC"), last=-1), present=present("AB")).settled
    assert damaged.is_empty


def test_bookie_that_leaves_is_bad_and_still_a_source_of_last_resort() -> None:
    metadata = ledger((0, "ABC"), quorum=(3, 2), last=9)
    everybody = frozenset(ALL)
    (damaged,) = find_damage(metadata, present=everybody, leaving={A}).settled
    assert damaged.bad == (0,)
    job = replacing(metadata, damaged, {0: D}, present=everybody, order=(0, 2, 1))
    assert job.sources == (2, 1, 0)


def test_bookie_in_two_slots_leaves_the_second() -> None:
    """Apache's writers made such records once; a change must not keep the bookie twice."""
    (damaged,) = find_damage(ledger((0, "ABA"), last=9), present=present("AB")).settled
    assert damaged.bad == (2,)


def test_whole_ledger_has_no_damage() -> None:
    assert find_damage(ledger((0, "ABC"), last=5), present=present("ABC")).is_none
    assert find_damage(ledger((0, "ABC")), present=present("ABC")).is_none


# ---------------------------------------------------------------------- substitutes


def substitutes(
    bad: tuple[int, ...], writable: str, *, leaving: str = "", avoid: str = ""
) -> dict[int, BookieId]:
    damaged = DamagedFragment(Fragment(0, (A, B, C)), 9, bad)
    return choose_substitutes(
        DefaultPolicy(),
        Cluster(present(writable)),
        damaged,
        chance=Random(1),
        leaving=present(leaving),
        avoid=present(avoid),
    )


def test_substitute_is_never_in_the_ensemble_nor_leaving_nor_just_failed() -> None:
    assert substitutes((1,), "ABCD") == {1: D}
    assert substitutes((1,), "ABC") == {}
    assert substitutes((1,), "ACDE", leaving="D") == {1: E}
    assert substitutes((1,), "ACDE", avoid="E") == {1: D}
    assert substitutes((1,), "ACD", avoid="D") == {}


def test_two_slots_get_two_bookies_or_one_of_them_none() -> None:
    both = substitutes((0, 1), "CDE")
    assert sorted(both) == [0, 1]
    assert set(both.values()) == {D, E}
    assert len(substitutes((0, 1), "CD")) == 1


# ---------------------------------------------------------------------- cutting

shapes = st.integers(1, 6).flatmap(
    lambda size: st.tuples(st.just(size), st.integers(1, size)).map(
        lambda pair: Distribution(pair[0], pair[1], 1)
    )
)


@given(
    shape=shapes,
    first=st.integers(0, 40),
    count=st.integers(0, 60),
    slots=st.sets(st.integers(0, 5), min_size=1),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_pieces_are_each_entry_of_each_target_once_with_its_own_sources(
    shape: Distribution, first: int, count: int, slots: set[int], counts: list[int]
) -> None:
    ensemble = ALL[: shape.ensemble_size]
    bad = sorted(slot for slot in slots if slot < shape.ensemble_size)
    sources = tuple(slot for slot in range(shape.ensemble_size) if slot not in bad)
    runs = ((first, first + count - 1),) if count else ()
    targets = dict.fromkeys(bad, BookieId("new:1"))
    job = CopyJob(shape, Fragment(first, ensemble), runs, targets, sources)
    cutter, made, pieces = Cutter(job), [], 0
    while (piece := cutter.next(counts[pieces % len(counts)])) is not None:
        assert 1 <= len(piece.entry_ids) <= max(counts)
        for entry_id in piece.entry_ids:
            write_set = set(shape.write_set(entry_id))
            assert set(piece.sources) == write_set - set(bad)
            assert set(piece.targets) == write_set & set(bad)
            made += [(entry_id, slot) for slot in piece.targets]
        pieces += 1
    assert cutter.is_done
    expected = [
        (entry_id, slot)
        for entry_id in range(first, first + count)
        for slot in shape.write_set(entry_id)
        if slot in bad
    ]
    assert sorted(made) == sorted(expected)
    assert job.entries == len(expected)


def test_striped_pieces_stay_in_one_stretch_of_the_ledger() -> None:
    """Or a source would read the same stretch once for every slot, long apart."""
    job = CopyJob(Distribution(5, 3, 2), Fragment(0, ALL[:5]), ((0, 999),), {0: F}, (1, 2, 3, 4))
    cutter = Cutter(job)
    firsts = [piece.entry_ids[0] for _ in range(30) if (piece := cutter.next(10)) is not None]
    assert firsts == sorted(firsts)


@given(
    shape=shapes,
    slot=st.integers(0, 5),
    first=st.integers(0, 30),
    count=st.integers(0, 40),
    listed=st.sets(st.integers(0, 80)),
)
def test_missing_runs_are_what_the_slot_must_hold_and_does_not(
    shape: Distribution, slot: int, first: int, count: int, listed: set[int]
) -> None:
    slot %= shape.ensemble_size
    last = first + count - 1
    runs = missing_runs(shape, slot=slot, first=first, last=last, listed=runs_of(sorted(listed)))
    found = [
        entry_id
        for run_first, run_last in runs
        for entry_id in range(run_first, run_last + 1)
        if shape.holds(slot=slot, entry_id=entry_id)
    ]
    assert found == [
        entry_id
        for entry_id in range(first, last + 1)
        if shape.holds(slot=slot, entry_id=entry_id) and entry_id not in listed
    ]
    assert all(
        shape.holds(slot=slot, entry_id=end) and first <= end <= last for run in runs for end in run
    )


def test_slot_that_lost_everything_has_one_run() -> None:
    shape = Distribution(5, 3, 2)
    assert missing_runs(shape, slot=2, first=7, last=5000, listed=[]) == [(7, 5000)]


@pytest.mark.parametrize("entry_id", [2**31 - 1, 2**31, 2**40])
def test_striping_is_the_same_around_large_entry_ids(entry_id: int) -> None:
    """F59."""
    shape = Distribution(5, 3, 2)
    job = CopyJob(shape, Fragment(0, ALL[:5]), ((entry_id, entry_id),), {4: F}, (0, 1, 2, 3))
    piece = Cutter(job).next(5)
    assert (piece is not None) == shape.holds(slot=4, entry_id=entry_id)


def test_refill_reads_from_the_others_only() -> None:
    metadata = ledger((0, "ABC"), quorum=(3, 2), last=9)
    job = refilling(
        metadata, metadata.fragments[0], 1, [(2, 4)], present=frozenset(ALL), order=(0, 1, 2)
    )
    assert (dict(job.targets), job.sources, job.runs) == ({1: B}, (0, 2), ((2, 4),))
