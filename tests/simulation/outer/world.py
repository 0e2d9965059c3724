"""One run of the outer ring: boot a cluster, let faults act, heal it, demand the end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, cast

import trio

from metadata.cluster import init_new_cluster
from metadata.paths import LayoutType, LedgerPaths
from metadata.uri import parse_metadata_uri
from runtime.memory_inodes import Keep
from runtime.memory_sockets import MemoryNetwork
from tests.simulation.history import History, ViolationError
from tests.simulation.invariants import checkers_for
from tests.simulation.outer.bookie import BookieProcess, leaves_of
from tests.simulation.outer.clients import (
    ClientProcess,
    CrowdProcess,
    PollingProcess,
    RecoveringProcess,
    TailProcess,
    WriterProcess,
)
from tests.simulation.outer.clock import run_virtually
from tests.simulation.outer.plan import FAULT_SECONDS, OuterPlan
from tests.simulation.outer.seams import attached
from tests.simulation.outer.store import WatchedMetadata
from wire.types import LedgerId

URI: Final = parse_metadata_uri("zk://metadata/ledgers")
#: Virtual time within which things must end once everything is healed.
HEALED_SECONDS: Final = 200.0
BOOT_SECONDS: Final = 30.0


class _LoudHistory(History):
    """Tells the world of a violation: whoever was watched at that moment may survive the error."""

    def __init__(self, on_bug: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._on_bug = on_bug

    def emit(self, event: str, *what: Any) -> None:
        try:
            super().emit(event, *what)
        except ViolationError as violation:
            self._on_bug(violation)
            raise


class OuterWorld:
    def __init__(self, plan: OuterPlan) -> None:
        self.plan = plan
        self.chance = Random(f"outer world {plan.seed}")
        self.history: History = _LoudHistory(self.on_bug)
        self._bug: BaseException | None = None
        self.story: list[str] = []
        self.has_faults = False
        self.has_advancing = False
        self.ledger_id = LedgerId(-1)
        self.clients: dict[str, ClientProcess] = {}
        self.bookies: dict[str, BookieProcess] = {}
        self.store: WatchedMetadata
        self.network: MemoryNetwork
        self.writer: WriterProcess
        self.begun: trio.Event
        self._nursery: trio.Nursery
        self._spikes = 0.0
        self._crashes_at_fence = plan.crashes_at_fence

    def tell(self, line: str) -> None:
        self.story.append(f"{trio.current_time():9.4f}  {line}")

    # ------------------------------------------------------------------ what all share

    def payload_of(self, entry_id: int) -> bytes:
        return f"{entry_id}:".encode() + b"x" * (self.plan.payload_bytes + entry_id % 7)

    def size_of(self, entry_id: int) -> int:
        return len(self.payload_of(entry_id))

    def life_of(self, name: str) -> int:
        return self.bookies[name].life if name in self.bookies else 1

    def is_dead(self, name: str) -> bool:
        if name in self.bookies:
            return not self.bookies[name].is_up
        return name in self.clients and self.clients[name].is_dead

    def bookie_with(self, files: object) -> BookieProcess:
        return next(bookie for bookie in self.bookies.values() if bookie.files is files)

    def bookie_at(self, host: str) -> BookieProcess:
        return next(bookie for bookie in self.bookies.values() if bookie.host == host)

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            act()

        self._nursery.start_soon(wait)

    def _delay(self, source: str, target: str) -> float:
        seconds = 0.0002 + 0.002 * self.chance.random()
        if self._spikes and self.chance.random() < self._spikes:
            seconds += 4 * self.plan.tempo * self.chance.random()
        return seconds

    # ------------------------------------------------------------------ the run

    def run(self) -> None:
        """Play the plan. Raises what an invariant, or the code's own assertion, has to say."""
        with attached(self):
            try:
                run_virtually(f"outer {self.plan.seed}", self._main)
            except BaseExceptionGroup as group:
                self._bug = self._bug or _first(group)
        if self._bug is not None:
            raise self._bug

    def on_bug(self, error: BaseException) -> None:
        """What no process may swallow: a violation, or an error that nobody expected."""
        if self._bug is None:
            self._bug = error
            self._nursery.cancel_scope.cancel()

    async def _main(self) -> None:
        self.network = MemoryNetwork(delay=self._delay)
        self.store = WatchedMetadata(self)
        self.begun = trio.Event()
        await init_new_cluster(self.store.memory.connect(), URI, chance=self.chance)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._boot()
            self.has_faults = True
            self._spikes = self.plan.spikes
            self.begun.set()
            self._schedule_work()
            self._schedule_faults()
            await trio.sleep(FAULT_SECONDS)
            self._heal()
            await self._finish()
            nursery.cancel_scope.cancel()

    async def _boot(self) -> None:
        plan = self.plan
        count = plan.shape[0] + plan.spares
        v2_only = self.chance.sample(range(count), round(count * plan.v2_share))
        for number in range(count):
            bookie = BookieProcess(self, number, is_v2_only=number in v2_only)
            self.bookies[bookie.name] = bookie
            self._nursery.start_soon(bookie.live)
            bookie.restart()
        await trio.sleep(1.0)
        self.writer = WriterProcess(self)
        self._nursery.start_soon(self.writer.live)
        with trio.fail_after(BOOT_SECONDS):
            await self.writer.created.wait()

    def on_created(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        paths = LedgerPaths(URI.root, LayoutType.HIERARCHICAL)
        self.store.follow(paths.path_of(ledger_id))
        self.history.watch(checkers_for(cast("Any", self)))  # of all worlds alike
        ensemble = self.store.metadata.last_fragment.ensemble
        self.tell(f"W creates the ledger on {' '.join(ensemble)}")

    async def _finish(self) -> None:
        """With the cluster whole again: writes end, somebody opens the ledger, it has one end."""
        await self._demand([self.writer], "the writer neither confirms nor fails what it was given")
        last = RecoveringProcess(self, "L", attempts=8)
        self._nursery.start_soon(last.live)
        await self._demand([last], "every bookie is back, and recovery fails")
        if not self._may_fail and not last.has_opened:
            raise ViolationError("I24", f"every bookie is back, and recovery fails: {last.why}")
        await self._demand(
            list(self.clients.values()), "a client never came to the end of the closed ledger"
        )
        self.history.emit("ended")

    async def _demand(self, clients: list[ClientProcess], what: str) -> None:
        deadline = trio.current_time() + HEALED_SECONDS
        while any(not client.is_done and not client.is_dead for client in clients):
            await trio.sleep(0.25)
            if trio.current_time() > deadline:
                if self._may_fail:
                    return
                raise ViolationError("I24", what)

    @property
    def _may_fail(self) -> bool:
        """Whether so much was lost that the protocol may refuse to decide."""
        _, write_quorum, ack_quorum = self.plan.shape
        lost = sum(bookie.has_lost for bookie in self.bookies.values())
        return lost > 0 and (lost > write_quorum - ack_quorum or lost >= ack_quorum)

    def _schedule_work(self) -> None:
        if self.plan.crowd:
            self._start_later(CrowdProcess(self, "C"))
        for number in range(self.plan.recoverers):
            self._start_later(RecoveringProcess(self, f"R{number + 1}"))
        for number in range(self.plan.readers):
            kind = PollingProcess if number % 2 else TailProcess
            self._start_later(kind(self, f"F{number + 1}"))

    def _start_later(self, client: ClientProcess) -> None:
        moment = self._moment()
        self.later(moment, lambda: self._nursery.start_soon(client.live))
        if self.plan.stalls_at_open and isinstance(client, RecoveringProcess):
            self.later(moment * self.chance.random(), self._stall)

    def on_fence_answered(self, bookie: BookieProcess) -> None:
        """The worst moment to lose power: somebody counts on what the bookie has just said."""
        if self.has_faults and self._crashes_at_fence and self.chance.random() < 0.5:
            self._crashes_at_fence -= 1
            self.later(0.0, lambda: self._crash(bookie))

    def _moment(self) -> float:
        """Somewhere in the thick of it, or a while later."""
        return self.plan.tempo * self.chance.choice((1.0, 1.0, 4.0)) * self.chance.random()

    def _while(self) -> float:
        return self.plan.tempo * self.chance.choice((0.2, 1.0, 8.0)) * self.chance.random()

    # ------------------------------------------------------------------ faults

    def _schedule_faults(self) -> None:
        plan = self.plan
        for count, act in (
            (plan.crashes, self._crash),
            (plan.cuts, self._cut),
            (plan.partitions, self._partition),
            (plan.sleeps, self._sleep),
            (plan.slow_disks, self._slow_disk),
            (plan.stalls, self._stall),
            (plan.full_disks, self._fill_disk),
            (plan.disk_errors, self._fail_disk),
            (plan.deaths, self._kill_client),
            (plan.store_away, self._take_store_away),
            (plan.expiries, self._expire),
            (min(plan.rot, plan.losses_allowed), self._rot),
        ):
            for _ in range(count):
                self.later(self._moment(), act)

    def _some_bookie(self) -> BookieProcess:
        return self.bookies[self.chance.choice(list(self.bookies))]

    def _some_client(self) -> ClientProcess:
        return self.clients[self.chance.choice(list(self.clients))]

    def _crash(self, bookie: BookieProcess | None = None) -> None:
        bookie = bookie or self._some_bookie()
        keep = self.chance.choice((Keep.SOME, Keep.NONE)) if self.plan.power else Keep.ALL
        bookie.crash(keep, silent=self.plan.silent and self.plan.power)
        self.later(0.05 + self._while(), bookie.restart)

    def _cut(self) -> None:
        bookie, client = self._some_bookie(), self._some_client()
        self.tell(f"the connections of {client.name} and {bookie.name} break")
        self.network.cut(client.name, bookie.host)

    def _partition(self) -> None:
        bookie, client = self._some_bookie(), self._some_client()
        self.tell(f"nothing gets through between {client.name} and {bookie.name}")
        self.network.partition(client.name, bookie.host)
        self.later(self._while(), lambda: self.network.heal(client.name, bookie.host))

    def _sleep(self) -> None:
        self.tell("nothing gets through between W and any bookie")
        for bookie in self.bookies.values():
            self.network.partition("W", bookie.host)
        self.later(self._while(), self._wake)

    def _wake(self) -> None:
        for bookie in self.bookies.values():
            self.network.heal("W", bookie.host)

    def _slow_disk(self) -> None:
        bookie = self._some_bookie()
        bookie.slowness = self.chance.choice((10.0, 100.0))
        self.tell(f"the disk of {bookie.name} is slow")

    def _stall(self) -> None:
        bookie = self._some_bookie()
        bookie.stalled_until = trio.current_time() + self._while()
        self.tell(f"the disk of {bookie.name} hangs")

    def _fill_disk(self) -> None:
        bookie = self._some_bookie()
        self.tell(f"the disk of {bookie.name} is full")
        bookie.fill_disk()

    def _fail_disk(self) -> None:
        bookie = self._some_bookie()
        journal = self.chance.random() < 0.5
        self.tell(f"the {'journal' if journal else 'ledger'} disk of {bookie.name} fails")
        bookie.fail_disk(journal)

    def _kill_client(self) -> None:
        client = self._some_client()
        if isinstance(client, WriterProcess | RecoveringProcess):
            client.die()

    def _take_store_away(self) -> None:
        self.tell("the metadata store is away")
        self.store.memory.available = False
        self.later(self._while(), self._bring_store_back)

    def _bring_store_back(self) -> None:
        self.store.memory.available = True

    def _expire(self) -> None:
        name = self.chance.choice(list(self.store.connections))
        self.tell(f"the session of {name} ends")
        self.store.expire_one(name)

    def _rot(self) -> None:
        bookie = self._some_bookie()
        if bookie.rot():
            self.tell(f"a byte of {bookie.name}'s entry logs turns")

    def _heal(self) -> None:
        self.tell("everything is healed")
        self.has_faults = False
        self._spikes = 0.0
        self.network.heal()
        self.store.memory.available = True
        for store in self.store.connections.values():
            store.catch_up()
        for bookie in self.bookies.values():
            bookie.heal()


def _first(group: BaseExceptionGroup) -> BaseException:
    """The violation, if there is one among what went wrong at once; else the first."""
    leaves = leaves_of(group)
    return next((leaf for leaf in leaves if isinstance(leaf, ViolationError)), leaves[0])
