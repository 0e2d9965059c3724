"""I8. All reads of an entry return the payload that the writer submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.checker import Checker

if TYPE_CHECKING:
    from tests.simulation.inner.world import World


class I8(Checker):
    name = "I8"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._submitted: dict[int, str] = {}

    def on_submitted(self, entry_id: int, payload: str) -> None:
        self._submitted[entry_id] = payload

    def on_read(self, handle: str, entry_id: int, payload: str) -> None:
        if self._submitted.get(entry_id) != payload:
            self.fail(
                f"{handle} read {payload!r} as entry {entry_id}, "
                f"{self._submitted.get(entry_id)!r} was written"
            )
