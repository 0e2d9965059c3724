"""When the periodic checks are due, and which ledgers' recovery somebody should finish.

The time of the last check is kept in the metadata store by the wall clock of whoever made it. All
else is monotonic: a clock that jumps shifts a check, it decides nothing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Final

from wire.types import LedgerId

#: Ledgers in recovery that are remembered between two scans. More are found again by the next.
REMEMBERED_MAX: Final = 10_000
_RETRY_SECONDS: Final = 60.0
_RETRY_SECONDS_MAX: Final = 6 * 3600.0


def seconds_until(interval_seconds: float, last_ms: int | None, now_ms: int) -> float | None:
    """How long until a check is due that completed at `last_ms`; None if it is switched off.

    A check from the future, by our clock, counts as just made, since clocks differ. One from beyond
    the next check was made by a clock that had jumped, and counts as never made: it would count as
    just made again and again until we have caught up with that clock, in years perhaps.
    """
    if interval_seconds <= 0:
        return None
    if last_ms is None or last_ms - now_ms > interval_seconds * 1000:
        return 0.0
    age = max(0.0, (now_ms - last_ms) / 1000)
    return max(0.0, interval_seconds - age)


@dataclass(slots=True)
class _Stale:
    due: float
    failures: int = 0


@dataclass(slots=True)
class StaleRecoveries:
    """Ledgers seen in recovery, each with the time when its recoverer counts as dead.

    Finishing is safe at any time, because such a ledger is fenced already; waiting only avoids
    that two clients do the same work.
    """

    patience_seconds: float
    _found: dict[LedgerId, _Stale] = field(default_factory=dict)
    _heap: list[tuple[float, LedgerId]] = field(default_factory=list)

    def on_seen(self, ledger_id: LedgerId, age_seconds: float, now: float) -> None:
        """It is in recovery, and its record was changed so long ago."""
        if ledger_id in self._found or len(self._found) >= REMEMBERED_MAX:
            return
        self._put(ledger_id, _Stale(now + max(0.0, self.patience_seconds - age_seconds)))

    def on_failed(self, ledger_id: LedgerId, now: float) -> None:
        """It could not be finished; its bookies may be away. Later, and later each time."""
        stale = self._found.get(ledger_id)
        if stale is not None:
            stale.failures += 1
            pause = _RETRY_SECONDS * 2 ** min(stale.failures - 1, 20)
            stale.due = now + min(_RETRY_SECONDS_MAX, pause)
            heapq.heappush(self._heap, (stale.due, ledger_id))

    def on_settled(self, ledger_id: LedgerId) -> None:
        """Closed, by whomever, or gone."""
        self._found.pop(ledger_id, None)

    def take_due(self, now: float) -> LedgerId | None:
        """One whose time has come. Say `on_settled` or `on_failed` of it afterwards."""
        self._drop_outdated()
        if not self._heap or self._heap[0][0] > now:
            return None
        return heapq.heappop(self._heap)[1]

    def next_due(self) -> float | None:
        self._drop_outdated()
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._found)

    def _put(self, ledger_id: LedgerId, stale: _Stale) -> None:
        self._found[ledger_id] = stale
        heapq.heappush(self._heap, (stale.due, ledger_id))

    def _drop_outdated(self) -> None:
        while self._heap:
            due, ledger_id = self._heap[0]
            stale = self._found.get(ledger_id)
            if stale is not None and stale.due == due:
                return
            heapq.heappop(self._heap)
