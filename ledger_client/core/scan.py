"""Decisions of a long scan: which replica for which run, how fast, and what to do on a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ledger_client.core.replicas import Sticky

#: Requests to one bookie before the next one is chosen: some 16 MiB, which it reads in sequence.
RUN_REQUESTS: Final = 16


class RunSticky(Sticky):
    """Stays with one bookie for a run of requests, then moves on.

    A reader that never moved would leave the load of a large ledger on one of its bookies; one
    that moved at each request would spoil the read-ahead of all of them.
    """

    def __init__(self, slot: int, ensemble_size: int, *, requests: int = RUN_REQUESTS) -> None:
        super().__init__(slot, ensemble_size)
        self._requests = requests
        self._left = requests

    def order(self) -> list[int]:
        if self._left == 0:
            self._left = self._requests
            self.slot = (self.slot + 1) % self._ensemble_size
        self._left -= 1
        return super().order()


@dataclass(slots=True)
class Pace:
    """A token bucket over bytes: what was taken is paid for by waiting afterwards."""

    bytes_per_second: float
    #: How much may be taken at once after a pause.
    burst_bytes: float
    _due: float = 0.0  # when everything taken so far is paid for

    def taken(self, size: int, now: float) -> float:
        """Seconds to wait before taking more."""
        earliest = now - self.burst_bytes / self.bytes_per_second
        self._due = max(self._due, earliest) + size / self.bytes_per_second
        return max(0.0, self._due - now)
