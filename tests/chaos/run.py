"""A whole run: cluster, workload, faults one after another, healing, verdict."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.checker import Checker, Violation
from tests.chaos.cluster import ChaosCluster, Client
from tests.chaos.fault import Fault
from tests.chaos.faults_process import start_again
from tests.chaos.figures import Event, Figures, figures_of
from tests.chaos.healing import Whole, judge, ledgers_now, wait_whole
from tests.chaos.history import read_history
from tests.chaos.network import Network
from tests.chaos.planner import HARMING, Planner, available
from tests.chaos.scans import SparkScans

#: Only a bound against waiting for ever: a loaded machine takes long, and that is no fault.
HEAL_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    folder: Path
    seed: int
    seconds: float
    faults: list[str] | None = None  # None: all that the machine allows
    script: list[str] = field(default_factory=list)  # faults that come first, in this order
    bookies: int = 5
    clients: int = 3
    pace: float = 0.1
    spark: bool = False
    broken: bool = False
    heal_seconds: float = HEAL_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    violations: list[Violation]
    figures: Figures
    odd: list[str]  # processes that ended by themselves, without being made to


def run_chaos(settings: Settings, network: Network, say: Callable[[str], None]) -> Outcome:
    """Start, hurt, heal, judge. The folder keeps everything that is needed to look into it."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    cluster = ChaosCluster(
        settings.folder,
        network,
        seed=settings.seed,
        bookies=settings.bookies,
        plans=_plans(settings),
    )
    for bookie in cluster.bookies:
        bookie.is_broken = settings.broken
        if settings.broken:  # nothing reaches an entry log before the power goes
            bookie.settings["flushInterval"] = 600_000
    run = _Run(settings, cluster, say)
    try:
        return run.go()
    finally:
        cluster.stop()
        if not run.is_bad:
            cluster.remove_data()


def _plans(settings: Settings) -> dict[str, str]:
    """Every client writes, so that every one can be cut off while it does."""
    plans = {}
    for number in range(1, settings.clients + 1):
        plan: dict[str, Any] = {
            "seed": f"{settings.seed}.{number}",
            "pace": settings.pace,
            "writer": 2,
            "tailer": 1,
            "recoverer": 1,
            "reader": 1,
            "deleter": 1 if number == 1 else 0,
        }
        plans[f"c{number}"] = json.dumps(plan)
    return plans


