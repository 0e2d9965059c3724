"""I16. What a recovery found missing stays missing: nothing beyond its end is confirmed later.

What makes that so is watched as well: a ledger is closed only when no ack quorum of its last
ensemble is left that would still take an ordinary add.
"""

from __future__ import annotations

from metadata.model import LedgerMetadata, LedgerState
from tests.simulation.invariants.checker import Checker


class I16(Checker):
    name = "I16"

    end: int | None = None

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        if after.is_closed:
            self.end = after.last_entry_id
        if before.state is LedgerState.IN_RECOVERY and after.is_closed:
            ensemble = before.last_fragment.ensemble
            for first in range(after.ensemble_size):
                holders = [ensemble[slot] for slot in self.write_set(first)]
                open_ones = [
                    name for name in holders if not self.world.bookies[name].disk.is_fenced
                ]
                if len(open_ones) >= after.ack_quorum:
                    self.fail(f"{by} closes, and {open_ones} would still confirm an entry")

    def on_acked(self, first: int, last: int) -> None:
        if self.end is not None and last > self.end and not self.world.plan.deferred_sync:
            self.fail(f"entry {last} is confirmed, recovery had closed the ledger at {self.end}")
