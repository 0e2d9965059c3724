"""Our client and our bookies beside Apache's, in one run on one machine.

    python -m bench.client [--quick] [--only NAME] [--directory D] [--results D] [--accept]

Three of our bookies, three of Apache's with its group wait tuned to 0 and three as it comes, and
a load generator of each kind, each in a process of its own. The table gives ratios to Apache's
client on Apache's bookies at their best; a run that falls more than 15 % below the accepted ratios
(`bench/accepted.json`, written by `--accept`) says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.compare import Outcome, Results, Side, comparisons, judge, trials
from bench.compare_growth import curves
from bench.compare_growth import run as run_curves
from bench.compare_run import FULL, QUICK, running, tell
from bench.peers.jars import ROOT, JavaPeerError, resolve_jars
from bench.peers.load import LoadFailedError
from bench.peers.machine import limits
from bench.peers.process import BookieFailedToStartError
from bench.report import table, write_curves, write_report

ACCEPTED: Final = ROOT / "bench" / "accepted.json"
RESULTS: Final = ROOT / "bench" / "results"


Grown = dict[str, dict[Side, dict[int, float]]]


@dataclass(slots=True)
class Run:
    """What is known so far; a run that fails keeps what it has."""

    machine: dict[str, float] = field(default_factory=dict)
    results: Results = field(default_factory=Results)
    grown: Grown = field(default_factory=dict)

    def go(self, directory: Path, options: argparse.Namespace) -> None:
        pace = QUICK if options.quick else FULL
        only = options.only or []
        chosen = [
            trial
            for trial in trials(ledgers=pace.ledgers)
            if not only or any(word in trial.name for word in only)
        ]
        self.machine |= {"load average before": os.getloadavg()[0]} | limits(directory)
        if chosen or "start" in only:
            with fresh(directory / "trials"), running(directory / "trials", pace) as bench:
                bench.warm_up(chosen)
                bench.run(chosen, self.results)
                bench.memory(self.results)
                if not only or "start" in only:
                    bench.starts(self.results)
        if "growth" in only or not (only or options.quick):
            # On stores of their own: what the trials have written would leave no room on the disk.
            with fresh(directory / "growth") as folder, running(folder, pace) as bench:
                bench.warm_up([trial for trial in trials(ledgers=1) if trial.name == "add 1 KiB"])
                self.grown = run_curves(bench, folder, curves(ledgers_max=pace.ledgers))
        self.machine["load average after"] = os.getloadavg()[0]


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """A folder for the length of the block; kept after an error, for its logs."""
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def about() -> dict[str, str]:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": done.stdout.strip() or "unknown",
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
    }


def disk_gib(directory: Path) -> int:
    return shutil.disk_usage(directory).free >> 30


def accept(outcomes: list[Outcome]) -> None:
    known = json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else {}
    known |= {outcome.comparison.name: round(outcome.ratio, 3) for outcome in outcomes}
    ACCEPTED.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="within five minutes")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="trials with this name; growth for curves"
    )
    parser.add_argument("--directory", type=Path, help="where to put the stores (a real disk)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write the report")
    parser.add_argument("--accept", action="store_true", help="these ratios are the new measure")
    options = parser.parse_args()
    try:
        resolve_jars("4.18.0")
    except JavaPeerError as error:
        sys.exit(f"bench: {error}")
    directory = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=options.directory))
    free_gib, wanted_gib = disk_gib(directory), (QUICK if options.quick else FULL).disk_gib
    if free_gib < wanted_gib and not options.only:
        directory.rmdir()
        sys.exit(
            f"bench: {directory.parent} has {free_gib} GiB free, the stores may grow to "
            f"{wanted_gib}: make room, or name another disk with --directory"
        )
    run, code = Run(), 0
    try:
        run.go(directory, options)
        shutil.rmtree(directory, ignore_errors=True)
    except (LoadFailedError, BookieFailedToStartError) as error:
        tell(f"{error}\nfailed; what is known so far is reported, logs are in {directory}")
        code = 1
    accepted = json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else {}
    outcomes = judge(run.results, comparisons(), accepted)
    sys.stdout.write(table(outcomes, run.machine) + "\n")
    trouble = {
        "failed": "; ".join(run.results.failed) or "nothing",
        "rounds left out": "; ".join(run.results.left_out) or "none",
    }
    report = write_report(options.results, about() | trouble, run.machine, run.results, outcomes)
    if run.grown:
        axes = {curve.name: curve.axis for curve in curves(ledgers_max=FULL.ledgers)}
        write_curves(options.results, axes, run.grown)
    tell(f"written: {report}")
    if options.accept:
        accept(outcomes)
    return code


if __name__ == "__main__":
    sys.exit(main())
