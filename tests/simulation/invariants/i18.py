"""I18. The LAC stands still from the start of an ensemble change to the end of its resending."""

from __future__ import annotations

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker


class I18(Checker):
    name = "I18"

    frozen: int | None = None

    def on_change_started(self, lac: int) -> None:
        self.frozen = lac

    def on_change_ended(self, lac: int) -> None:
        self.frozen = None

    def on_writer_failed(self) -> None:
        self.frozen = None

    def on_acked(self, first: int, last: int) -> None:
        # What the end of the change itself confirms comes after the sweep, in the same breath.
        if self.frozen is not None and self.world.writer.core._change is not None:
            self.fail(f"entries {first}..{last} are confirmed in the midst of an ensemble change")

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        if by == "W" and not after.is_closed and before.fragments != after.fragments:
            start = after.last_fragment.first_entry_id
            if start != self.world.writer.core.lac + 1:
                self.fail(f"a fragment starts at {start}, the LAC is {self.world.writer.core.lac}")
