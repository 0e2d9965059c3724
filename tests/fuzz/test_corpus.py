"""What fuzzing found worth keeping, the seeds, and changes of both: nothing but errors of ours."""

from __future__ import annotations

import pytest

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.target import Target, mutations


@pytest.fixture(params=list(TARGETS.values()), ids=list(TARGETS))
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


def test_kept_inputs_are_understood_or_refused(target: Target) -> None:
    for data in target.kept():
        target.feed(data)


def test_changed_inputs_are_understood_or_refused(target: Target) -> None:
    seeds = [*target.seeds(), *target.kept()]
    assert seeds
    for data in seeds:
        target.feed(data)
    for data in mutations(seeds, target.changes, target.name):
        target.feed(data)
