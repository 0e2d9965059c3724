"""I7. No LAC that a reader saw, and no confirmed read, lies beyond the final end."""

from __future__ import annotations

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker


class I7(Checker):
    name = "I7"

    highest = -1
    who = "nobody"

    def on_lac_shown(self, handle: str, lac: int) -> None:
        if lac > self.highest:
            self.highest, self.who = lac, handle
        self._check()

    def on_read(self, handle: str, entry_id: int, payload: str) -> None:
        if entry_id > self.highest:
            self.highest, self.who = entry_id, handle
        self._check()

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        self._check()

    def _check(self) -> None:
        end = self.world.store.metadata.last_entry_id
        if end is not None and self.highest > end:
            self.fail(f"{self.who} saw entry {self.highest} confirmed, the ledger ends at {end}")
