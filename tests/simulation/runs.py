"""One run from one seed: chance alone for the even ones, a row of the fault table for the odd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

from tests.simulation.history import ViolationError
from tests.simulation.inner.world import World
from tests.simulation.plan import Plan
from tests.simulation.scripts import ROWS


def plan_for(seed: int) -> Plan:
    if seed % 2 == 0:
        return Plan.of(seed)
    rows = list(ROWS.values())
    return rows[seed // 2 % len(rows)].plan(seed)


class Failed(NamedTuple):
    """What was wrong: an invariant, or the name of an error that nobody expected."""

    invariant: str
    what: str

    @classmethod
    def by(cls, error: Exception) -> Failed:
        if isinstance(error, ViolationError):
            return cls(error.invariant, error.what)
        return cls(type(error).__name__, str(error))


class Shrinking(Protocol):
    def smaller(self) -> Sequence[Self]: ...


AnyPlan = TypeVar("AnyPlan", bound=Shrinking)


def run(plan: Plan, *, tells: bool = False) -> World:
    """Play a plan to its end. Raises what an invariant, or a core's own assertion, has to say."""
    world = world_of(plan, tells=tells)
    world.run()
    return world


def world_of(plan: Plan, *, tells: bool = False) -> World:
    prefix = ROWS[plan.script].prefix if plan.script else None
    return World(plan, prefix=prefix, tells=tells)


def failure_of(plan: Plan) -> Failed | None:
    try:
        run(plan)
    except Exception as error:
        return Failed.by(error)
    return None


def smallest(plan: AnyPlan, failed: Failed, failure: Callable[[AnyPlan], Failed | None]) -> AnyPlan:
    """The least that still goes wrong in the same way: one thing less, as long as that works."""
    while True:
        for smaller in plan.smaller():
            found = failure(smaller)
            if found is not None and found.invariant == failed.invariant:
                plan = smaller
                break
        else:
            return plan


def story_of(plan: Plan) -> list[str]:
    """The run told line by line, to the point where it fails."""
    world = world_of(plan, tells=True)
    try:
        world.run()
    except Exception as error:
        world.tell(f"=> {error}")
    return world.story
