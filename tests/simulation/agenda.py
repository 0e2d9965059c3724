"""What happens next: a virtual clock and the acts that wait for it.

Acts at the same moment happen in the order in which they were put down, so that one seed gives one
history. There is no other source of order.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Agenda:
    def __init__(self) -> None:
        self.now = 0.0
        self.acts = 0  # done so far
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._put = 0

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self._put += 1
        heappush(self._heap, (self.now + seconds, self._put, act))

    def step(self, until: float) -> bool:
        """Let the next act happen, if it is due by `until`; whether there was one."""
        if not self._heap or self._heap[0][0] > until:
            return False
        self.now, _, act = heappop(self._heap)
        act()
        self.acts += 1
        return True

    def run(self, until: float, acts_max: int = 200_000) -> None:
        """Let everything due by `until` happen, and what it brings about."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, act = heappop(heap)
            act()
            self.acts += 1
            if self.acts > acts_max:
                raise AssertionError(f"{acts_max} acts and no end: something goes round in circles")
        self.now = max(self.now, until)
