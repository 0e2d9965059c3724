"""Trio without wall time and without chance of its own.

The clock stands still while anything can run, and jumps to the next deadline when nothing can. The
order of tasks that can run at one moment is drawn from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio
import trio._core._run as scheduler

T = TypeVar("T")

IDLE_MAX: Final = 100_000


class VirtualClock(trio.abc.Clock):
    def __init__(self) -> None:
        self.now = 0.0
        self._idle = 0  # times in a row that nothing was left to wait for

    def start_clock(self) -> None:
        """It does not run; it jumps."""

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Trio asks when no task can run: whatever comes next comes now."""
        if deadline == math.inf:  # trio, about to end, wakes itself up by a descriptor
            self._idle += 1
            assert self._idle < IDLE_MAX, "nothing is left that could happen"
            return 0.0
        self._idle = 0
        self.now = max(self.now, deadline)
        return 0.0


@contextmanager
def _drawn_order(seed: str) -> Iterator[None]:
    """Have trio sort what it is about to shuffle, and shuffle by the seed."""
    core: Any = scheduler
    before = core._ALLOW_DETERMINISTIC_SCHEDULING
    state = core._r.getstate()
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    core._r.seed(seed)
    try:
        yield
    finally:
        core._ALLOW_DETERMINISTIC_SCHEDULING = before
        core._r.setstate(state)


def run_virtually(seed: str, main: Callable[[], Awaitable[T]]) -> T:
    with _drawn_order(seed):
        return trio.run(main, clock=VirtualClock(), strict_exception_groups=True)
