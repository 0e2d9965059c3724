"""What goes wrong in a run of the outer ring, when, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from runtime.memory_inodes import Keep
from tests.simulation.outer.bookie import BookieProcess
from tests.simulation.outer.clients import ClientProcess, RecoveringProcess, WriterProcess
from tests.simulation.outer.clocks import CLIENTS, STORE
from tests.simulation.outer.drive import JOURNAL, LEDGERS, PARTS
from tests.simulation.outer.recovery import RecoveryProcess

if TYPE_CHECKING:
    from tests.simulation.outer.world import OuterWorld


class Faults:
    def __init__(self, world: OuterWorld) -> None:
        self._world = world
        self._chance = world.chance
        self._crashes_at_fence = world.plan.crashes_at_fence

    def schedule(self) -> None:
        plan = self._world.plan
        # No more disks may be lost than the ledger promises to survive.
        wipes = min(plan.wipes, plan.losses_allowed)
        losses = min(plan.losses, plan.losses_allowed - wipes, plan.spares)
        rot = min(plan.rot, plan.losses_allowed - wipes - losses)
        for count, act in (
            (plan.crashes, self.crash),
            (plan.cuts, self._cut),
            (plan.partitions, self._partition),
            (plan.sleeps, self._sleep),
            (plan.slow_disks, self._slow_disk),
            (plan.stalls, self.stall),
            (plan.full_disks, self._fill_disk),
            (plan.disk_errors, self._fail_disk),
            (plan.deaths, self._kill_client),
            (plan.store_away, self._take_store_away),
            (plan.expiries, self._expire),
            (rot, self._rot),
            (wipes, self._wipe),
            (losses if plan.autorecovery else 0, self._destroy),
            (plan.worker_deaths, self._kill_worker),
            (plan.clock_jumps, self._jump),
        ):
            for _ in range(count):
                self._world.later(self.moment(), act)

    def moment(self) -> float:
        """Somewhere in the thick of it, or a while later."""
        return self._world.plan.tempo * self._chance.choice((1.0, 1.0, 4.0)) * self._chance.random()

    def _while(self) -> float:
        return self._world.plan.tempo * self._chance.choice((0.2, 1.0, 8.0)) * self._chance.random()

    def on_fence_answered(self, bookie: BookieProcess) -> None:
        """The worst moment to lose power: somebody counts on what the bookie has just said."""
        world = self._world
        if world.has_faults and self._crashes_at_fence and self._chance.random() < 0.5:
            self._crashes_at_fence -= 1
            world.later(0.0, lambda: self.crash(bookie))

    def on_locked(self, name: str) -> None:
        """Somebody is about to restore copies: a good moment to die, or to lose the lock."""
        world, plan = self._world, self._world.plan
        if not world.has_faults or name not in world.recoveries:
            return
        seconds = self._chance.choice((0.02, 0.3)) * self._chance.random()
        if plan.worker_deaths and self._chance.random() < 0.5:
            world.later(seconds, lambda: self._kill_worker(name))
        elif plan.expiries and self._chance.random() < 0.5:
            world.later(seconds, lambda: self._expire(name))

    # ------------------------------------------------------------------ processes

    def _some_bookie(self) -> BookieProcess:
        return self._world.bookies[self._chance.choice(list(self._world.bookies))]

    def _some_holder(self) -> BookieProcess:
        """Mostly one that the ledger is on: the loss of others harms nobody."""
        ensemble = self._world.store.metadata.last_fragment.ensemble
        if self._chance.random() < 0.2:
            return self._some_bookie()
        return self._world.bookies[self._chance.choice(ensemble)]

    def _some_client(self) -> ClientProcess | RecoveryProcess:
        world = self._world
        name = self._chance.choice([*world.clients, *world.recoveries])
        return world.clients.get(name) or world.recoveries[name]

    def crash(self, bookie: BookieProcess | None = None) -> None:
        plan = self._world.plan
        bookie = bookie or self._some_bookie()
        keep = self._chance.choice((Keep.SOME, Keep.NONE)) if plan.power else Keep.ALL
        bookie.crash(keep, silent=plan.silent and plan.power)
        self._world.later(0.05 + self._while(), bookie.restart)

    def _kill_client(self) -> None:
        client = self._some_client()
        if isinstance(client, WriterProcess | RecoveringProcess):
            client.die()

    def _kill_worker(self, name: str | None = None) -> None:
        world = self._world
        if world.recoveries:
            process = world.recoveries[name or self._chance.choice(list(world.recoveries))]
            process.die()
            world.later(0.05 + self._while(), process.revive)

    def _destroy(self) -> None:
        bookie = self._some_holder()
        if not bookie.has_lost:
            bookie.destroy()

    # ------------------------------------------------------------------ network

    def _cut(self) -> None:
        bookie, client = self._some_bookie(), self._some_client()
        self._world.tell(f"the connections of {client.name} and {bookie.name} break")
        self._world.network.cut(client.name, bookie.host)

    def _partition(self) -> None:
        bookie, client = self._some_bookie(), self._some_client()
        network = self._world.network
        self._world.tell(f"nothing gets through between {client.name} and {bookie.name}")
        network.partition(client.name, bookie.host)
        self._world.later(self._while(), lambda: network.heal(client.name, bookie.host))

    def _sleep(self) -> None:
        self._world.tell("nothing gets through between W and any bookie")
        for bookie in self._world.bookies.values():
            self._world.network.partition("W", bookie.host)
        self._world.later(self._while(), self._wake)

    def _wake(self) -> None:
        for bookie in self._world.bookies.values():
            self._world.network.heal("W", bookie.host)

    # ------------------------------------------------------------------ disks

    def _slow_disk(self) -> None:
        bookie = self._some_bookie()
        bookie.drive.slowness = self._chance.choice((10.0, 100.0))
        self._world.tell(f"the disk of {bookie.name} is slow")

    def stall(self) -> None:
        bookie = self._some_bookie()
        bookie.drive.stalled_until = trio.current_time() + self._while()
        self._world.tell(f"the disk of {bookie.name} hangs")

    def _fill_disk(self) -> None:
        bookie = self._some_bookie()
        self._world.tell(f"the disk of {bookie.name} is full")
        bookie.drive.fill()

    def _fail_disk(self) -> None:
        bookie = self._some_bookie()
        journal = self._chance.random() < 0.5
        self._world.tell(f"the {'journal' if journal else 'ledger'} disk of {bookie.name} fails")
        bookie.drive.fail(JOURNAL if journal else LEDGERS)

    def _rot(self) -> None:
        bookie = self._some_bookie()
        if not bookie.has_lost and bookie.drive.rot():
            self._world.tell(f"a byte of {bookie.name}'s entry logs turns")
            bookie.lose()

    def _wipe(self) -> None:
        bookie = self._some_holder()
        if bookie.has_lost:
            return
        part = self._chance.choice(PARTS)
        bookie.wipe(part)
        if part != "everything":  # it refuses to start like that, until somebody wipes the rest
            self._world.later(1.0 + 3 * self._chance.random(), bookie.wipe_rest)
        self._world.later(0.05 + self._while(), bookie.restart)

    # ------------------------------------------------------------------ metadata store, clocks

    def _take_store_away(self) -> None:
        self._world.tell("the metadata store is away")
        self._world.store.memory.available = False
        self._world.later(self._while(), self._bring_store_back)

    def _bring_store_back(self) -> None:
        self._world.store.memory.available = True

    def _expire(self, name: str | None = None) -> None:
        name = name or self._chance.choice(list(self._world.store.connections))
        self._world.tell(f"the session of {name} ends")
        self._world.store.expire_one(name)

    def _jump(self) -> None:
        world = self._world
        name = self._chance.choice([*world.bookies, *world.recoveries, CLIENTS, STORE])
        jumped = world.clocks.jump(name, self._chance)
        world.tell(f"the clock of {name} jumps by {jumped} ms")
