"""What a bookie does: a real process, real sockets, real files, a real ZooKeeper, flush on.

    python -m bench.bookie [--quick] [--directory D] [--json F]

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
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from bench.bookie_load import ENTRY_HEAD_BYTES
from bench.engine import Figures
from bookie.storage.engine_values import EngineOptions
from metadata.cluster import init_new_cluster
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import LocalZookeeper, free_port
from wire.build_v2 import read_requests

START_SECONDS: Final = 120.0
WARM_UP_ENTRIES: Final = 600_000  # of 1 KiB: enough to make all journal files
LEDGERS: Final = 10_000
PREPARER: Final = "journal-prepare"  # the kernel keeps 15 characters of a name

BATCH_LEDGER, PLAIN_LEDGER, V3_LEDGER, SINGLE_LEDGER, FIRST_OF_MANY = 1, 2, 3, 4, 100


class BookieProcess:
    """The bookie under test, as its operator sees it, and what it tells about itself."""

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket, port: int) -> None:
        self.process = process
        self.port = port
        self._line = line

    @property
    def pid(self) -> int:
        return self.process.pid

    def statistics(self) -> dict[str, float]:
        self._line.send(b"?")
        data = b""
        while not data.endswith(b"\n"):
            chunk = self._line.recv(4096)
            if not chunk:
                raise RuntimeError("the bookie has ended; its log says why")
            data += chunk
        found: dict[str, float] = json.loads(data)
        return found

    def cpu(self) -> dict[str, float]:
        """Seconds by name of thread; threads of one name count together."""
        found: dict[str, float] = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                name = (task / "comm").read_text().strip()
                seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
            except OSError:
                continue  # ended meanwhile
            name = "loop" if int(task.name) == self.pid else name
            found[name] = found.get(name, 0.0) + seconds
        return found

    def memory_mib(self) -> float:
        """The most that was resident at any time."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("/proc does not tell VmHWM")

    def settle(self) -> None:
        """Until what was added has left the write cache, but for the newest part of it."""
        while self.statistics()["generations_waiting"] > 0:
            time.sleep(0.05)

    def run(self, kind: str, **job: object) -> dict[str, Any]:
        """Run the load generator; what it found, and what that cost the bookie."""
        self.settle()
        before, cpu_before = self.statistics(), self.cpu()
        command = [sys.executable, "-m", "bench.bookie_load", str(self.port)]
        output = subprocess.run(
            [*command, json.dumps({"kind": kind, **job})], check=True, stdout=subprocess.PIPE
        ).stdout
        found: dict[str, Any] = json.loads(output)
        during = self.statistics()
        self.settle()
        cpu_after, after = self.cpu(), self.statistics()
        found["cpu"] = {name: cpu_after[name] - cpu_before.get(name, 0.0) for name in cpu_after}
        found["syncs"] = during["syncs"] - before["syncs"]
        found["journal_bytes"] = during["journal_bytes"] - before["journal_bytes"]
        found["lag_ms"] = max(during["loop_lag_worst_ms"], after["loop_lag_worst_ms"])
        return found


@contextmanager
def bookie_process(conf: Path, port: int) -> Iterator[BookieProcess]:
    ours, theirs = socket.socketpair()
    log = conf.with_suffix(".log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.bookie_process", str(conf), str(theirs.fileno())],
            stdout=output, stderr=output, pass_fds=(theirs.fileno(),),
        )  # fmt: skip
    theirs.close()
    try:
        ours.settimeout(START_SECONDS)
        if ours.recv(6) != b"READY\n":
            raise RuntimeError(f"the bookie did not start:\n{log.read_text()}")
        yield BookieProcess(process, ours, port)
    finally:
        ours.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


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
    # The registration of the life before stays until ZooKeeper gives up on its session.
    figures.add(f"{name}: until it is registered", took, "s")


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


def run(figures: Figures, directory: Path, scale: float) -> None:
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
        figures.add("load average before", os.getloadavg()[0], "")
        with bookie_process(conf, port) as bookie:
            written = measure(bookie, figures, directory, scale)
        restart(conf, port, figures, written)
        figures.add("load average after", os.getloadavg()[0], "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one cache turn instead of ten")
    parser.add_argument("--directory", type=Path, help="where to put the stores (a real disk)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=options.directory))
    figures = Figures()
    try:
        run(figures, directory, 0.1 if options.quick else 1.0)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        names = ("name", "value", "unit", "goal", "least")
        rows = [dict(zip(names, row, strict=True)) for row in figures.rows]
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
