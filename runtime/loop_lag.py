"""How late the event loop is: a timer that should ring now, and when it does.

A loop that something blocked (a long parse, a held GIL, a slow disk call on the wrong thread)
rings late by that much. This is the first number to look at when latencies rise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from runtime.metrics import Distribution

INTERVAL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class LoopLagStatistics:
    """Milliseconds; NaN before the first measurement. Quantiles are those of the window."""

    measurements: int
    p50_ms: float
    p99_ms: float
    worst_ms: float


class LoopLag:
    """Measures in `run`, a task. `clock` and `sleep_until` can be replaced."""

    def __init__(
        self,
        distribution: Distribution | None = None,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = trio.current_time,
        sleep_until: Callable[[float], Awaitable[None]] = trio.sleep_until,
    ) -> None:
        self._distribution = Distribution() if distribution is None else distribution
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._sleep_until = sleep_until
        self._worst_ms = 0.0

    async def run(self) -> None:
        while True:
            due = self._clock() + self._interval_seconds
            await self._sleep_until(due)
            late_ms = max(0.0, (self._clock() - due) * 1000)
            self._distribution.record(late_ms)
            if late_ms > self._worst_ms:
                self._worst_ms = late_ms

    def take_worst_ms(self) -> float:
        """The worst since the last call, then begin anew."""
        worst, self._worst_ms = self._worst_ms, 0.0
        return worst

    def statistics(self) -> LoopLagStatistics:
        snapshot = self._distribution.snapshot()
        return LoopLagStatistics(
            snapshot.count, snapshot.quantile(0.5), snapshot.quantile(0.99), snapshot.maximum
        )
