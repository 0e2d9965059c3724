"""I14. After an answer to a fence, good or bad, a bookie admits no ordinary add, for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.checker import Checker

if TYPE_CHECKING:
    from tests.simulation.inner.world import World


class I14(Checker):
    name = "I14"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._answered: set[str] = set()

    def on_fence_answered(self, bookie: str) -> None:
        self._answered.add(bookie)

    def on_admitted(self, bookie: str, entry_id: int, recovery: bool) -> None:
        if bookie in self._answered and not recovery:
            self.fail(f"{bookie} admitted entry {entry_id} after it had answered a fence")
