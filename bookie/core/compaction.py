"""Which entry logs to rewrite, and how fast. Emptiest first, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogUse:
    """One sealed log: how much of it still lives."""

    log_id: int
    bytes: int
    live_bytes: int

    @property
    def share(self) -> float:
        return self.live_bytes / self.bytes if self.bytes else 0.0


def choose(logs: Iterable[LogUse], *, threshold: float) -> list[LogUse]:
    """Logs whose living share is below the threshold, the emptiest first.

    An empty log needs no rewriting: it is only removed, which costs nothing, so it comes first.
    """
    return sorted(
        (log for log in logs if log.share < threshold), key=lambda log: (log.share, log.log_id)
    )


class Budget:
    """A token bucket of bytes, charged for what is read and for what is written.

    Time comes in as a number, the answer is how long to wait. Debt is allowed, so that one large
    run passes; it is paid off before the next.
    """

    def __init__(self, *, bytes_per_second: float, now: float, burst_seconds: float = 0.25) -> None:
        self.bytes_per_second = bytes_per_second
        self._burst = bytes_per_second * burst_seconds
        self._level = self._burst
        self._at = now

    def charge(self, count: int, now: float) -> float:
        """Take `count` bytes; the seconds to wait before going on."""
        if self.bytes_per_second <= 0:
            return 0.0  # no limit
        earned = max(0.0, now - self._at) * self.bytes_per_second
        self._at = max(self._at, now)
        self._level = min(self._burst, self._level + earned) - count
        return -self._level / self.bytes_per_second if self._level < 0 else 0.0
