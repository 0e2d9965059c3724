"""I21. A mark is deleted only if no fragment lacks what this version of the mark is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.simulation.invariants.checker import Checker
from wire.types import BookieId

if TYPE_CHECKING:
    from tests.simulation.outer.world import OuterWorld


class I21(Checker):
    name = "I21"

    def on_mark_deleted(self, by: str, replicas: tuple[BookieId, ...], written: float) -> None:
        store = cast("OuterWorld", self.world).store
        for bookie_id in replicas:
            was_lost = store.registrations.absent_since(bookie_id) <= written
            if was_lost and store.metadata.mentions(bookie_id):
                self.fail(f"{by} deletes the mark of {bookie_id}, which the record still names")
