"""I2. When an add is confirmed, an ack quorum in the recorded ensemble durably holds it."""

from __future__ import annotations

from tests.simulation.invariants.checker import Checker


class I2(Checker):
    name = "I2"

    forced = -1

    def on_forced(self, through: int) -> None:
        """A force makes durable what was confirmed from memory."""
        world = self.world
        metadata = world.store.metadata
        for entry_id in range(self.forced + 1, through + 1):
            ensemble = metadata.fragment_of(entry_id).ensemble
            names = [ensemble[slot] for slot in self.write_set(entry_id)]
            holders = [
                name
                for name in names
                if world.bookies[name].has_lost or world.bookies[name].holds(entry_id)
            ]
            if len(holders) < metadata.ack_quorum:
                self.fail(f"entry {entry_id} is forced, but of {ensemble} only {holders} hold it")
        self.forced = max(self.forced, through)

    def on_acked(self, first: int, last: int) -> None:
        world = self.world
        metadata = world.store.metadata
        for entry_id in range(first, last + 1):
            ensemble = metadata.fragment_of(entry_id).ensemble
            # Under deferred sync an add is confirmed from memory, as the caller asked; what it lost
            # of that since is the caller's risk until a force.
            holders = [
                slot
                for slot in self.write_set(entry_id)
                if world.bookies[ensemble[slot]].has_lost
                or world.plan.deferred_sync
                or world.bookies[ensemble[slot]].holds(entry_id)
            ]
            if len(holders) < metadata.ack_quorum:
                self.fail(
                    f"entry {entry_id} is confirmed, but of {ensemble} only slots {holders} hold it"
                )
