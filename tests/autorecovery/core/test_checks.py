"""Counting copies from records and lists, against counting them entry by entry."""

from __future__ import annotations

import itertools
import random

import pytest

from autorecovery.core.checks import (
    sourceless_runs,
    stores_entries_on,
    stretches,
    worst_copies,
)
from ledger_client.core.distribution import Distribution
from metadata.model import Fragment, LedgerMetadata, LedgerState
from wire.types import BookieId, LedgerId

NAMES = [BookieId(f"bk{number}:3181") for number in range(8)]


def ledger(
    size: int,
    write_quorum: int,
    *firsts: int,
    last: int | None = 9,
    ensembles: list[list[BookieId]] | None = None,
) -> LedgerMetadata:
    starts = firsts or (0,)
    lists = ensembles or [NAMES[i : i + size] for i in range(len(starts))]
    return LedgerMetadata(
        ledger_id=LedgerId(1),
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=1,
        fragments=tuple(
            Fragment(first, tuple(names)) for first, names in zip(starts, lists, strict=True)
        ),
        state=LedgerState.OPEN if last is None else LedgerState.CLOSED,
        last_entry_id=last,
    )


@pytest.mark.parametrize("seed", range(200))
def test_stretches_agree_with_a_look_at_every_entry(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 6)
    quorum = chance.randint(1, size)
    shape = Distribution(size, quorum, 1)
    first = chance.randint(0, 30)
    last = first + chance.randint(0, 40)
    missing: dict[int, list[tuple[int, int]]] = {}
    for slot in range(size):
        ids = sorted(chance.sample(range(first, last + 1), min(6, last - first + 1) // 2 * 2))
        missing[slot] = list(zip(ids[::2], ids[1::2], strict=True))
    found: dict[int, int] = {}
    for stretch in stretches(shape, first=first, last=last, missing=missing):
        for entry in range(stretch.first, stretch.last + 1):
            found[entry] = stretch.copies
    assert sorted(found) == list(range(first, last + 1))

    def copies(entry: int) -> int:
        return sum(
            not any(a <= entry <= b for a, b in missing[slot]) for slot in shape.write_set(entry)
        )

    for stretch in stretches(shape, first=first, last=last, missing=missing):
        entries = range(stretch.first, stretch.last + 1)
        assert stretch.copies == min(map(copies, entries))


def test_nothing_missing_is_one_stretch() -> None:
    shape = Distribution(3, 3, 2)
    (only,) = stretches(shape, first=0, last=99, missing={})
    assert (only.first, only.last, only.copies) == (0, 99, 3)


def test_a_fragment_without_entries_has_no_stretch() -> None:
    assert list(stretches(Distribution(3, 3, 2), first=5, last=4, missing={0: [(0, 9)]})) == []


@pytest.mark.parametrize(("size", "quorum"), [(1, 1), (3, 3), (3, 2), (5, 3), (4, 1)])
def test_worst_copies_agrees_with_a_look_at_every_entry(size: int, quorum: int) -> None:
    metadata = ledger(size, quorum, 0, 4, last=11)
    shape = Distribution.of(metadata)
    for count in range(len(NAMES) + 1):
        for present in itertools.islice(itertools.combinations(NAMES, count), 20):
            expected = min(
                sum(
                    metadata.fragment_of(entry).ensemble[slot] in present
                    for slot in shape.write_set(entry)
                )
                for entry in range(12)
            )
            assert worst_copies(metadata, present) == expected


def test_a_ledger_without_entries_has_no_worst_entry() -> None:
    assert worst_copies(ledger(3, 3, last=-1), []) is None


def test_the_growing_fragment_counts_as_full() -> None:
    metadata = ledger(4, 2, last=None)
    assert worst_copies(metadata, NAMES[:4]) == 2
    assert worst_copies(metadata, NAMES[1:4]) == 1
    assert worst_copies(metadata, NAMES[2:4]) == 0


def test_sourceless_runs_are_those_of_fragments_that_nobody_has() -> None:
    metadata = ledger(1, 1, 0, 4, last=9)
    assert sourceless_runs(metadata, [NAMES[1]]) == ((0, 3),)
    assert sourceless_runs(metadata, NAMES) == ()
    assert sourceless_runs(metadata, []) == ((0, 3), (4, 9))


def test_sourceless_runs_leave_the_growing_fragment_out() -> None:
    assert sourceless_runs(ledger(1, 1, last=None), []) == ()


def test_an_empty_last_fragment_stores_nothing() -> None:
    """F54: its bookies may be gone, and nobody misses an entry."""
    metadata = ledger(3, 3, 0, 5, last=4, ensembles=[NAMES[:3], NAMES[3:6]])
    assert stores_entries_on(metadata, NAMES[0])
    assert not stores_entries_on(metadata, NAMES[3])
    assert not stores_entries_on(metadata, NAMES[7])


def test_a_slot_without_entries_of_its_own_stores_nothing() -> None:
    metadata = ledger(5, 2, last=0)
    assert [stores_entries_on(metadata, name) for name in NAMES[:5]] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_the_growing_fragment_may_store_entries_any_moment() -> None:
    assert stores_entries_on(ledger(3, 3, last=None), NAMES[0])
