"""Faults between hosts: every pair of roles, every way in which packets go astray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos.cluster import SESSION_SECONDS, ChaosCluster
from tests.chaos.fault import Fault
from tests.chaos.processes import Process

ROLES: Final = ("client", "bookie", "ZooKeeper", "auditor")
#: Bookies speak to each other when one of them is healed, ZooKeepers always.
PAIRS: Final = (
    ("client", "bookie"),
    ("client", "ZooKeeper"),
    ("bookie", "bookie"),
    ("bookie", "ZooKeeper"),
    ("bookie", "auditor"),
    ("ZooKeeper", "auditor"),
    ("ZooKeeper", "ZooKeeper"),
)


def of_role(cluster: ChaosCluster, role: str) -> Sequence[Process]:
    found: dict[str, Sequence[Process]] = {
        "client": cluster.clients,
        "bookie": cluster.bookies,
        "ZooKeeper": cluster.zookeepers,
        "auditor": cluster.autorecoveries,
    }
    return found[role]


@dataclass(slots=True)
class Partition(Fault):
    """Some of one role cannot reach some of another."""

    pair: tuple[str, str] = ("client", "bookie")
    cuts: tuple[tuple[str, str], ...] = ()

    def inject(self) -> None:
        network = self.cluster.network
        how = self.chance.choice(sorted(network.cuts, key=lambda cut: cut.value))
        one, other = self.pair
        self.kind = f"partition of {one} and {other}"
        left = self._some(one)
        right = [name for name in self._some(other) if name not in left]
        if not right:  # of the same role: the rest of them
            right = [found.name for found in of_role(self.cluster, other)]
            right = [name for name in right if name not in left]
        self.seconds = self.chance.choice((2.0, 2 * SESSION_SECONDS))
        self.cuts = tuple((a, b) for a in left for b in right)
        self.targets = tuple(dict.fromkeys([*left, *right]))
        self.told = f"{how.value}, {'+'.join(left)} and {'+'.join(right)}"
        for a, b in self.cuts:
            network.cut(a, b, how)

    def _some(self, role: str) -> list[str]:
        """One of them, or all: both happen."""
        names = [found.name for found in of_role(self.cluster, role)]
        if self.pair[0] != self.pair[1] and self.chance.random() < 0.4:
            return names
        return [self.chance.choice(names)]

    def lift(self) -> None:
        for a, b in self.cuts:
            self.cluster.network.mend(a, b)
