"""I19. Acks count only for bookies that stand in those slots of the recorded last fragment."""

from __future__ import annotations

from metadata.model import LedgerState
from tests.simulation.invariants.checker import Checker


class I19(Checker):
    name = "I19"

    def on_acked(self, first: int, last: int) -> None:
        writer = self.world.writer.core
        metadata = self.world.store.metadata
        if metadata.state is LedgerState.OPEN and writer._change is None:
            recorded = metadata.last_fragment.ensemble
            if writer.ensemble != recorded:
                self.fail(f"confirmed by {writer.ensemble}, the record says {recorded}")
