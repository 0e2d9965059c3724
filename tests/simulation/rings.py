"""The two rings behind one face: run a seed, tell it, and tell the least that goes wrong."""

from __future__ import annotations

import time
from typing import Final, NamedTuple, Protocol

from tests.simulation import runs
from tests.simulation.outer import runs as outer_runs
from tests.simulation.outer.plan import OuterPlan
from tests.simulation.runs import Failed

__all__ = ["RINGS", "Failed", "Report", "Ring", "run_seeds"]


class Ring(Protocol):
    argument: str  # of make, to choose it
    chunk: int  # seeds that one process runs between two reports

    def failure_of_seed(self, seed: int) -> Failed | None: ...

    def story_of_seed(self, seed: int) -> list[str]: ...

    def smallest_story(self, seed: int, failed: Failed) -> tuple[str, list[str]]:
        """What remains of the plan, and its story."""


class Inner:
    argument = ""
    chunk = 50

    def failure_of_seed(self, seed: int) -> Failed | None:
        return runs.failure_of(runs.plan_for(seed))

    def story_of_seed(self, seed: int) -> list[str]:
        return runs.story_of(runs.plan_for(seed))

    def smallest_story(self, seed: int, failed: Failed) -> tuple[str, list[str]]:
        plan = runs.smallest(runs.plan_for(seed), failed, runs.failure_of)
        return plan.told(), runs.story_of(plan)


class Outer:
    argument = " RING=outer"
    chunk = 5

    def failure_of_seed(self, seed: int) -> Failed | None:
        return outer_runs.failure_of(OuterPlan.of(seed))

    def story_of_seed(self, seed: int) -> list[str]:
        return outer_runs.story_of(OuterPlan.of(seed))

    def smallest_story(self, seed: int, failed: Failed) -> tuple[str, list[str]]:
        plan = runs.smallest(OuterPlan.of(seed), failed, outer_runs.failure_of)
        return plan.told(), outer_runs.story_of(plan)


RINGS: Final[dict[str, Ring]] = {"inner": Inner(), "outer": Outer()}


class Report(NamedTuple):
    ran: int
    cpu_seconds: float
    failures: list[tuple[int, Failed]]


def run_seeds(ring: str, seeds: range) -> Report:
    """What a process is handed. Here and not in `__main__`, whose names no other process knows."""
    found, started = [], time.process_time()
    for seed in seeds:
        failed = RINGS[ring].failure_of_seed(seed)
        if failed is not None:
            found.append((seed, failed))
    return Report(len(seeds), time.process_time() - started, found)
