"""Shared by all tests: async tests run on trio, no plugin needed."""

from __future__ import annotations

import inspect
import random
from functools import partial
from typing import Any

import hypothesis
import kazoo.protocol.connection
import kazoo.retry
import pytest
import trio
import trio.testing

# The same examples every time (a red run can be repeated), and no deadline on a busy machine.
hypothesis.settings.register_profile("quire", deadline=None, derandomize=True)
hypothesis.settings.load_profile("quire")

# A client of ZooKeeper that a fixture keeps draws from its threads, for every ping. From the
# generator that all share this is a draw in the middle of somebody's example, which fails.
kazoo.protocol.connection.random = kazoo.retry.random = random.Random()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests on trio. A fixture named `autojump_clock` gives them a test clock."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {
        name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames
    }
    clock = arguments.get("autojump_clock")
    trio.run(partial(pyfuncitem.obj, **arguments), clock=clock)
    return True


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Time that jumps forward whenever every task is asleep."""
    return trio.testing.MockClock(autojump_threshold=0)
