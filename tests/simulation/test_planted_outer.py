"""Bugs of the shells and of the storage engine, on purpose: the outer ring must find each."""

from __future__ import annotations

import pytest

from tests.simulation.outer.runs import failure_of
from tests.simulation.planted.outer import OUTER_BUGS, OuterBug


@pytest.mark.parametrize("bug", OUTER_BUGS, ids=[bug.name for bug in OUTER_BUGS])
def test_a_planted_bug_is_found_within_its_seeds_and_without_it_all_is_well(bug: OuterBug) -> None:
    found = bug.find()
    assert found is not None, f"not found within {bug.seeds} seeds"
    assert failure_of(found[0]) is None
