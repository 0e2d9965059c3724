"""The plan of a run: the same for the same seed, and never more than the protocol can bear."""

from __future__ import annotations

import pytest

from tests.chaos.planner import ALL, HARMING, HARMLESS, Planner


def plan(seed: int, rounds: int) -> list[tuple[str, ...]]:
    planner = Planner(list(ALL), seed)
    return [planner.next_names() for _ in range(rounds)]


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan(7, 60) == plan(7, 60)
    assert plan(7, 60) != plan(8, 60)


def test_every_fault_comes_before_any_comes_again() -> None:
    firsts = [names[0] for names in plan(3, 2 * len(ALL))]
    assert sorted(firsts[: len(ALL)]) == sorted(ALL)
    assert sorted(firsts[len(ALL) :]) == sorted(ALL)


def test_whatever_destroys_copies_comes_alone() -> None:
    for seed in range(40):
        for names in plan(seed, 60):
            assert len(names) == 1 or set(names) <= set(HARMLESS)
            assert len(set(names)) == len(names)


def test_at_most_one_fault_at_a_time_takes_a_zookeeper_away() -> None:
    for seed in range(40):
        for names in plan(seed, 60):
            assert sum("leader" in name or "zookeeper" in name for name in names) <= 1


def test_planner_refuses_faults_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="no fault is called plague: there are kill"):
        Planner(["kill", "plague"], 1)


def test_harming_and_harmless_faults_are_told_apart() -> None:
    assert not set(HARMING) & set(HARMLESS)
