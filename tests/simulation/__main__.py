"""`make simulate`: run seeds, tell how it goes, and on a failure what happened and how to see it.

make simulate SEEDS=1000            seeds 0..999, over JOBS processes
make simulate SEEDS=1000 FROM=5000  seeds 5000..5999
make simulate SEED=17               one seed, told as a story
make simulate RING=outer ...        the same in the outer ring, where a seed takes much longer
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.rings import RINGS, Failed, Report, Ring, run_seeds

#: Without a terminal there is a line after so many seconds.
LINE_SECONDS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--ring", choices=sorted(RINGS), default="inner")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, default=None, help="only this one, with its story")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    ring = RINGS[given.ring]
    console = Console(highlight=False, soft_wrap=True)
    if given.seed is not None:
        return _one(ring, given.seed, console)
    started = time.monotonic()
    ran, cpu_seconds, failures = 0, 0.0, []
    chunks = [
        range(at, min(at + ring.chunk, given.first + given.seeds))
        for at in range(given.first, given.first + given.seeds, ring.chunk)
    ]
    with _progress(console, given.seeds) as tell:
        for report in _reports(given.ring, chunks, given.jobs):
            ran += report.ran
            cpu_seconds += report.cpu_seconds
            tell(ran)
            if report.failures:
                failures = report.failures
                break
    seconds = time.monotonic() - started
    console.print(
        f"{ran} seeds of the {given.ring} ring in {seconds:.1f} s: {ran / seconds:.0f} seeds/s, "
        f"{ran / max(cpu_seconds, 1e-9):.0f} per second of processor time"
    )
    if failures:
        seed, failed = failures[0]
        _tell_failure(ring, seed, failed, console)
        return 1
    console.print("no invariant was violated")
    return 0


def _reports(ring: str, chunks: list[range], jobs: int) -> Iterator[Report]:
    if jobs <= 1:
        yield from map(partial(run_seeds, ring), chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(partial(run_seeds, ring), chunks)


class _progress:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._bar: Progress | None = None
        self._told = self._started = time.monotonic()

    def __enter__(self) -> Callable[[int], None]:
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("simulate"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[rate]} seeds/s"), TimeRemainingColumn(),
                console=self._console,
            )  # fmt: skip
            self._task = self._bar.add_task("seeds", total=self._total, rate="-")
            self._bar.start()
        return self._tell

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _tell(self, ran: int) -> None:
        now = time.monotonic()
        rate = f"{ran / (now - self._started):.0f}"
        if self._bar is not None:
            self._bar.update(self._task, completed=ran, rate=rate)
        elif now - self._told >= LINE_SECONDS:
            self._told = now
            self._console.print(f"{ran} of {self._total} seeds, {rate} seeds/s")


def _one(ring: Ring, seed: int, console: Console) -> int:
    failed = ring.failure_of_seed(seed)
    if failed is not None:
        _tell_failure(ring, seed, failed, console)
        return 1
    for line in ring.story_of_seed(seed):
        console.print(line, markup=False)
    console.print(f"seed {seed}: no invariant was violated")
    return 0


def _tell_failure(ring: Ring, seed: int, failed: Failed, console: Console) -> None:
    console.print(f"\nseed {seed} violates {failed.invariant}: {failed.what}", markup=False)
    title, story = ring.smallest_story(seed, failed)
    console.print(f"the least that still does: {title}\n", markup=False)
    for line in story:
        console.print(line, markup=False)
    console.print(f"\nreplay it with: make simulate{ring.argument} SEED={seed}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
