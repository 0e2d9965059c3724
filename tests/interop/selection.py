"""Which combinations of the matrix are run: all of them, or a few that hold every pair."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import TypeVar

from tests.interop.java_client import THREE, Shape

T = TypeVar("T", bound=Hashable)

SHAPES = [THREE, Shape(3, 2, 2), Shape(1, 1, 1), Shape(4, 3, 2)]
DIGESTS = ["CRC32", "CRC32C", "MAC", "DUMMY"]


def every(*dimensions: Sequence[T]) -> list[tuple[T, ...]]:
    return list(itertools.product(*dimensions))


def pairwise(*dimensions: Sequence[T]) -> list[tuple[T, ...]]:
    """A selection in which any two values of two dimensions meet at least once.

    Greedy: always the combination that brings most new pairs. The order is fixed, so the selection
    is the same in every run.
    """
    combinations = every(*dimensions)
    missing = {pair for combination in combinations for pair in _pairs(combination)}
    chosen = []
    while missing:
        best = max(combinations, key=lambda combination: len(missing & _pairs(combination)))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(combination: tuple[T, ...]) -> set[tuple[tuple[int, T], tuple[int, T]]]:
    return set(itertools.combinations(enumerate(combination), 2))
