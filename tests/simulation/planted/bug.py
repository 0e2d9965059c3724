"""A bug on purpose: a small patch of a real core, and where the simulator looks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.plan import Plan
from tests.simulation.runs import Failed, failure_of, plan_for
from tests.simulation.scripts import ROWS


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    like: str  # the row of the fault table, the invariant, or Apache's issue, that it imitates
    owner: type
    attribute: str
    make: Callable[[Any], Any]  # the broken form, out of the right one
    row: str = ""  # whose script is played; empty: the seeds that everybody runs
    seeds: int = 100  # within which it is found

    @contextmanager
    def planted(self) -> Iterator[None]:
        right = self.owner.__dict__[self.attribute]
        broken = self.make(right)
        with patch.object(self.owner, self.attribute, broken):
            yield

    def plan(self, seed: int) -> Plan:
        return ROWS[self.row].plan(seed) if self.row else plan_for(seed)

    def find(self) -> tuple[Plan, Failed] | None:
        """The first plan that shows it. The patch is gone when this returns."""
        with self.planted():
            for seed in range(self.seeds):
                plan = self.plan(seed)
                failed = failure_of(plan)
                if failed is not None:
                    return plan, failed
        return None
