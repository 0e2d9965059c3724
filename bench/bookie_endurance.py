"""A bookie over time and among bad neighbours: memory that stays flat, a p99 that holds."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

from bench.bookie_crowd import COUNTS
from bench.bookie_subject import BookieProcess, quantile
from bench.engine import Figures

SAMPLE_SECONDS: Final = 30.0
#: Memory is flat if its last third is not above its middle third by more than this.
GROWTH_MIB_MAX: Final = 10.0
#: Adds of one generator run; then deletions, reads and the next run have their turn.
ADDS_PER_RUN: Final = 200_000
READS_PER_RUN: Final = 50_000
#: What an entry of 1 KiB takes of the disk.
ENTRY_BYTES: Final = 1100
#: Alone and beside the crowd in turn, so often: a busy moment hits both.
TURNS: Final = 3
NAMES: Final = {"idle": "connections", "deaf": "never-readers", "slow": "slow readers"}


@contextmanager
def crowd(bookie: BookieProcess, kind: str, ledger_id: int) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bookie_crowd", str(bookie.port), str(ledger_id), kind],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"READY\n":
            raise RuntimeError("the crowd did not gather")
        yield
    finally:
        process.communicate()


def beside_a_crowd(
    bookie: BookieProcess, figures: Figures, ledger_id: int, read_ledger_id: int, count: int
) -> None:
    """A well-behaved client's p99 while others sit there, never read or read slowly."""
    first = 0

    def p99_ms() -> float:
        nonlocal first
        found = bookie.run("neighbour", ledger=ledger_id, first=first, count=count, payload=1024)
        first += count
        return quantile(found["latencies"], 0.99) * 1e3

    for kind, number in COUNTS.items():
        alone, beside = [], []
        for _ in range(TURNS):
            alone.append(p99_ms())
            with crowd(bookie, kind, read_ledger_id):
                beside.append(p99_ms())
        name = f"neighbour beside {number:,} {NAMES[kind]}"
        figures.add(f"{name}: p99 alone", median(alone), "ms")
        figures.add(f"{name}: p99", median(beside), "ms")
        figures.add(f"{name}: p99, of alone", median(beside) / median(alone), "x", 2.0)
    figures.add("memory of the bookie after the crowds, at most", bookie.memory_mib(), "MiB")


def sustained(
    bookie: BookieProcess, figures: Figures, ledger_id: int, minutes: float, disk_bytes: int
) -> None:
    """Adds and reads, as fast as fits into that much of the disk; resident memory every half
    minute.
    """
    ended = threading.Event()
    samples: list[float] = []

    def watch() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            samples.append(bookie.resident_mib())
            figures.add(f"resident after {len(samples) * SAMPLE_SECONDS:.0f} s", samples[-1], "MiB")

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    added = 0
    try:
        while time.monotonic() - began < minutes * 60:
            bookie.run("add_v2", ledger=ledger_id, first=added, count=ADDS_PER_RUN, payload=1024)
            bookie.run("read", ledger=ledger_id, first=added, count=READS_PER_RUN, payload=1024)
            added += ADDS_PER_RUN
            due = minutes * 60 * added * ENTRY_BYTES / disk_bytes
            time.sleep(max(0.0, began + due - time.monotonic()))
    finally:
        ended.set()
        watcher.join()
    figures.add("entries added", added / 1e6, "million")
    figures.add("memory of the bookie, at most", bookie.memory_mib(), "MiB", 220.0)
    third = len(samples) // 3
    if third:
        growth = max(samples[-third:]) - max(samples[third : 2 * third])
        figures.add("resident, last third above the middle one", growth, "MiB", GROWTH_MIB_MAX)
