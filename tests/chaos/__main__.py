"""`python -m tests.chaos --minutes N --seed S`: real processes under real faults."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.network import (
    INSIDE,
    NamespaceNetwork,
    Network,
    enter_namespaces,
    namespaces_permitted,
)


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    if INSIDE not in os.environ and not given.proxies and namespaces_permitted():
        enter_namespaces("tests.chaos", arguments)
    from tests.chaos.planner import ALL
    from tests.chaos.run import ChaosError, Settings, run_chaos

    if given.faults is not None and (strange := sorted(set(given.faults) - set(ALL))):
        _say(f"no fault is called {', '.join(strange)}: there are {', '.join(ALL)}")
        return 2
    folder = given.dir or Path(tempfile.mkdtemp(prefix="quire-chaos-"))
    settings = Settings(
        folder=folder.absolute(),
        seed=given.seed,
        seconds=given.minutes * 60,
        faults=given.faults,
        script=given.script or [],
        bookies=given.bookies,
        clients=given.clients,
        pace=given.pace,
        spark=given.spark if given.spark is not None else given.minutes >= 5,
        broken=given.broken,
        heal_seconds=given.heal_seconds,
    )
    network = _network()
    _say(f"NETWORK: faults by {network.kind}; {_cuts(network)}")
    _say(f"seed {given.seed}, {given.minutes:g} minutes, everything in {folder}")
    try:
        outcome = run_chaos(settings, network, _say)
    except ChaosError as error:
        _say(f"FAILED: {error}\nhistory, logs and disks are in {folder}; seed {given.seed}")
        return 1
    _say("\n" + outcome.figures.table())
    for line in outcome.odd:
        _say(f"ODD: {line}")
    if outcome.violations:
        for violation in outcome.violations:
            _say(f"VIOLATION: {violation}")
        _say(f"FAILED: history, logs and disks are in {folder}; seed {given.seed}")
        return 1
    _say("nothing was lost, and everything is whole")
    if given.dir is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _network() -> Network:
    if INSIDE in os.environ:
        return NamespaceNetwork()
    from tests.chaos.proxies import ProxyNetwork, guard_children

    guard_children()
    return ProxyNetwork()


def _cuts(network: Network) -> str:
    from tests.chaos.network import Cut

    missing = [cut.value for cut in Cut if cut not in network.cuts]
    return (
        f"NOT POSSIBLE HERE: {', '.join(missing)}" if missing else "every kind of cut is possible"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides every choice")
    parser.add_argument("--faults", type=lambda text: text.split(","), help="only these, by name")
    parser.add_argument("--script", type=lambda text: text.split(","), help="these come first")
    parser.add_argument("--dir", type=Path, help="keep history, logs and figures here")
    parser.add_argument("--bookies", type=int, default=5)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds between two batches")
    parser.add_argument(
        "--spark", action=argparse.BooleanOptionalAction, help="scans; by default from 5 minutes on"
    )
    parser.add_argument("--heal-seconds", type=float, default=600.0, help="a bound, no measure")
    parser.add_argument("--proxies", action="store_true", help="no namespaces, even if permitted")
    parser.add_argument("--broken", action="store_true", help="acknowledge before sync: must fail")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
