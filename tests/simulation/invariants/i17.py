"""I17. A LAC seen through one handle never falls, and no bookie stores one above the writer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.checker import Checker

if TYPE_CHECKING:
    from tests.simulation.inner.world import World


class I17(Checker):
    name = "I17"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seen: dict[str, int] = {}

    def on_lac_shown(self, handle: str, lac: int) -> None:
        if not self.world.store.metadata.is_closed and lac < self._seen.get(handle, -1):
            self.fail(f"{handle} was shown LAC {lac} after {self._seen[handle]}")
        self._seen[handle] = lac

    def on_lac_stored(self, bookie: str, lac: int) -> None:
        if lac > self.world.writer.core.lac and not self.world.has_advancing:
            self.fail(f"{bookie} stores LAC {lac}, the writer's is {self.world.writer.core.lac}")
