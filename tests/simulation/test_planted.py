"""A simulator that finds nothing planted proves nothing: every bug on purpose must be found."""

from __future__ import annotations

import pytest

from tests.simulation.invariants import CHECKERS
from tests.simulation.planted import BUGS
from tests.simulation.planted.bug import Bug
from tests.simulation.runs import failure_of, smallest, story_of
from tests.simulation.test_invariants import TESTED_ALONE

NAMES = [bug.name for bug in BUGS]


@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
def test_a_planted_bug_is_found_within_its_seeds_and_without_it_all_is_well(bug: Bug) -> None:
    found = bug.find()
    assert found is not None, f"not found within {bug.seeds} seeds"
    assert failure_of(found[0]) is None


def test_there_are_bugs_of_every_kind() -> None:
    assert len(set(NAMES)) == len(BUGS) >= 25
    for apache in ("#3005", "#4097", "#4459", "#2614", "#2612", "#2908", "#1967", "#4651"):
        assert any(apache in bug.like for bug in BUGS), apache


def test_every_checker_is_one_that_a_planted_bug_can_set_off() -> None:
    """Or it has a test of its own: see test_invariants."""
    fired: set[str] = set()
    for bug in BUGS:
        with bug.planted():
            for seed in range(6):
                failed = failure_of(bug.plan(seed))
                if failed is not None:
                    fired.add(failed.invariant)
    missing = {checker.name for checker in CHECKERS} - fired - TESTED_ALONE
    assert not missing


@pytest.mark.parametrize("name", ["one ack too few", "acknowledged before the sync"])
def test_the_smallest_plan_still_fails_and_reads_as_a_story(name: str) -> None:
    bug = next(bug for bug in BUGS if bug.name == name)
    result = bug.find()
    assert result is not None
    plan, failed = result
    with bug.planted():
        least = smallest(plan, failed, failure_of)
        again = failure_of(least)
        story = story_of(least)
    assert again is not None
    assert again.invariant == failed.invariant
    assert len(least.told()) < len(plan.told())
    assert story[-1].endswith(again.what)
    assert any("is given entries" in line for line in story)
