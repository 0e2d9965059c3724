"""One run of the outer ring from one seed, its failure, and the least that still fails."""

from __future__ import annotations

from tests.simulation.history import ViolationError
from tests.simulation.outer.plan import OuterPlan
from tests.simulation.outer.world import OuterWorld
from tests.simulation.runs import Failed


def failure_of(plan: OuterPlan) -> Failed | None:
    return _played(plan)[1]


def story_of(plan: OuterPlan) -> list[str]:
    """The run told line by line, to the point where it fails."""
    world, failed = _played(plan)
    if failed is not None:
        world.story.append(f"=> {failed.invariant}: {failed.what}")
    return world.story


def smallest(plan: OuterPlan, failed: Failed) -> OuterPlan:
    """The least that still goes wrong in the same way: one thing less, as long as that works."""
    while True:
        for smaller in plan.smaller():
            found = failure_of(smaller)
            if found is not None and found.invariant == failed.invariant:
                plan = smaller
                break
        else:
            return plan


def _played(plan: OuterPlan) -> tuple[OuterWorld, Failed | None]:
    world = OuterWorld(plan)
    try:
        world.run()
    except ViolationError as violation:
        return world, Failed(violation.invariant, violation.what)
    except Exception as error:
        return world, Failed(type(error).__name__, str(error))
    return world, None
