"""I16. What a recovery found missing stays missing: nothing beyond its end is confirmed later."""

from __future__ import annotations

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker


class I16(Checker):
    name = "I16"

    end: int | None = None

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        if after.is_closed:
            self.end = after.last_entry_id

    def on_acked(self, first: int, last: int) -> None:
        if self.end is not None and last > self.end and not self.world.plan.deferred_sync:
            self.fail(f"entry {last} is confirmed, recovery had closed the ledger at {self.end}")
