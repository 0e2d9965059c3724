"""Fuzz one reader of bytes, guided by coverage, or a live bookie.

    python -m tests.fuzz                            the names of the targets
    python -m tests.fuzz frames_v2 --seconds 60     one of them; `all` for each in turn
    python -m tests.fuzz live --frames 10000000     a bookie and a well-behaved neighbour

What reaches new code is kept in tests/fuzz/corpus, as few and as short inputs as will do, and tried
again by `make test`. An input that breaks something is printed in hex, with the traceback; add it
to the corpus with its test.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.minimise import minimised


def fuzz(name: str, seconds: int, runs: int) -> int:
    target = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix="quire-fuzz-") as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number, data in enumerate([*target.seeds(), *target.kept()]):
            (corpus / f"{number:05}").write_bytes(data)
        command = [sys.executable, "-m", "tests.fuzz.guided", name, folder, str(seconds), str(runs)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        figures = [line for line in done.stderr.splitlines() if line.startswith("stat::")]
        print(f"{name}: {' '.join(' '.join(figures).replace('stat::', '').split())}")
        if done.returncode:
            print(done.stdout[-4000:], done.stderr[-2000:], sep="\n")
            for artefact in Path(folder).glob("*-*"):
                print(f"{artefact.name}: {artefact.read_bytes().hex()}")
            return 1
        found = minimised(target, (file.read_bytes() for file in corpus.iterdir()))
        target.keep(found)
        print(f"{name}: {len(found)} inputs kept, {sum(map(len, found)):,} bytes", flush=True)
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.split("\n")[0]
    )
    parser.add_argument("target", nargs="?", choices=[*TARGETS, "all", "live"], metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="how long for each target")
    parser.add_argument("--runs", type=int, default=0, help="or how many inputs")
    parser.add_argument("--frames", type=int, default=1_000_000, help="for the live bookie")
    parser.add_argument("--seed", type=int, default=0, help="for the live bookie")
    parser.add_argument("--http", action="store_true", help="attack its admin paths, too")
    parser.add_argument("--guarded", action="store_true", help="let it ask for a password")
    asked = parser.parse_args()
    if asked.target is None:
        print("\n".join((*TARGETS, "all", "live")))
        return 0
    if asked.target == "live":
        from tests.fuzz.live import run_live
        from tests.fuzz.live_site import Plan

        return run_live(
            Plan(frames=asked.frames, seed=asked.seed, http=asked.http, guarded=asked.guarded)
        )
    names = list(TARGETS) if asked.target == "all" else [asked.target]
    return max(fuzz(name, asked.seconds, asked.runs) for name in names)


if __name__ == "__main__":
    sys.exit(main())
