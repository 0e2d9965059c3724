"""How long a bookie with many ledgers takes to start: after a clean stop, and after a kill.

    python -m bench.start [--ledgers N] [--directory D] [--json F]

A real bookie gets an entry for each of a million ledgers over a socket, and more of one ledger
before it is killed, so that its caches are full. Every start is timed from the outside, until the
first read is answered; opening the store is timed once more by itself. The page cache is warm: on
cold disks add the time to read the index, which the figures name.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from bench.bookie import FIRST_OF_MANY, PLAIN_LEDGER, new_bookie, serving_since
from bench.bookie_subject import BookieProcess, bookie_process
from bench.engine import Bench, Figures
from runtime.process import tune_for_serving

LEDGERS: Final = 1_000_000
PAYLOAD_BYTES: Final = 100
UNFLUSHED: Final = 80_000  # entries of 1 KiB: what the write cache holds


def resident_mib(pid: int | str = "self") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc does not tell VmRSS")


def open_alone(directory: Path) -> None:
    """In a process of its own: open the store, say what that took, and end cleanly."""
    started, cpu = time.perf_counter(), time.process_time()
    bench = Bench(directory)
    tune_for_serving()
    found = {
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "mib": resident_mib(),
    }

    async def end() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.workers.run)
            await bench.close()
            nursery.cancel_scope.cancel()

    trio.run(end)
    bench.workers.stop()
    bench.store.finish_close()
    json.dump(found, sys.stdout)


def start(conf: Path, port: int, figures: Figures, name: str, goal: float, *, kill: bool) -> None:
    """One start of the process, from nothing until it serves; ended as the next one wants it."""
    started = time.perf_counter()
    with serving_since(port) as served, bookie_process(conf, port) as bookie:
        took = time.perf_counter() - started
        figures.add(f"{name}: memory then", resident_mib(bookie.pid), "MiB")
        if kill:
            _fill(bookie)
            bookie.process.kill()
            bookie.process.wait()
    figures.add(f"{name}: until it serves", served[0] - started, "s", goal)
    # The registration of a killed life stays until ZooKeeper gives up on its session.
    figures.add(f"{name}: until it is registered", took, "s")


def _fill(bookie: BookieProcess) -> None:
    """As many adds as the caches hold, and no time for them to be flushed."""
    job = {"kind": "add_v2", "ledger": PLAIN_LEDGER, "first": 0, "count": UNFLUSHED,
           "payload": 1024}  # fmt: skip
    command = [sys.executable, "-m", "bench.bookie_load", str(bookie.port), json.dumps(job)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run(figures: Figures, directory: Path, ledgers: int) -> None:
    with new_bookie(directory) as (conf, port):
        with bookie_process(conf, port) as bookie:
            found = bookie.run("add_many_ledgers", ledger=FIRST_OF_MANY, ledgers=ledgers, first=0,
                               count=ledgers, payload=PAYLOAD_BYTES)  # fmt: skip
        figures.add("ledgers", ledgers, "")
        figures.add("adds, one to each: rate", ledgers / found["seconds"], "entries/s")
        tables = (directory / "ledgers" / "current" / "index").rglob("*.sst")
        figures.add("index", sum(table.stat().st_size for table in tables) / 2**20, "MiB")
        opened = json.loads(
            subprocess.run(
                [sys.executable, "-m", "bench.start", "--open", str(directory)],
                check=True,
                stdout=subprocess.PIPE,
            ).stdout
        )
        figures.add("open_store alone, after a clean stop", opened["seconds"], "s")
        figures.add("open_store alone: CPU", opened["cpu"], "s")
        figures.add("open_store alone: memory then", opened["mib"], "MiB")
        start(conf, port, figures, "start after a clean stop", 10.0, kill=True)
        start(conf, port, figures, "start after kill -9 with full caches", 5.0, kill=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledgers", type=int, default=LEDGERS, help="how many, by the hundred")
    parser.add_argument("--directory", type=Path, help="where to put the store (a real disk)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        open_alone(options.open)
        return
    directory = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=options.directory))
    figures = Figures()
    try:
        run(figures, directory, max(100, options.ledgers // 100 * 100))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        names = ("name", "value", "unit", "goal", "least")
        rows = [dict(zip(names, row, strict=True)) for row in figures.rows]
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
