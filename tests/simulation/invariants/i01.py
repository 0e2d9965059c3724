"""I1. A confirmed entry stays readable while fewer than an ack quorum of its replicas are lost."""

from __future__ import annotations

from tests.simulation.invariants.checker import Checker


class I1(Checker):
    name = "I1"

    def on_ended(self) -> None:
        world = self.world
        metadata = world.store.metadata
        promised = world.writer.forced if world.plan.deferred_sync else world.writer.confirmed
        for entry_id in range(promised + 1):
            ensemble = metadata.fragment_of(entry_id).ensemble
            holders = [ensemble[slot] for slot in self.write_set(entry_id)]
            lost = sum(world.bookies[name].has_lost for name in holders)
            if lost < metadata.ack_quorum and not any(
                world.bookies[name].holds(entry_id) for name in holders
            ):
                self.fail(f"entry {entry_id} was confirmed and is on none of {holders}")
