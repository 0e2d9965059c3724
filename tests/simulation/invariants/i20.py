"""I20. A bookie deletes a ledger only if it is closed, and on none of its bookies any more."""

from __future__ import annotations

from tests.simulation.invariants.checker import Checker
from wire.types import BookieId


class I20(Checker):
    name = "I20"

    def on_dropped(self, bookie: str) -> None:
        metadata = self.world.store.metadata
        if not metadata.is_closed:
            self.fail(f"{bookie} deletes a ledger that is {metadata.state.name}")
        if metadata.mentions(BookieId(bookie)):
            self.fail(f"{bookie} deletes a ledger that it is a bookie of")
