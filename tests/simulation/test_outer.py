"""The outer ring: a fixed set of seeds, a few fresh ones, and the proof that a seed fixes all."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tests.simulation.outer.plan import OuterPlan
from tests.simulation.outer.runs import failure_of, story_of
from tests.simulation.runs import smallest

FIXED = 24
FRESH = 8


def check(seed: int) -> None:
    plan = OuterPlan.of(seed)
    failed = failure_of(plan)
    if failed is not None:
        story = "\n".join(story_of(smallest(plan, failed, failure_of)))
        pytest.fail(
            f"seed {seed} violates {failed.invariant}: {failed.what}\n{story}\n"
            f"replay it with: make simulate RING=outer SEED={seed}"
        )


@pytest.mark.parametrize("part", range(4))
def test_a_fixed_set_of_seeds_violates_no_invariant(part: int) -> None:
    for seed in range(part, FIXED, 4):
        check(seed)


def test_fresh_seeds_violate_no_invariant() -> None:
    """Other ones each time; a failure names its seed. QUIRE_OUTER_SEED runs that one again."""
    chosen = os.environ.get("QUIRE_OUTER_SEED")
    if chosen is not None:
        check(int(chosen))
        return
    for _ in range(FRESH):
        check(random.SystemRandom().getrandbits(40))


@pytest.mark.parametrize("seed", [31, 150, 1522, 1550, 2565])
def test_seeds_that_once_found_something_find_nothing_any_more(seed: int) -> None:
    """A copy that its bookie's disk could not read, and that workers tried in vain for ever."""
    check(seed)


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    """Whatever the order in which a process keeps its sets, and wherever its objects lie."""
    seeds = [3, 15, 31, 40]
    here = ["\n".join(story_of(OuterPlan.of(seed))) for seed in seeds]
    program = (
        "import sys\n"
        "from tests.simulation.outer.plan import OuterPlan\n"
        "from tests.simulation.outer.runs import story_of\n"
        "for seed in sys.argv[1:]:\n"
        "    sys.stdout.write('\\n'.join(story_of(OuterPlan.of(int(seed)))) + '\\0')\n"
    )
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", program, *map(str, seeds)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert told.split("\0")[:-1] == here


def test_other_seeds_tell_other_stories() -> None:
    assert len({"\n".join(story_of(OuterPlan.of(seed))) for seed in range(6)}) == 6
