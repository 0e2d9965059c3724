"""When the disk stood still: it had work, and finished none of it for a while.

A virtual disk is held up by its host now and then, for 0.1 s and more, whatever is written to it.
Whoever measures the slowest hundredth has to know which of it was the disk. Watched from a process
of its own, which prints every stall as it ends: `python -m bench.disk_stalls FOLDER`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from bench.peers.jars import ROOT

#: Shorter pauses are a disk at work.
_STALL_SECONDS: Final = 0.03
_LOOK_SECONDS: Final = 0.005
#: Columns of a block device's `stat`.
_FINISHED: Final = (0, 4, 15)  # reads, writes, flushes
_IN_FLIGHT: Final = 8


class Stall(NamedTuple):
    """By `time.perf_counter`, which all processes of a machine share."""

    start: float
    end: float


class Look(NamedTuple):
    at: float
    finished: int
    in_flight: int


def stalls(looks: Iterable[Look]) -> Iterator[Stall]:
    """From the last look before it to the first behind it, so that none seems shorter than it was.

    A disk without work finishes nothing either; that is no stall.
    """
    start: float | None = None
    for before, look in pairwise(looks):
        if look.finished == before.finished and before.in_flight and look.in_flight:
            start = before.at if start is None else start
        elif start is not None:
            if look.at - start >= _STALL_SECONDS:
                yield Stall(start, look.at)
            start = None


def statistics_of(folder: Path) -> Path | None:
    """Where the kernel counts for the disk that a folder is on, if it is a disk of its own."""
    device = folder.stat().st_dev
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return path if path.exists() else None


def looks_at(path: Path) -> Iterator[Look]:
    with path.open() as file:
        while True:
            file.seek(0)
            columns = list(map(int, file.read().split()))
            finished = sum(columns[i] for i in _FINISHED if i < len(columns))
            yield Look(time.perf_counter(), finished, columns[_IN_FLIGHT])
            time.sleep(_LOOK_SECONDS)


@contextmanager
def watched(folder: Path) -> Iterator[list[Stall] | None]:
    """The stalls of the block are in the list when it has ended; None if nothing can be seen."""
    if statistics_of(folder) is None:
        yield None
        return
    found: list[Stall] = []
    command = [sys.executable, "-m", "bench.disk_stalls", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield found
        finally:
            process.terminate()
            assert process.stdout is not None
            for line in process.stdout:
                start, end = map(float, line.split())
                found.append(Stall(start, end))


def main() -> None:
    path = statistics_of(Path(sys.argv[1]))
    if path is None:
        sys.exit(f"bench: {sys.argv[1]} is not on a disk that the kernel counts for")
    for stall in stalls(looks_at(path)):
        sys.stdout.write(f"{stall.start} {stall.end}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
