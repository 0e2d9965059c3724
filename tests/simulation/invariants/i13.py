"""I13. Repair names a bookie only after everything its slot must hold is durable there.

And under the ledger's lock: whoever else may hold it may be deleting just these copies.
"""

from __future__ import annotations

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker


class I13(Checker):
    name = "I13"

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        if by == "W" or before.state is not after.state:
            return  # the writer's change, or the end of a recovery
        if before.fragments != after.fragments and not self.world.store.holds_lock(by):
            self.fail(f"{by} repairs the ledger, and its lock is not {by}'s")
        for at, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
            for slot in range(after.ensemble_size):
                if old.ensemble[slot] == new.ensemble[slot]:
                    continue
                last = (
                    after.fragments[at + 1].first_entry_id - 1
                    if at + 1 < len(after.fragments)
                    else after.last_entry_id
                )
                assert last is not None
                held = self.distribution.entries_of(slot=slot, first=new.first_entry_id, last=last)
                bookie = self.world.bookies[new.ensemble[slot]]
                missing = [entry_id for entry_id in held if not bookie.holds(entry_id)]
                # A disk that rots between the copy and the record is not the repair's fault.
                if missing and not bookie.has_lost:
                    self.fail(f"repair named {bookie.name}, which lacks {missing}")
