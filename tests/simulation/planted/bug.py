"""A bug on purpose: a small patch of the real code, and where the simulator looks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from unittest.mock import patch

from tests.simulation.plan import Plan
from tests.simulation.runs import Failed, failure_of, plan_for
from tests.simulation.scripts import ROWS

P = TypeVar("P")


@dataclass(frozen=True)
class Planted(ABC, Generic[P]):
    name: str
    like: str  # the row of the fault table, the invariant, or Apache's issue, that it imitates
    owner: Any  # a class, or a module
    attribute: str
    make: Callable[[Any], Any]  # the broken form, out of the right one
    seeds: int = 100  # within which it is found

    @contextmanager
    def planted(self) -> Iterator[None]:
        broken = self.make(self.owner.__dict__[self.attribute])
        with patch.object(self.owner, self.attribute, broken):
            yield

    @abstractmethod
    def plan(self, seed: int) -> P: ...

    @abstractmethod
    def failure_of(self, plan: P) -> Failed | None: ...

    def find(self) -> tuple[P, Failed] | None:
        """The first plan that shows it. The patch is gone when this returns."""
        with self.planted():
            for seed in range(self.seeds):
                plan = self.plan(seed)
                failed = self.failure_of(plan)
                if failed is not None:
                    return plan, failed
        return None


@dataclass(frozen=True)
class Bug(Planted[Plan]):
    """Of a core: the inner ring finds it."""

    row: str = ""  # whose script is played; empty: the seeds that everybody runs

    def plan(self, seed: int) -> Plan:
        return ROWS[self.row].plan(seed) if self.row else plan_for(seed)

    def failure_of(self, plan: Plan) -> Failed | None:
        return failure_of(plan)
