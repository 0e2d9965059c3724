"""One run of the outer ring: boot a cluster, let faults act, heal it, demand the end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, cast

import trio

from ledger_client.core.distribution import Distribution
from metadata.cluster import init_new_cluster
from metadata.paths import LayoutType, LedgerPaths
from metadata.uri import parse_metadata_uri
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
from tests.simulation.outer.clocks import WallClocks
from tests.simulation.outer.faults import Faults
from tests.simulation.outer.plan import FAULT_SECONDS, OuterPlan
from tests.simulation.outer.recovery import RecoveryProcess
from tests.simulation.outer.seams import attached
from tests.simulation.outer.store import WatchedMetadata
from wire.types import LedgerId

URI: Final = parse_metadata_uri("zk://metadata/ledgers")
#: Virtual time within which things must end once everything is healed.
HEALED_SECONDS: Final = 200.0
#: And all copies be back: the auditor has looked at everything more than once by then.
RESTORED_SECONDS: Final = 400.0
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
        self.recoveries: dict[str, RecoveryProcess] = {}
        self.clocks = WallClocks()
        self.faults = Faults(self)
        self.store: WatchedMetadata
        self.network: MemoryNetwork
        self.writer: WriterProcess
        self.begun: trio.Event
        self._nursery: trio.Nursery
        self._spikes = 0.0

    def tell(self, line: str) -> None:
        self.story.append(f"{trio.current_time():9.4f}  {line}")

    # ------------------------------------------------------------------ what all share

    def payload_of(self, entry_id: int) -> bytes:
        return f"{entry_id}:".encode() + b"x" * (self.plan.payload_bytes + entry_id % 7)

    def size_of(self, entry_id: int) -> int:
        return len(self.payload_of(entry_id))

    def life_of(self, name: str) -> int:
        """`name` is a process, or one of its connections to the store."""
        process = self._process_of(name)
        return 1 if process is None or isinstance(process, ClientProcess) else process.life

    def is_dead(self, name: str) -> bool:
        process = self._process_of(name)
        if isinstance(process, BookieProcess):
            return not process.is_up
        return process is not None and process.is_dead

    def _process_of(self, name: str) -> BookieProcess | ClientProcess | RecoveryProcess | None:
        name = name.removesuffix(".heal")
        return self.bookies.get(name) or self.recoveries.get(name) or self.clients.get(name)

    def bookie_with(self, files: object) -> BookieProcess:
        return next(bookie for bookie in self.bookies.values() if bookie.drive.files is files)

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
        self.store = WatchedMetadata(self, URI.root)
        self.begun = trio.Event()
        await init_new_cluster(self.store.memory.connect(), URI, chance=self.chance)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._boot()
            self.has_faults = True
            self._spikes = self.plan.spikes
            self.begun.set()
            self._schedule_work()
            self.faults.schedule()
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
        for number in range(plan.autorecovery):
            process = RecoveryProcess(self, f"A{number + 1}")
            self.recoveries[process.name] = process
            self._nursery.start_soon(process.live)
        self.writer = WriterProcess(self)
        self._nursery.start_soon(self.writer.live)
        with trio.fail_after(BOOT_SECONDS):
            await self.writer.created.wait()

    def on_created(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        paths = LedgerPaths(URI.root, LayoutType.HIERARCHICAL)
        self.store.follow(paths.path_of(ledger_id))
        self.history.watch(
            checkers_for(cast("Any", self), autorecovery=True)
        )  # of all worlds alike
        ensemble = self.store.metadata.last_fragment.ensemble
        self.tell(f"W creates the ledger on {' '.join(ensemble)}")

    async def _finish(self) -> None:
        """With the cluster whole again: writes end, somebody opens the ledger, it has one end."""
        await self._demand([self.writer], "the writer neither confirms nor fails what it was given")
        last = RecoveringProcess(self, "L", attempts=8)
        self._nursery.start_soon(last.live)
        await self._demand([last], "every bookie is back, and recovery fails")
        if not last.has_opened:
            raise ViolationError("I24", f"every bookie is back, and recovery fails: {last.why}")
        await self._demand(
            list(self.clients.values()), "a client never came to the end of the closed ledger"
        )
        await self._demand_copies()
        self.history.emit("ended")

    async def _demand(self, clients: list[ClientProcess], what: str) -> None:
        deadline = trio.current_time() + HEALED_SECONDS
        while any(not client.is_done and not client.is_dead for client in clients):
            await trio.sleep(0.25)
            if trio.current_time() > deadline:
                raise ViolationError("I24", what)

    async def _demand_copies(self) -> None:
        """Every bookie on record holds all that its slots must, wherever somebody sees to that."""
        deadline = trio.current_time() + RESTORED_SECONDS
        while (missing := self._missing()) is not None:
            await trio.sleep(1.0)
            if trio.current_time() > deadline:
                raise ViolationError("I24", f"copies are not restored: {missing}")

    def _missing(self) -> str | None:
        metadata = self.store.metadata
        shape = Distribution.of(metadata)
        for found in metadata.ranges():
            for slot, name in enumerate(found.fragment.ensemble):
                bookie = self.bookies[name]
                if not self.recoveries and not bookie.was_wiped:
                    continue
                assert found.last_entry_id is not None
                first, last = found.fragment.first_entry_id, found.last_entry_id
                for entry_id in shape.entries_of(slot=slot, first=first, last=last):
                    if not bookie.is_readable(entry_id):
                        return f"entry {entry_id} cannot be read on {name}"
        if self.recoveries and self.store.is_marked:
            return "the ledger is still marked"
        return None

    def _schedule_work(self) -> None:
        if self.plan.crowd:
            self._start_later(CrowdProcess(self, "C"))
        for number in range(self.plan.recoverers):
            self._start_later(RecoveringProcess(self, f"R{number + 1}"))
        for number in range(self.plan.readers):
            kind = PollingProcess if number % 2 else TailProcess
            self._start_later(kind(self, f"F{number + 1}"))

    def _start_later(self, client: ClientProcess) -> None:
        moment = self.faults.moment()
        self.later(moment, lambda: self._nursery.start_soon(client.live))
        if self.plan.stalls_at_open and isinstance(client, RecoveringProcess):
            self.later(moment * self.chance.random(), self.faults.stall)

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
        for process in self.recoveries.values():
            process.revive()


def _first(group: BaseExceptionGroup) -> BaseException:
    """The violation, if there is one among what went wrong at once; else the first."""
    leaves = leaves_of(group)
    return next((leaf for leaf in leaves if isinstance(leaf, ViolationError)), leaves[0])
