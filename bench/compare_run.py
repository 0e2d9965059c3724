"""Running a comparison: clusters and generators side by side, warmed up, in interleaved rounds."""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from bench.compare import APACHE, JAVA_ON_OURS, OURS, OURS_ON_APACHE, Figures, Results, Side, Trial
from bench.peers.cluster import MakeBookie, PeerCluster, bookies_on
from bench.peers.jars import NEWEST
from bench.peers.java_bookie import DEFAULT_JVM, JavaBookie
from bench.peers.load import JavaLoad, LoadFailedError, LoadProcess, OurLoad
from bench.peers.process import OurBookie
from runtime.local_zookeeper import LocalZookeeper

T = TypeVar("T")

BOOKIES: Final = 3
#: Of a ledger that is read, whichever is less; it is read again and again.
_READ_BYTES: Final = 16 << 20
_READ_ENTRIES: Final = 50_000
#: Apache's bookies keep so many files of ledgers open, and without some more take no connection.
#: Fewer than there are ledgers cost them nine tenths of their rate.
_APACHE_FILES: Final = 20_000
_OTHER_FILES: Final = 2_000
#: With less, nothing more is measured: stores grow by up to this much in a round.
_FREE_GIB_MIN: Final = 5
#: Until a bookie that was overrun has flushed what it holds.
_PAUSE_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How much time a run may take."""

    rounds: int
    seconds: float  # of one trial on one side
    warm_seconds: float
    ledgers: int  # in the trial with many
    disk_gib: int  # for all trials but the last: nothing is deleted meanwhile


QUICK: Final = Pace(rounds=3, seconds=1.0, warm_seconds=3.0, ledgers=200, disk_gib=15)
FULL: Final = Pace(rounds=5, seconds=3.0, warm_seconds=8.0, ledgers=10_000, disk_gib=50)


@dataclass(slots=True)
class Bench:
    """What is running, by name."""

    clusters: dict[str, PeerCluster]
    loads: dict[str, LoadProcess]
    pace: Pace
    _ledgers: dict[tuple[str, int], float] = field(default_factory=dict)

    def measure(self, trial: Trial, side: Side, seconds: float) -> Figures:
        """One trial on one side, and what it cost the bookies."""
        given = dict(trial.given) | {"seconds": seconds}
        if trial.reads_size is not None:
            given["ledger"] = int(self._ledger_to_read(side, trial.reads_size))
            if side.wire == "v3":
                given["mode"] = "plain"  # Apache's client refuses batches over v3
        cluster = self.clusters[side.cluster]
        before = sum(bookie.cpu_seconds() for bookie in cluster.bookies)
        found = self._run(trial.command, side, given)
        cpu = sum(bookie.cpu_seconds() for bookie in cluster.bookies) - before
        if "entries" in found:
            entries = found["entries"]
            found["rate"] = entries / found.pop("seconds")
            found["client_us"] = found["cpu_seconds"] / entries * 1e6
            found["bookie_us"] = cpu / entries / BOOKIES * 1e6
        return found

    def _run(self, command: str, side: Side, given: dict[str, object]) -> Figures:
        uri = self.clusters[side.cluster].uri
        return self.loads[side.client].run(command, uri=uri, wire=side.wire, **given)

    def _ledger_to_read(self, side: Side, size: int) -> float:
        """Written once per cluster, by our client: its entries are the same as anybody's."""
        key = (side.cluster, size)
        if key not in self._ledgers:
            entries = min(_READ_ENTRIES, _READ_BYTES // size)
            given: dict[str, object] = {"size": size, "outstanding": 2000, "entries": entries}
            self._ledgers[key] = self._run("add", Side("ours", side.cluster), given)["ledger"]
        return self._ledgers[key]

    # ------------------------------------------------------------------ what is done

    def warm_up(self, chosen: list[Trial]) -> None:
        """Until the compilers of all JVMs have seen the work."""
        for side in (OURS, OURS_ON_APACHE, JAVA_ON_OURS, *APACHE):
            for trial in chosen:
                if trial.name in ("add 1 KiB", "read 1 KiB", "tail") and side in trial.sides:
                    tell(f"warming up: {trial.name}, {side}")
                    try:
                        self.measure(trial, side, self.pace.warm_seconds)
                    except LoadFailedError as error:  # warm all the same
                        pause(error, "going on")

    def run(self, chosen: list[Trial], results: Results) -> None:
        for trial in chosen:
            for number in range(self.pace.rounds):
                if self._free_gib() < _FREE_GIB_MIN:
                    tell(f"{trial.name}: the disk is full; the report has what was measured so far")
                    return
                self._round(trial, number, results)

    def _round(self, trial: Trial, number: int, results: Results) -> None:
        """All sides in turn. Ratios are taken within a round: without one side, it counts for none.

        There and back: a JVM is still being compiled while the first rounds run, and whoever always
        came first on its bookies would pay for the others.
        """
        name = f"{trial.name}, round {number + 1}"
        found: dict[Side, Figures] = {}
        for side in trial.sides if number % 2 == 0 else reversed(trial.sides):
            tell(f"{name}: {side}")
            figures = self._measured(trial, side, results)
            if figures is None:
                results.left_out.append(f"{name}: {side}")
                return
            found[side] = figures
        for side, figures in found.items():
            results.add(trial.name, side, figures)

    def _free_gib(self) -> int:
        """A full disk stops more than a benchmark."""
        return min(
            shutil.disk_usage(cluster.bookies[0].folder).free >> 30
            for cluster in self.clusters.values()
        )

    def _measured(self, trial: Trial, side: Side, results: Results) -> Figures | None:
        figures, failures = twice(
            lambda _: self.measure(trial, side, self.pace.seconds), "going on without this round"
        )
        results.failed += [f"{trial.name}, {side}"] * failures
        return figures

    def memory(self, results: Results) -> None:
        """The most that any bookie of a cluster held, and our client."""
        for side in (OURS, APACHE[0], APACHE[2]):
            bookies = self.clusters[side.cluster].bookies
            figures = {"mib": max(bookie.memory_mib() for bookie in bookies)}
            results.add("memory", side, figures)
        results.add("client memory", OURS, {"mib": self.loads["ours"].memory_mib()})

    def starts(self, results: Results) -> None:
        """From the start of the process to its registration, for a bookie that was stopped."""
        for number in range(self.pace.rounds):
            for side in (OURS, APACHE[0]):
                tell(f"start to ready, round {number + 1}: {side}")
                bookie = self.clusters[side.cluster].bookies[-1]
                bookie.stop()
                bookie.start()
                results.add("start", side, {"seconds": bookie.start_seconds})


def tell(what: str) -> None:
    """Say on standard error what goes on; the table has standard output to itself."""
    sys.stderr.write(f"bench: {what}\n")


def pause(failed: LoadFailedError, then: str) -> None:
    """Say what has failed and what comes next, and leave the bookies alone until then."""
    tell(f"{failed}\nfailed; {then} after {_PAUSE_SECONDS:.0f} s")
    time.sleep(_PAUSE_SECONDS)


def twice(measure: Callable[[int], T], otherwise: str) -> tuple[T | None, int]:
    """What it measures, at the second attempt if the first fails, and how many have failed.

    Apache's bookies refuse adds when flushing has taken 10 s.
    """
    for attempt, then in enumerate(("once more", otherwise)):
        try:
            return measure(attempt), attempt
        except LoadFailedError as error:
            pause(error, then)
    return None, 2


@contextmanager
def running(folder: Path, pace: Pace) -> Iterator[Bench]:
    """Three bookies of ours, three of Apache's in each of two settings, and both generators."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = _APACHE_FILES
    if files != resource.RLIM_INFINITY:
        kept = min(kept, max(files // 2, files - _OTHER_FILES))
    java = partial(
        JavaBookie,
        version=NEWEST,
        jvm=DEFAULT_JVM,
        openFileLimit=kept,
        # Of journals that nobody needs any more it would keep 60 GiB, and never write them again.
        journalMaxBackups=1,
    )
    tuned: MakeBookie = partial(java, journalMaxGroupWaitMSec=0)
    makers: dict[str, MakeBookie] = {"ours": OurBookie, "apache": tuned, "apache-default": java}
    with ExitStack() as stack:
        (folder / "zookeeper").mkdir()
        server = stack.enter_context(LocalZookeeper(folder / "zookeeper"))
        clusters = {}
        for name, make in makers.items():
            tell(f"starting {BOOKIES} bookies: {name}")
            uri = f"zk+hierarchical://{server.address}/{name}"
            clusters[name] = stack.enter_context(bookies_on(folder / name, uri, [make] * BOOKIES))
        loads: dict[str, LoadProcess] = {
            "ours": stack.enter_context(OurLoad(folder)),
            "java": stack.enter_context(JavaLoad(folder)),
        }
        yield Bench(clusters, loads, pace)
