"""What a bookie does: a real process, real sockets, real files, a real ZooKeeper, flush on.

    python -m bench.bookie [--quick] [--minutes N] [--directory D] [--json F]

The load comes from another process (`bench.bookie_load`). Adds run until the write cache has turned
ten times. CPU is that of the bookie's process, by thread, as the kernel counts it; the journal's
preparer is reported and left out of the sums, because files are prepared once and then used again.
On a machine with two cores the generator and the journal share one of them, so rates depend on what
else runs: the load average is printed, and CPU per entry is the figure to trust.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from bench.bookie_endurance import beside_a_crowd, sustained
from bench.bookie_load import ENTRY_HEAD_BYTES
from bench.bookie_subject import START_SECONDS, BookieProcess, bookie_process, quantile
from bench.engine import Figures
from bookie.storage.engine_values import EngineOptions
from metadata.cluster import init_new_cluster
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import LocalZookeeper, free_port
from wire.build_v2 import read_requests

WARM_UP_ENTRIES: Final = 600_000  # of 1 KiB: enough to make all journal files
LEDGERS: Final = 10_000
PREPARER: Final = "journal-prepare"  # the kernel keeps 15 characters of a name

BATCH_LEDGER, PLAIN_LEDGER, V3_LEDGER, SINGLE_LEDGER, NEIGHBOUR_LEDGER = 1, 2, 3, 4, 5
FIRST_OF_MANY = 100


class Report:
    """Turns what a run found into figures."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures

    def rate(self, name: str, found: dict[str, Any], count: int, payload: int,
             goal: float | None = None) -> float:  # fmt: skip
        rate: float = count / found["seconds"]
        add = self.figures.add
        add(f"{name}: rate", rate, "entries/s", goal, least=True)
        add(f"{name}: rate", rate * (payload + ENTRY_HEAD_BYTES) / 1e6, "MB/s")
        for share in ("50", "99", "99.9"):
            value = quantile(found["latencies"], float(share) / 100)
            add(f"{name}: latency, p{share}", value * 1e3, "ms")
        return rate

    def cpu(self, name: str, found: dict[str, Any], count: int, goal: float | None = None) -> None:
        total = 0.0
        for thread, seconds in sorted(found["cpu"].items()):
            if seconds / count > 2e-8:
                self.figures.add(f"{name}: CPU, {thread}", seconds / count * 1e6, "us")
            if thread != PREPARER:
                total += seconds
        self.figures.add(f"{name}: CPU in all", total / count * 1e6, "us", goal)
        self.figures.add(f"{name}: CPU of the generator", found["cpu_seconds"] / count * 1e6, "us")

    def journal(self, name: str, found: dict[str, Any]) -> None:
        syncs = max(1, found["syncs"])
        self.figures.add(f"{name}: syncs", found["syncs"] / found["seconds"], "1/s")
        self.figures.add(f"{name}: bytes per sync", found["journal_bytes"] / syncs / 1024, "KiB")
        self.figures.add(f"{name}: worst lag of the loop", found["lag_ms"], "ms", 5.0)


