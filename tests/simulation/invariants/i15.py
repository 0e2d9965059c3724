"""I15. A bookie denies an entry only if it never acknowledged it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.checker import Checker

if TYPE_CHECKING:
    from tests.simulation.inner.world import World


class I15(Checker):
    name = "I15"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._acknowledged: dict[str, set[int]] = {}

    def on_acknowledged(self, bookie: str, entry_ids: tuple[int, ...]) -> None:
        self._acknowledged.setdefault(bookie, set()).update(entry_ids)

    def on_dropped(self, bookie: str) -> None:
        self._acknowledged.pop(bookie, None)

    def on_healed(self, bookie: str) -> None:
        """What it must have it was given again; of what it lost besides nobody will ask."""
        metadata = self.world.store.metadata
        end = metadata.last_entry_id
        for entry_id in list(self._acknowledged.get(bookie, ())):
            ensemble = metadata.fragment_of(entry_id).ensemble
            wanted = bookie in [ensemble[slot] for slot in self.write_set(entry_id)]
            if not wanted or (end is not None and entry_id > end):
                self._acknowledged[bookie].discard(entry_id)

    def on_denied(self, bookie: str, entry_id: int | None) -> None:
        mine = self._acknowledged.get(bookie, set())
        if entry_id in mine or (entry_id is None and mine):
            self.fail(f"{bookie} denies entry {entry_id}, which it acknowledged")
