"""The core set of the interop matrix: few combinations, every pair."""

from __future__ import annotations

import itertools

from tests.interop.selection import every, pairwise

DIMENSIONS = (["a", "b", "c", "d", "e"], ["x", "y", "z"], ["1", "2", "3"], ["p", "q", "r", "s"])


def test_every_pair_of_values_meets() -> None:
    chosen = pairwise(*DIMENSIONS)
    for (i, first), (j, second) in itertools.combinations(enumerate(DIMENSIONS), 2):
        for pair in itertools.product(first, second):
            assert any((combination[i], combination[j]) == pair for combination in chosen), pair


def test_selection_is_small_and_always_the_same() -> None:
    chosen = pairwise(*DIMENSIONS)
    assert len(chosen) <= 2 * 5 * 4  # the two largest dimensions alone need 20
    assert chosen == pairwise(*DIMENSIONS)
    assert set(chosen) < set(every(*DIMENSIONS))
