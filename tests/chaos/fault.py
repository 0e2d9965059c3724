"""What a fault is: it begins, lasts for a while, ends, and may leave something to be healed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.chaos.cluster import Bookie, ChaosCluster
from tests.chaos.processes import Process

P = TypeVar("P", bound=Process)


@dataclass(slots=True)
class Fault:
    """One fault of one kind on some hosts, drawn from a seed.

    `inject` and `lift` are called once each, in this order; the cluster is as before afterwards,
    but for what `damages` says.
    """

    cluster: ChaosCluster
    chance: random.Random
    #: What the figures call it.
    kind: str = ""
    #: Whom it strikes; two faults on one host at a time would hide each other.
    targets: tuple[str, ...] = ()
    avoid: frozenset[str] = frozenset()
    seconds: float = 4.0
    #: Bookies that may have lost copies by it: healed before another one may lose any.
    damages: tuple[str, ...] = ()
    #: It flips bits in entry logs, which ledgers without a digest cannot notice.
    is_rot: bool = False
    #: What happened, for the log of the run.
    told: str = ""

    def inject(self) -> None:
        raise AssertionError(f"{type(self).__name__} does nothing")

    def lift(self) -> None:
        raise AssertionError(f"{type(self).__name__} does not end")

    def pick(self, among: Sequence[P]) -> P:
        """Draw a victim that no other fault strikes now, and name it as the target."""
        victim = self.chance.choice([one for one in among if one.name not in self.avoid] or among)
        self.targets = (victim.name,)
        return victim

    def pick_bookie(self) -> Bookie:
        return self.pick(self.cluster.bookies)


def bring_up(bookie: Bookie) -> str:
    """Start a bookie as an operator would who knows the manual; what had to be done for it.

    It starts; or its journal is damaged and the loss is accepted; or its index is, and all of it
    is given up: the bookie comes back empty, in limbo, and is healed by the others.
    """
    if bookie.is_running:
        return ""
    bookie.no_orders()
    if bookie.begin():
        return ""
    refused = bookie.last_words()
    if bookie.begin(skipReplayJournalInvalidRecord="true"):
        return f"refused ({refused}); the loss was accepted"
    wipe(bookie)
    if bookie.begin():
        return f"refused ({refused}); wiped, came back in limbo"
    raise RuntimeError(f"{bookie.name} does not start even with empty disks: {bookie.last_words()}")


def wipe(bookie: Bookie) -> None:
    """What a replaced disk looks like."""
    assert not bookie.is_running
    for folder in [bookie.journal, *bookie.directories]:
        shutil.rmtree(folder, ignore_errors=True)
