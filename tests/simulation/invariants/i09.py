"""I9. When a ledger is closed, each of its entries has an ack quorum of copies on record."""

from __future__ import annotations

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker


class I9(Checker):
    name = "I9"

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        if before.is_closed or not after.is_closed:
            return
        world = self.world
        if any(bookie.has_lost for bookie in world.bookies.values()):
            return
        assert after.last_entry_id is not None
        for entry_id in range(after.last_entry_id + 1):
            ensemble = after.fragment_of(entry_id).ensemble
            holders = [
                name
                for name in (ensemble[slot] for slot in self.write_set(entry_id))
                if world.bookies[name].holds(entry_id)
            ]
            if len(holders) < after.ack_quorum:
                self.fail(f"{by} closes; of entry {entry_id} on {ensemble} only {holders} have it")
