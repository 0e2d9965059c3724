"""I11. Fragments start at 0, in strictly rising order, not beyond the end, each on E bookies."""

from __future__ import annotations

from itertools import pairwise

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker


class I11(Checker):
    name = "I11"

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        starts = [fragment.first_entry_id for fragment in after.fragments]
        if starts[0] != 0 or any(low >= high for low, high in pairwise(starts)):
            self.fail(f"{by} recorded fragments that start at {starts}")
        if after.last_entry_id is not None and starts[-1] > after.last_entry_id + 1:
            self.fail(f"{by} closed at {after.last_entry_id}, a fragment starts at {starts[-1]}")
        for fragment in after.fragments:
            if len(set(fragment.ensemble)) != after.ensemble_size:
                self.fail(f"{by} recorded the ensemble {fragment.ensemble}")