def measure(bookie: BookieProcess, figures: Figures, directory: Path, scale: float) -> int:
    """Everything that one life of a bookie shows; entries of the ledger that was left open."""
    report = Report(figures)
    turns = int(10 * EngineOptions().write_cache_bytes * scale)
    count = _round(turns // 1060, 100)
    warm = int(WARM_UP_ENTRIES * min(1.0, 3 * scale)) // 100 * 100
    bookie.run("add_v2", ledger=PLAIN_LEDGER, first=0, count=warm, payload=1024)
    rate = adds(bookie, report, warm, count, _round(turns // 136, 1000))
    one_outstanding(bookie, figures, directory, int(max(300, 3000 * scale)))
    reads(bookie, report, min(count, 200_000))
    many_ledgers(bookie, report, _round(count, LEDGERS), rate)
    figures.add("memory of the bookie, at most", bookie.memory_mib(), "MiB", 220.0)
    beside_a_crowd(bookie, figures, NEIGHBOUR_LEDGER, PLAIN_LEDGER, int(max(2000, 10_000 * scale)))
    return warm + count


def adds(bookie: BookieProcess, report: Report, warm: int, count: int, batched: int) -> float:
    """Adds of every protocol; the rate of v2's."""
    name = "v2 adds 1 KiB"
    found = bookie.run("add_v2", ledger=PLAIN_LEDGER, first=warm, count=count, payload=1024)
    rate = report.rate(name, found, count, 1024, 100_000)
    report.cpu(name, found, count, 6.0)
    report.journal(name, found)
    name = "ADD_BATCH 100 B"
    found = bookie.run("add_batches", ledger=BATCH_LEDGER, first=0, count=batched, payload=100)
    report.rate(name, found, batched, 100, 400_000)
    report.cpu(name, found, batched, 2.0)
    report.journal(name, found)
    name = "v3 adds 1 KiB"
    count = _round(count // 3, 100)
    found = bookie.run("add_v3", ledger=V3_LEDGER, first=0, count=count, payload=1024)
    report.rate(name, found, count, 1024)
    report.cpu(name, found, count, 10.0)
    report.journal(name, found)
    return rate


def one_outstanding(bookie: BookieProcess, figures: Figures, directory: Path, count: int) -> None:
    found = bookie.run("add_singly", ledger=SINGLE_LEDGER, first=0, count=count, payload=1024,
                       directory=str(directory))  # fmt: skip
    for share, slack in ((0.5, 0.25), (0.99, 2.0)):
        disk, add = (quantile(found[key], share) * 1e3 for key in ("disk", "latencies"))
        figures.add(f"disk: durable write of 4 KiB, p{share * 100:g}", disk, "ms")
        figures.add(f"1 outstanding: p{share * 100:g}", add, "ms", round(disk + slack, 3))


def reads(bookie: BookieProcess, report: Report, count: int) -> None:
    """Each twice: the first round brings the logs into the page cache."""
    name = "sequential reads, page cache"
    for _ in range(2):
        found = bookie.run("read", ledger=PLAIN_LEDGER, first=0, count=count, payload=1024)
    report.rate(name, found, count, 1024, 250_000)
    report.cpu(name, found, count)
    name = "batch reads, page cache"
    for _ in range(2):
        found = bookie.run("read_batches", ledger=PLAIN_LEDGER, first=0, count=count, payload=1024)
    report.rate(name, found, count, 1024, 800_000)
    report.cpu(name, found, count)


def many_ledgers(bookie: BookieProcess, report: Report, count: int, plain_rate: float) -> None:
    name = "10,000 ledgers"
    found = bookie.run("add_many_ledgers", ledger=FIRST_OF_MANY, ledgers=LEDGERS, first=0,
                       count=count, payload=1024)  # fmt: skip
    rate = report.rate(name, found, count, 1024)
    report.cpu(name, found, count)
    report.journal(name, found)
    report.figures.add(f"{name}: rate, of one ledger's", rate / plain_rate, "x", 0.8, least=True)


def _round(count: int, unit: int) -> int:
    return max(unit, count // unit * unit)


def restart(conf: Path, port: int, figures: Figures, first: int) -> None:
    """How long a start takes when a kill left everything to the journal."""
    with bookie_process(conf, port) as bookie:
        bookie.run("add_v2", ledger=PLAIN_LEDGER, first=first, count=80_000, payload=1024)
        bookie.process.kill()
        bookie.process.wait()
    started = time.perf_counter()
    with serving_since(port) as served, bookie_process(conf, port):
        took = time.perf_counter() - started
    name = "start after kill -9, 80,000 adds to replay"
    figures.add(f"{name}: until it serves", served[0] - started, "s", 5.0)
    figures.add(f"{name}: until it is registered", took, "s", 5.0)


@contextmanager
def serving_since(port: int) -> Iterator[list[float]]:
    """When the first read was answered, once the block has ended."""
    found: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not found and not ended.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), START_SECONDS) as connection,
            ):
                connection.sendall(read_requests([0], ledger_id=PLAIN_LEDGER))
                if connection.recv(64):
                    found.append(time.perf_counter())
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()


async def _new_cluster(uri: str) -> None:
    parsed = parse_metadata_uri(uri)
    async with open_store(parsed) as store:
        await init_new_cluster(store, parsed, chance=random.Random())


@contextmanager
def new_bookie(directory: Path) -> Iterator[tuple[Path, int]]:
    """The configuration and the port of a bookie that was never started, in a new cluster."""
    (directory / "zookeeper").mkdir()
    with LocalZookeeper(directory / "zookeeper") as zookeeper:
        uri = f"zk://{zookeeper.address}/ledgers"
        trio.run(_new_cluster, uri)
        port = free_port()
        conf = directory / "bk_server.conf"
        settings = {
            "metadataServiceUri": uri,
            "journalDirectories": directory / "journal",
            "ledgerDirectories": directory / "ledgers",
            "bookiePort": port,
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            "quire_reserveMb": 0,
        }
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        yield conf, port


def run(figures: Figures, directory: Path, scale: float) -> None:
    figures.add("load average before", os.getloadavg()[0], "")
    with new_bookie(directory) as (conf, port):
        with bookie_process(conf, port) as bookie:
            written = measure(bookie, figures, directory, scale)
        restart(conf, port, figures, written)
    figures.add("load average after", os.getloadavg()[0], "")


def run_for_minutes(figures: Figures, directory: Path, minutes: float) -> None:
    with new_bookie(directory) as (conf, port), bookie_process(conf, port) as bookie:
        free_bytes = shutil.disk_usage(directory).free
        sustained(bookie, figures, PLAIN_LEDGER, minutes, disk_bytes=free_bytes // 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one cache turn instead of ten")
    parser.add_argument(
        "--minutes", type=float, help="add for so long instead, and see whether memory stays flat"
    )
    parser.add_argument("--directory", type=Path, help="where to put the stores (a real disk)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=options.directory))
    figures = Figures()
    try:
        if options.minutes:
            run_for_minutes(figures, directory, options.minutes)
        else:
            run(figures, directory, 0.1 if options.quick else 1.0)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        figures.print_goals()
    if options.json:
        names = ("name", "value", "unit", "goal", "least")
        rows = [dict(zip(names, row, strict=True)) for row in figures.rows]
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
