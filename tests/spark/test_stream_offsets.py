"""Offsets without Spark: their text, how far a batch goes, and what it holds when planned again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.core.offsets import (
    LedgerEnd,
    LedgerSequence,
    Limits,
    OffsetError,
    Range,
    from_offset,
    to_offset,
)
from spark.core.position import Position

THREE = LedgerSequence((7, 3, 9))  # ledger ids are not an order
CLOSED = {7: LedgerEnd(9, True, 100), 3: LedgerEnd(4, True, 5000), 9: LedgerEnd(2, False, 30)}


def test_offset_has_one_text_with_sorted_keys() -> None:
    offset = to_offset(Position(7, 12))
    assert json.dumps(offset, separators=(",", ":")) == '{"entry":12,"ledger":7,"v":1}'
    assert from_offset(json.loads('{"v":1,"ledger":7,"entry":12}')) == Position(7, 12)


@pytest.mark.parametrize("bad", [{}, {"entry": 1}, {"entry": 1, "ledger": 2, "v": 2}, None])
def test_offset_of_another_kind_is_refused(bad: object) -> None:
    with pytest.raises(OffsetError, match="the checkpoint is not one of this source"):
        from_offset(bad)


@pytest.mark.parametrize("ledgers", [(), (1, 2, 1)])
def test_sequence_names_each_ledger_once_and_at_least_one(ledgers: tuple[int, ...]) -> None:
    with pytest.raises(OffsetError):
        LedgerSequence(ledgers)


def test_batch_goes_over_closed_ledgers_up_to_what_the_open_one_confirmed() -> None:
    assert THREE.advance(Position(7, 0), CLOSED) == Position(9, 3)


def test_offset_stays_behind_a_closed_ledger_until_the_next_has_entries() -> None:
    """No batch of nothing: the text must not change as long as there is nothing to read."""
    ends = {7: CLOSED[7]}
    behind = Position(7, 10)
    assert THREE.advance(Position(7, 0), ends) == behind
    assert THREE.advance(behind, ends) == behind
    ends[3] = LedgerEnd(-1, False)
    assert THREE.advance(behind, ends) == behind
    ends[3] = LedgerEnd(0, False, 1)
    assert THREE.advance(behind, ends) == Position(3, 1)


def test_batch_does_not_pass_an_open_ledger() -> None:
    ends = CLOSED | {7: LedgerEnd(9, False, 100)}
    assert THREE.advance(Position(7, 0), ends) == Position(7, 10)


def test_batch_passes_empty_and_deleted_ledgers() -> None:
    gone = CLOSED | {3: LedgerEnd(-1, True, is_gone=True)}
    assert THREE.advance(Position(3, 5), gone) == Position(9, 3)
    assert THREE.ranges(Position(7, 8), Position(9, 3), gone) == [Range(7, 8, 9), Range(9, 0, 2)]
    empty = CLOSED | {3: LedgerEnd(-1, True)}
    assert THREE.ranges(Position(7, 8), Position(9, 1), empty) == [Range(7, 8, 9), Range(9, 0, 0)]


def test_checkpoint_behind_the_end_of_a_closed_ledger_is_refused() -> None:
    with pytest.raises(OffsetError, match="whose last entry is 9") as caught:
        THREE.advance(Position(7, 11), CLOSED)
    assert (caught.value.ledger_id, caught.value.entry_id) == (7, 11)


def test_checkpoint_behind_what_is_known_of_an_open_ledger_waits() -> None:
    """After a restart bookies may show less than they did: entries are not lost by that."""
    assert THREE.advance(Position(9, 50), CLOSED) == Position(9, 50)


def test_checkpoint_in_a_ledger_that_is_not_named_is_refused() -> None:
    with pytest.raises(OffsetError, match="does not name"):
        THREE.advance(Position(8, 0), CLOSED)


def test_batch_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(OffsetError, match="the order of `ledgers` was changed"):
        THREE.ranges(Position(3, 0), Position(7, 5), CLOSED)


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        (Limits(entries=4), Position(7, 4)),
        (Limits(entries=12), Position(3, 2)),
        (Limits(nbytes=55), Position(7, 5)),
        (Limits(nbytes=1100), Position(3, 1)),
        (Limits(entries=3, nbytes=55), Position(7, 3)),
        (Limits(nbytes=1), Position(7, 1)),  # less than one entry: one goes in all the same
    ],
)
def test_batch_keeps_both_limits(limits: Limits, end: Position) -> None:
    assert THREE.advance(Position(7, 0), CLOSED, limits) == end


def test_entry_larger_than_the_rest_of_a_batch_waits_for_the_next() -> None:
    """Entries of ledger 3 have 1000 bytes: after ten of ten bytes there is no room for one."""
    assert THREE.advance(Position(7, 0), CLOSED, Limits(nbytes=500)) == Position(7, 10)
    assert THREE.advance(Position(7, 10), CLOSED, Limits(nbytes=500)) == Position(3, 1)


def test_frozen_end_is_never_passed_even_when_the_ledger_rolls() -> None:
    stop = Position(3, 2)
    assert THREE.advance(Position(7, 0), CLOSED, stop=stop) == stop
    assert THREE.advance(stop, CLOSED, stop=stop) == stop
    assert THREE.advance(Position(9, 1), CLOSED, stop=stop) == Position(9, 1)


@given(
    lasts=st.lists(st.integers(-1, 6), min_size=1, max_size=5),
    limit=st.one_of(st.none(), st.integers(1, 7)),
    is_last_open=st.booleans(),
)
def test_batches_cover_every_entry_once_and_in_order(
    lasts: list[int], limit: int | None, is_last_open: bool
) -> None:
    ledgers = tuple(range(len(lasts), 0, -1))
    sequence = LedgerSequence(ledgers)
    ends = {
        ledger: LedgerEnd(last, not (is_last_open and ledger == ledgers[-1]), 10 * (last + 1))
        for ledger, last in zip(ledgers, lasts, strict=True)
    }
    at, found = sequence.first, []
    while (end := sequence.advance(at, ends, Limits(entries=limit))) != at:
        ranges = sequence.ranges(at, end, ends)
        entries = [(r.ledger, entry) for r in ranges for entry in range(r.first, r.last + 1)]
        assert entries, "a batch of nothing"
        assert limit is None or len(entries) <= limit
        found += entries
        at = end
    assert found == [(x, e) for x in ledgers for e in range(ends[x].last + 1)]
