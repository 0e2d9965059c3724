"""I5. Once closed, the last entry and the length never change."""

from __future__ import annotations

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker


class I5(Checker):
    name = "I5"

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        if before.is_closed and (before.last_entry_id, before.length, True) != (
            after.last_entry_id,
            after.length,
            after.is_closed,
        ):
            self.fail(f"{by} changed the end from {before.last_entry_id} to {after.last_entry_id}")
