"""Loop lag, with a clock that rings as late as the test says."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from runtime.loop_lag import LoopLag
from runtime.metrics import Distribution


class LateClock:
    """Each sleep ends late by the next of `overshoots_ms`; after the last one it never ends."""

    def __init__(self, *overshoots_ms: float) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []
        self._overshoots_ms = list(overshoots_ms)

    def time(self) -> float:
        return self.now

    async def sleep_until(self, due: float) -> None:
        self.sleeps.append(due - self.now)
        if not self._overshoots_ms:
            await trio.sleep_forever()
        self.now = due + self._overshoots_ms.pop(0) / 1000


async def measured(clock: LateClock, distribution: Distribution | None = None) -> LoopLag:
    lag = LoopLag(
        distribution, interval_seconds=0.5, clock=clock.time, sleep_until=clock.sleep_until
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return lag


async def test_loop_lag_is_how_late_the_timer_rings() -> None:
    clock = LateClock(1, 1, 1, 40)
    lag = await measured(clock)
    statistics = lag.statistics()
    assert statistics.measurements == 4
    assert statistics.p50_ms == pytest.approx(1, rel=0.05)
    assert statistics.p99_ms == statistics.worst_ms == pytest.approx(40)
    assert clock.sleeps == pytest.approx([0.5] * 5)


async def test_loop_lag_worst_is_taken_once() -> None:
    lag = await measured(LateClock(3, 9, 2))
    assert lag.take_worst_ms() == pytest.approx(9)
    assert lag.take_worst_ms() == 0
    assert lag.statistics().worst_ms == pytest.approx(9)


async def test_loop_lag_is_never_negative() -> None:
    lag = await measured(LateClock(-5))
    assert lag.take_worst_ms() == 0


async def test_loop_lag_feeds_the_distribution_it_is_given() -> None:
    distribution = Distribution()
    await measured(LateClock(7), distribution)
    assert distribution.snapshot().count == 1


def test_loop_lag_is_unknown_before_the_first_measurement() -> None:
    assert math.isnan(LoopLag().statistics().worst_ms)


async def test_loop_lag_sees_a_loop_that_was_blocked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With trio's own clock: jumping it by two seconds is what a blocked loop looks like."""
    lag = LoopLag(interval_seconds=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.run)
        await trio.testing.wait_all_tasks_blocked(0)
        autojump_clock.autojump_threshold = math.inf
        autojump_clock.jump(3)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert lag.take_worst_ms() == pytest.approx(2000)
