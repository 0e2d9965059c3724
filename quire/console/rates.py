"""From counters that only grow to rates, and the sums over a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from quire.console.metrics_text import Scrape

_COUNTERS: Final = ("adds", "reads", "added_bytes", "read_bytes")
#: A look this old says nothing about the rate of now.
_PAUSE_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Per second. None: nobody knows yet."""

    adds: float | None = None
    reads: float | None = None
    added_bytes: float | None = None
    read_bytes: float | None = None


@dataclass(slots=True)
class RateMeter:
    """The rates of one bookie, from one look to the next."""

    _before: Scrape | None = field(default=None)
    _time: float = 0.0

    def on_look(self, scrape: Scrape, now: float) -> Rates:
        before, seconds = self._before, now - self._time
        self._before, self._time = scrape, now
        if before is None or not 0 < seconds <= _PAUSE_SECONDS_MAX:
            return Rates()
        return Rates(
            **{
                name: _rate(getattr(before, name), getattr(scrape, name), seconds)
                for name in _COUNTERS
            }
        )


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    # A counter that went down belongs to a process that began anew.
    if before is None or after is None or after < before:
        return None
    return (after - before) / seconds


def total(rates: Iterable[Rates]) -> Rates:
    """The sum of what is known; None where nothing is."""
    found = list(rates)
    sums: dict[str, float | None] = {}
    for name in _COUNTERS:
        known = [value for rate in found if (value := getattr(rate, name)) is not None]
        sums[name] = sum(known) if known else None
    return Rates(**sums)
