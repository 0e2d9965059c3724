"""I4. The end of a closed ledger is at or above every id that was ever confirmed."""

from __future__ import annotations

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker


class I4(Checker):
    name = "I4"

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        self._check()

    def on_acked(self, first: int, last: int) -> None:
        self._check()

    def on_forced(self, through: int) -> None:
        self._check()

    def _check(self) -> None:
        end = self.world.store.metadata.last_entry_id
        writer = self.world.writer
        promised = writer.forced if self.world.plan.deferred_sync else writer.confirmed
        if end is not None and end < promised:
            self.fail(f"entry {promised} was confirmed, the ledger is closed at {end}")
