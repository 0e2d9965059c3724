"""I6. Whoever opened with recovery, and the writer that closed, report one end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metadata.model import LedgerMetadata
from tests.simulation.invariants.checker import Checker

if TYPE_CHECKING:
    from tests.simulation.inner.world import World


class I6(Checker):
    name = "I6"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._ends: dict[tuple[int | None, int | None], str] = {}

    def on_opened(self, handle: str, metadata: LedgerMetadata) -> None:
        self._ends.setdefault((metadata.last_entry_id, metadata.length), handle)
        if len(self._ends) > 1:
            self.fail(f"different ends were reported: {self._ends}")
