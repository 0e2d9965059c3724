"""I10. The length of a closed ledger is the sum of its payload sizes."""

from __future__ import annotations

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker


class I10(Checker):
    name = "I10"

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        if before.is_closed or not after.is_closed or self.world.plan.given_ids:
            return
        assert after.last_entry_id is not None
        wanted = sum(self.world.size_of(entry_id) for entry_id in range(after.last_entry_id + 1))
        if after.length != wanted:
            self.fail(
                f"{by} closes at {after.last_entry_id} with length {after.length}, not {wanted}"
            )
