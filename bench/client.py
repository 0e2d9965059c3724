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
from pathlib import Path
from typing import Final

from bench.compare import Outcome, Results, Side, comparisons, judge, trials
from bench.compare_growth import curves
from bench.compare_growth import run as run_curves
from bench.compare_run import FULL, QUICK, running, tell
from bench.peers.jars import ROOT, JavaPeerError, resolve_jars
from bench.peers.machine import limits
from bench.report import table, write_curves, write_report

ACCEPTED: Final = ROOT / "bench" / "accepted.json"
RESULTS: Final = ROOT / "bench" / "results"


Grown = dict[str, dict[Side, dict[int, float]]]


def run(directory: Path, options: argparse.Namespace) -> tuple[Results, dict[str, float], Grown]:
    pace = QUICK if options.quick else FULL
    chosen = [
        trial
        for trial in trials(ledgers=pace.ledgers)
        if not options.only or any(word in trial.name for word in options.only)
    ]
    results = Results()
    machine = {"load average before": os.getloadavg()[0]} | limits(directory)
    with running(directory, pace) as bench:
        bench.warm_up(chosen)
        bench.run(chosen, results)
        bench.memory(results)
        if not options.only or "start" in options.only:
            bench.starts(results)
        wants_growth = "growth" in options.only if options.only else not options.quick
        chosen_curves = curves(ledgers_max=pace.ledgers) if wants_growth else []
        grown = run_curves(bench, directory, chosen_curves)
    machine["load average after"] = os.getloadavg()[0]
    return results, machine, grown


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
    try:
        results, machine, grown = run(directory, options)
    except BaseException:
        tell(f"failed; logs are in {directory}")
        raise
    shutil.rmtree(directory, ignore_errors=True)
    accepted = json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else {}
    outcomes = judge(results, comparisons(), accepted)
    sys.stdout.write(table(outcomes, machine) + "\n")
    report = write_report(options.results, about(), machine, results, outcomes)
    if grown:
        axes = {curve.name: curve.axis for curve in curves(ledgers_max=FULL.ledgers)}
        write_curves(options.results, axes, grown)
    tell(f"written: {report}")
    if options.accept:
        accept(outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