class _Run:
    def __init__(
        self, settings: Settings, cluster: ChaosCluster, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._say = say
        self._events: list[Event] = []
        self._odd: list[str] = []
        self._is_rotten = False
        self.is_bad = True  # until shown otherwise
        self._log = (settings.folder / "events.jsonl").open("a")

    def go(self) -> Outcome:
        names, missing = available(self._cluster)
        for line in missing:
            self._say(f"NOT INJECTED: {line}")
        if self._settings.faults is not None:
            names = [name for name in self._settings.faults if name in names]
        planner = Planner(names, self._settings.seed)
        self._cluster.start()
        self._say(f"the cluster runs: {len(self._cluster.processes)} processes")
        for client in self._cluster.clients:
            client.begin()
        scans = SparkScans(self._cluster, self._settings.folder, is_on=self._settings.spark)
        begun = time.monotonic()
        self._wait_load()
        script = [(name,) for name in self._settings.script]
        while script or time.monotonic() - begun < self._settings.seconds:
            names_now = script.pop(0) if script else planner.next_names()
            try:
                self._strike(planner, names_now)
            except (OSError, subprocess.SubprocessError, AssertionError) as error:
                # The tools of the run failed, not what it tests. Said loudly, and mended.
                self._say(f"    NOT INJECTED as meant, {'+'.join(names_now)}: {error!r}")
                self._odd.append(f"tools: {'+'.join(names_now)}: {error!r}")
                self._mend()
            scans.look()
        scans.end()
        return self._finish(time.monotonic() - begun)

    def _wait_load(self) -> None:
        """Until every client has something to lose."""
        history = self._settings.folder / "history"
        deadline = time.monotonic() + HEAL_SECONDS
        while time.monotonic() < deadline:
            lines = list(read_history(history))
            firm = {line["l"] for line in lines if line.get("mode", "deferred") != "deferred"}
            acked = [line for line in lines if line["k"] == "acked" and line["l"] in firm]
            if {line["who"] for line in acked} == {f"{name}-1" for name in self._names()}:
                break
            self._sleep(1.0)
        self._sleep(2.0)

    def _names(self) -> list[str]:
        return [client.name for client in self._cluster.clients]

    # ------------------------------------------------------------------ faults

    def _strike(self, planner: Planner, names: tuple[str, ...]) -> None:
        faults: list[Fault] = []
        begun = time.monotonic()
        for name in names:
            struck = frozenset(target for fault in faults for target in fault.targets)
            fault = planner.build(name, self._cluster, struck)
            faults.append(fault)
            before = ledgers_now(self._cluster.uri) if name in HARMING else set()
            fault.inject()
            self._is_rotten |= fault.is_rot
            self._say(f"  {fault.kind}: {', '.join(fault.targets)} {fault.told}")
        self._sleep(max(fault.seconds for fault in faults), watched=False)
        for fault in reversed(faults):
            fault.lift()
        lifted = time.monotonic()
        self._restart_ended(expected={target for fault in faults for target in fault.targets})
        whole = None
        if any(fault.damages for fault in faults):
            before |= ledgers_now(self._cluster.uri)
            whole = self._heal(before, f"{faults[0].kind} on {', '.join(faults[0].damages)}")
        self._sleep(2.0)
        for fault in faults:
            self._note(fault, begun, lifted, whole)

    def _mend(self) -> None:
        """Whatever was left half done: everybody runs, with orders and limits of nobody."""
        for process in self._cluster.processes:
            process.signal(signal.SIGCONT)
        for bookie in self._cluster.bookies:
            bookie.no_orders()
        for process in self._cluster.processes:
            if not process.is_running:
                process.kill()
                start_again(process)

    def _heal(self, ledgers: set[int], after: str) -> Whole:
        bookies = len(self._cluster.bookies)
        whole = wait_whole(self._cluster.uri, bookies, ledgers, self._settings.heal_seconds)
        if whole.missing is not None:
            raise ChaosError(
                f"not healed {self._settings.heal_seconds:g} s after {after}: {whole.missing}"
            )
        self._say(f"    every copy is back after {whole.seconds:.1f} s")
        return whole

    def _note(self, fault: Fault, begun: float, lifted: float, whole: Whole | None) -> None:
        event = Event(
            kind=fault.kind,
            targets=fault.targets,
            told=fault.told,
            begun=begun,
            lifted=lifted,
            heal_seconds=None if whole is None else whole.seconds,
        )
        self._events.append(event)
        print(event.to_json(), file=self._log, flush=True)

    def _sleep(self, seconds: float, *, watched: bool = True) -> None:
        """Meanwhile see who ended without being made to, and start them again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            if watched:
                self._restart_ended(expected=set())

    def _restart_ended(self, expected: set[str]) -> None:
        for process in self._cluster.processes:
            words = process.notice_end()
            if words is None:
                continue
            self._say(f"    {process.name} ended by itself, {words}")
            if process.name not in expected or isinstance(process, Client):
                self._odd.append(f"{process.name}: {words}")
            start_again(process)

    # ------------------------------------------------------------------ the end

    def _finish(self, seconds: float) -> Outcome:
        self._say("faults are over: waiting until everything is whole")
        for client in self._cluster.clients:
            client.kill()
        begun = time.monotonic()
        violations: list[Violation] = []
        # Read first: opening closes what killed writers left open, and only then copies count.
        left = judge(self._cluster.uri, self._settings.folder, self._settings.heal_seconds)
        if left:
            violations.append(Violation("healing", left[0], f"{len(left)} ledgers are not read"))
        ledgers = ledgers_now(self._cluster.uri)
        bookies = len(self._cluster.bookies)
        whole = wait_whole(self._cluster.uri, bookies, ledgers, self._settings.heal_seconds)
        if whole.missing is not None:
            violations.append(Violation("healing", None, whole.missing))
        checker = Checker(is_rotten=self._is_rotten)
        history = self._settings.folder / "history"
        violations += checker.feed(read_history(history)).finish()
        figures = figures_of(
            seed=self._settings.seed,
            network=self._cluster.network.kind,
            seconds=seconds,
            events=self._events,
            lines=read_history(history),
            counts=checker.counts,
            last_heal_seconds=time.monotonic() - begun,
        )
        (self._settings.folder / "figures.json").write_text(figures.to_json() + "\n")
        text = "".join(f"{found}\n" for found in violations)
        (self._settings.folder / "violations.txt").write_text(text)
        self.is_bad = bool(violations)
        return Outcome(violations=violations, figures=figures, odd=self._odd)


class ChaosError(Exception):
    """The run could not go on; what the folder holds says why."""
