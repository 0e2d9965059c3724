"""I14. After an answer to a fence, good or bad, a bookie admits no ordinary add, for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.checker import Checker
from wire.types import BookieId

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
        if bookie in self._answered and not recovery and not self._is_over_for(bookie):
            self.fail(f"{bookie} admitted entry {entry_id} after it had answered a fence")

    def _is_over_for(self, bookie: str) -> bool:
        """It lost its disk when the ledger had an end, and not there: nobody reads it there."""
        metadata = self.world.store.metadata
        return (
            self.world.bookies[BookieId(bookie)].has_lost
            and metadata.is_closed
            and not metadata.mentions(BookieId(bookie))
        )
