"""I23. A bookie that lost data answers "unknown", never "I did not have it"."""

from __future__ import annotations

from tests.simulation.invariants.checker import Checker
from wire.types import BookieId


class I23(Checker):
    name = "I23"

    def on_denied(self, bookie: str, entry_id: int | None) -> None:
        ledger = self.world.bookies[BookieId(bookie)]
        if ledger.disk.is_limbo:
            self.fail(f"{bookie} lost its disk and denies entry {entry_id}")
