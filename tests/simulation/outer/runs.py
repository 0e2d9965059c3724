"""One run of the outer ring from one seed, and its failure."""

from __future__ import annotations

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


def _played(plan: OuterPlan) -> tuple[OuterWorld, Failed | None]:
    world = OuterWorld(plan)
    try:
        world.run()
    except Exception as error:
        return world, Failed.by(error)
    return world, None
