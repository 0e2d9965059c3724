"""Which fault comes next, from one seed, such that losing anything would be our fault.

What the protocol promises holds while fewer than an ack quorum of the copies of an entry are
destroyed. All ledgers here have an ack quorum of two or more, so one bookie at a time may lose
copies, and the next one only when every copy is back. Faults that destroy nothing may come at any
time and two at once, if they strike different hosts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from tests.chaos.cluster import ChaosCluster
from tests.chaos.fault import Fault
from tests.chaos.faults_disk import (
    FillDisk,
    ReadErrors,
    RotInIndex,
    RotInJournal,
    RotInLog,
    SlowDisk,
    SwapDirectories,
    TornWrite,
    WipeAll,
    WipeJournal,
)
from tests.chaos.faults_network import PAIRS, Partition
from tests.chaos.faults_process import (
    KillAllBookies,
    KillBookie,
    KillOther,
    Pause,
    Starve,
    StepClock,
    StopBookie,
)
from tests.chaos.processes import clock_library
from tests.chaos.scenes import AddDirectory, FenceThenPower, KillWorkers, Sleeper

type_of_fault = Callable[..., Fault]

#: By name, as `--faults` takes them; those of `HARMING` destroy copies.
HARMLESS: dict[str, type_of_fault] = {
    "kill": KillBookie,
    "power": KillAllBookies,
    "restart": StopBookie,
    "torn": TornWrite,
    "pause-bookie": partial(Pause, who="a bookie"),
    "pause-client": partial(Pause, who="a client"),
    "pause-auditor": partial(Pause, who="the auditor"),
    "pause-leader": partial(Pause, who="ZooKeeper's leader"),
    "kill-client": partial(KillOther, who="a client"),
    "kill-autorecovery": partial(KillOther, who="an autorecovery"),
    "kill-leader": partial(KillOther, who="ZooKeeper's leader"),
    "kill-zookeeper": partial(KillOther, who="all of ZooKeeper"),
    **{f"cut-{one}-{other}".lower(): partial(Partition, pair=(one, other)) for one, other in PAIRS},
    "full": FillDisk,
    "slow": SlowDisk,
    "swap": SwapDirectories,
    "descriptors": partial(Starve, what="descriptors"),
    "memory": partial(Starve, what="memory"),
    "clock": StepClock,
    "fence-power": FenceThenPower,
    "sleeper": Sleeper,
    "kill-workers": KillWorkers,
    "directory": AddDirectory,
}
HARMING: dict[str, type_of_fault] = {
    "read-errors": ReadErrors,
    "rot-log": RotInLog,
    "rot-index": RotInIndex,
    "rot-journal": RotInJournal,
    "wipe": WipeAll,
    "wipe-journal": WipeJournal,
}
ALL: dict[str, type_of_fault] = {**HARMLESS, **HARMING}


class Planner:
    """Every kind once, in an order drawn from the seed; then again in another one."""

    def __init__(self, names: list[str], seed: int) -> None:
        unknown = sorted(set(names) - set(ALL))
        if unknown:
            raise ValueError(f"no fault is called {', '.join(unknown)}: there are {', '.join(ALL)}")
        self._names = names
        self._chance = random.Random(f"plan {seed}")
        self._deck: list[str] = []

    def next_names(self) -> tuple[str, ...]:
        """One fault, or two harmless ones at once."""
        first = self._draw()
        if first in HARMLESS and self._chance.random() < 0.35 and len(self._names) > 1:
            return (first, *self._harmless_beside(first))
        return (first,)

    def _harmless_beside(self, first: str) -> Iterator[str]:
        """The second may not be of a kind that needs everybody, nor of the first's own."""
        whole = {
            "power",
            "kill-zookeeper",
            "swap",
            "fence-power",
            "sleeper",
            "kill-workers",
            "directory",
        }
        rest = [name for name in self._names if name in HARMLESS and name != first]
        rest = [name for name in rest if name not in whole]
        if _needs_quorum(first):  # of three ZooKeepers one may be missing
            rest = [name for name in rest if not _needs_quorum(name)]
        if first not in whole and rest:
            yield self._chance.choice(rest)

    def _draw(self) -> str:
        if not self._deck:
            self._deck = list(self._names)
            self._chance.shuffle(self._deck)
        return self._deck.pop()

    def build(self, name: str, cluster: ChaosCluster, avoid: frozenset[str]) -> Fault:
        chance = random.Random(self._chance.random())
        return ALL[name](cluster=cluster, chance=chance, avoid=avoid)


def _needs_quorum(name: str) -> bool:
    return "leader" in name or "zookeeper" in name


def available(cluster: ChaosCluster) -> tuple[list[str], list[str]]:
    """Faults that this machine allows, and a line for each that it does not."""
    names, missing = list(ALL), []
    if clock_library() is None:
        names.remove("clock")
        missing.append("clock: libfaketime is not installed, no clock is stepped")
    if not any(bookie.has_small_disk for bookie in cluster.bookies):
        names.remove("full")
        missing.append("full: no file system can be mounted here, no disk is filled")
    return names, missing
