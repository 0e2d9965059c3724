"""Faults of processes: killed, stopped, short of memory, descriptors or time."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import trio

from autorecovery.operators import who_is_auditor
from tests.chaos.cluster import SESSION_SECONDS, Autorecovery, Bookie, Client
from tests.chaos.fault import Fault, bring_up
from tests.chaos.healing import opened_judge
from tests.chaos.processes import Process, clock_library
from tests.chaos.zookeeper import ZookeeperServer, wait_quorum
from wire.errors import LedgerError


def start_again(process: Process) -> str:
    """Whatever it is."""
    match process:
        case Bookie():
            return bring_up(process)
        case Autorecovery():
            if not process.is_running:
                assert process.begin(), f"{process.name} does not start: {process.last_words()}"
        case Client():
            if not process.is_running:
                process.begin()
        case ZookeeperServer():
            if not process.is_running:
                process.begin()
    return ""


@dataclass(slots=True)
class KillBookie(Fault):
    def inject(self) -> None:
        self.kind = "kill -9 of a bookie"
        bookie = self.pick_bookie()
        self.seconds = self.chance.choice((0.5, 3.0, 2 * SESSION_SECONDS))
        bookie.kill()

    def lift(self) -> None:
        for bookie in self.cluster.bookies:
            if bookie.name in self.targets:
                self.told = bring_up(bookie)


@dataclass(slots=True)
class KillAllBookies(Fault):
    """A power cut: every bookie at the same moment, with everything unsynced."""

    def inject(self) -> None:
        self.kind = "power cut for all bookies"
        self.targets = tuple(bookie.name for bookie in self.cluster.bookies)
        self.seconds = 1.0
        for bookie in self.cluster.bookies:
            bookie.signal(signal.SIGKILL)
        for bookie in self.cluster.bookies:
            bookie.kill()

    def lift(self) -> None:
        with ThreadPoolExecutor(len(self.cluster.bookies)) as threads:
            self.told = " ".join(threads.map(bring_up, self.cluster.bookies)).strip()


@dataclass(slots=True)
class StopBookie(Fault):
    def inject(self) -> None:
        self.kind = "orderly restart of a bookie"
        self.seconds = 0.5
        self.pick_bookie().stop()

    def lift(self) -> None:
        for bookie in self.cluster.bookies:
            if bookie.name in self.targets:
                self.told = bring_up(bookie)


@dataclass(slots=True)
class Pause(Fault):
    """SIGSTOP, longer than the session of its victim lasts."""

    who: str = "bookie"
    victims: list[Process] = field(default_factory=list)

    def inject(self) -> None:
        self.kind = f"SIGSTOP of {self.who}"
        match self.who:
            case "a bookie":
                self.victims = [self.pick(self.cluster.bookies)]
            case "the auditor":
                elected = trio.run(_auditor, self.cluster.uri)
                everybody = self.cluster.autorecoveries
                self.victims = [one for one in everybody if one.name == elected]
                self.victims = self.victims or [self.pick(everybody)]
                self.told = f"elected: {elected}"
            case "a client":
                self.victims = [self.pick(self.cluster.clients)]
            case "ZooKeeper's leader":
                self.victims = [self.cluster.leader()]
            case _:
                raise AssertionError(self.who)
        self.targets = tuple(victim.name for victim in self.victims)
        self.seconds = self.chance.uniform(1.5, 2.5) * SESSION_SECONDS
        for victim in self.victims:
            victim.signal(signal.SIGSTOP)
            victim.wait_stopped()

    def lift(self) -> None:
        for victim in self.victims:
            victim.signal(signal.SIGCONT)


async def _auditor(uri: str) -> str | None:
    try:
        async with opened_judge(uri) as context:
            return await who_is_auditor(context)
    except LedgerError:
        return None  # ZooKeeper is away just now


@dataclass(slots=True)
class KillOther(Fault):
    """kill -9 of anything that keeps no entries."""

    who: str = "a client"
    victims: list[Process] = field(default_factory=list)

    def inject(self) -> None:
        self.kind = f"kill -9 of {self.who}"
        match self.who:
            case "a client":
                self.victims = [self.pick(self.cluster.clients)]
            case "an autorecovery":
                self.victims = [self.pick(self.cluster.autorecoveries)]
            case "ZooKeeper's leader":
                self.victims = [self.cluster.leader()]
            case "all of ZooKeeper":
                self.victims = list(self.cluster.zookeepers)
            case _:
                raise AssertionError(self.who)
        self.targets = tuple(victim.name for victim in self.victims)
        self.seconds = self.chance.choice((1.0, 2 * SESSION_SECONDS))
        for victim in self.victims:
            victim.kill()

    def lift(self) -> None:
        for victim in self.victims:
            start_again(victim)
        if any(isinstance(victim, ZookeeperServer) for victim in self.victims):
            wait_quorum(self.cluster.zookeepers)


@dataclass(slots=True)
class Starve(Fault):
    """No descriptors, or no memory, above what the process has right now."""

    what: str = "descriptors"
    bookie: Bookie | None = None

    def inject(self) -> None:
        self.kind = f"a bookie without {self.what}"
        self.seconds = 6.0
        bookie = self.bookie = self.pick_bookie()
        if self.what == "descriptors":
            bookie.limit_files(self.chance.choice((0, 2)))
        else:
            bookie.limit_memory(self.chance.choice((1 << 20, 16 << 20)))

    def lift(self) -> None:
        bookie = self.bookie
        assert bookie is not None
        if bookie.is_running:
            bookie.limit_files(None)
            bookie.limit_memory(None)
        else:
            self.told = f"it ended: {bookie.last_words()}"
            bookie.kill()
        bring_up(bookie)


@dataclass(slots=True)
class StepClock(Fault):
    """The wall clock of some processes jumps, and jumps back."""

    victims: list[Process] = field(default_factory=list)

    def inject(self) -> None:
        assert clock_library() is not None
        self.kind = "clock step"
        cluster = self.cluster
        everybody = [*cluster.bookies, *cluster.autorecoveries, *cluster.clients]
        self.victims = self.chance.sample(everybody, 3)
        self.targets = tuple(victim.name for victim in self.victims)
        self.seconds = 4.0
        for victim in self.victims:
            victim.step_clock(self.chance.choice((-86_400, -3600, -30, 30, 3600, 10 * 86_400)))

    def lift(self) -> None:
        for victim in self.victims:
            victim.step_clock(0)
