"""Absence from a listing, and when it is believed."""

from __future__ import annotations

import random

import pytest

from bookie.core.garbage import Comparison, GarbageError, Suspicion


@pytest.mark.parametrize("seed", range(50))
def test_comparison_finds_exactly_what_is_missing(seed: int) -> None:
    chance = random.Random(seed)
    local = sorted(chance.sample(range(100), chance.randrange(40)))
    listed = sorted(chance.sample(range(100), chance.randrange(100)))
    comparison = Comparison(local)
    found: list[int] = []
    rest = listed
    while rest:
        cut = chance.randrange(1, len(rest) + 1)
        found += comparison.feed(rest[:cut])
        found += comparison.feed([])
        rest = rest[cut:]
    found += comparison.finish()
    assert found == [ledger for ledger in local if ledger not in listed]
    assert comparison.listed_count == len(listed)


@pytest.mark.parametrize("again", [[5], [3, 9], [1]])
def test_listing_out_of_order_is_an_error(again: list[int]) -> None:
    comparison = Comparison([1, 2, 3])
    comparison.feed([1, 5])
    with pytest.raises(GarbageError, match="out of order"):
        comparison.feed(again)


def test_few_candidates_are_confirmed_at_once() -> None:
    assert Suspicion().confirmed([1, 2], local_count=4, listed_count=9) == [1, 2]


def test_many_candidates_wait_for_a_round_that_agrees() -> None:
    suspicion = Suspicion()
    assert suspicion.confirmed([1, 2, 3], local_count=4, listed_count=9) == []
    assert suspicion.confirmed([2, 3, 4], local_count=4, listed_count=9) == [2, 3]
    assert suspicion.confirmed([4, 5, 6], local_count=4, listed_count=9) == [4]


def test_calm_round_in_between_ends_the_suspicion() -> None:
    suspicion = Suspicion()
    assert suspicion.confirmed([1, 2, 3], local_count=4, listed_count=9) == []
    assert suspicion.confirmed([1], local_count=4, listed_count=9) == [1]
    assert suspicion.confirmed([1, 2, 3], local_count=4, listed_count=9) == []


def test_empty_listing_is_always_suspicious() -> None:
    suspicion = Suspicion()
    assert suspicion.confirmed([1], local_count=1, listed_count=0) == []
    assert suspicion.confirmed([1], local_count=1, listed_count=0) == [1]
    assert Suspicion().confirmed([1], local_count=1, listed_count=1) == [1]
