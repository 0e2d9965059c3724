"""What the storage engine costs: one process, no network, real files, RocksDB, flush on.

    python -m bench.engine [--quick] [--directory D] [--json F]

Adds run until the write cache has turned ten times. CPU is that of the engine: the load is built
in the same thread, and its time is taken off. Figures stand beside what this machine's disk and
memory do in the same run; on a busy machine trust their relation, not the digits.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import trio

from bench.engine_load import Load
from bench.engine_stalls import LONG_SECONDS, EmptyLoop, Stalls, StallWatch
from bookie.core.compaction import Kind
from bookie.storage.engine import Engine
from bookie.storage.engine_values import EngineCallbacks, EngineOptions
from bookie.storage.index import open_index
from bookie.storage.reads import Batch, Cold
from bookie.storage.start import Shell, Store, StoreOptions, open_store
from runtime.files import OSFileSystem
from runtime.process import tune_for_serving
from runtime.workers import ThreadWorkers
from wire.framing import FrameBuffer
from wire.scan_v2 import AddBatch, AddMix, AddRun, scan_requests

OUTSTANDING_BUFFERS = 16
TICK_SECONDS = 1.0  # as a bookie
WARM_UP_BYTES = 640 << 20


@dataclass
class Figures:
    rows: list[tuple[str, float, str, float | None, bool]] = field(default_factory=list)

    def add(
        self, name: str, value: float, unit: str, goal: float | None = None, *, least: bool = False
    ) -> None:
        """`goal` is the most that is wanted, or with `least` the least."""
        self.rows.append((name, value, unit, goal, least))
        wanted = "" if goal is None else f"  {verdict(value, goal, least=least)}"
        sys.stdout.write(f"  {name:<52} {value:>12,.2f} {unit:<14}{wanted}\n")
        sys.stdout.flush()

    def add_stalls(self, name: str, loop: Stalls, empty: Stalls) -> None:
        """The engine's loop, and beside it what the machine did to a loop that does nothing."""
        for who, stalls, goal in (
            (f"{name}: ", loop, LONG_SECONDS * 1e3),
            (f"{name}, machine: ", empty, None),
        ):
            whose = "the loop" if stalls is loop else "an empty loop"
            self.add(f"{who}worst stall of {whose}", stalls.worst.seconds * 1e3, "ms", goal)
            sys.stdout.write(f"    {stalls.worst}\n")
            self.add(f"{who}stalls of {whose}, p99.9", stalls.p999 * 1e3, "ms")
            self.add(f"{who}stalls above {LONG_SECONDS * 1e3:g} ms", stalls.long_per_minute, "/min")

    def print_goals(self) -> None:
        """Once more what has a goal, as a table."""
        judged = [row for row in self.rows if row[3] is not None]
        if not judged:
            return
        lines = [f"\n  {'figure':<60} {'reached':>12} {'unit':<12} goal\n"]
        missed = 0
        for name, value, unit, goal, least in judged:
            assert goal is not None
            said = verdict(value, goal, least=least)
            missed += said.endswith("MISSED")
            lines.append(f"  {name:<60} {value:>12,.2f} {unit:<12} {said}\n")
        lines.append(f"  {len(judged) - missed} of {len(judged)} goals met\n")
        sys.stdout.write("".join(lines))


def verdict(value: float, goal: float, *, least: bool) -> str:
    met = value >= goal if least else value <= goal
    return f"{'>=' if least else '<='} {goal:>9,g}: {'met' if met else 'MISSED'}"


class Bench:
    """An open store on real files, driven as a server would drive it."""

    def __init__(
        self,
        directory: Path,
        options: EngineOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self._ticked_at = 0.0
        self.workers = ThreadWorkers()
        self.durable = 0
        self.stalls = StallWatch()
        self.store: Store = open_store(
            [str(directory / "journal")],
            [str(directory / "ledgers")],
            Shell(files=OSFileSystem(), open_index=open_index, workers=self.workers, clock=clock),
            StoreOptions(engine=options or EngineOptions()),
            EngineCallbacks(on_durable=self._on_durable),
            on_journal_failure=_fail,
        )

    @property
    def engine(self) -> Engine:
        return self.store.engine

    def _on_durable(self, tokens: list[object]) -> None:
        self.durable += len(tokens)

    async def add(self, load: Load, count: int) -> Added:
        """Add at least `count` entries, and wait until all of them are in entry logs."""
        engine = self.engine
        self.durable = committed = added = 0
        building = 0.0
        before = _cpu(self.workers)
        io_before = _written_bytes()
        started = time.perf_counter()
        while added < count:
            building_from = time.thread_time()
            data = load.buffer()
            building += time.thread_time() - building_from
            frames = FrameBuffer()
            frames.feed(data)
            for item in scan_requests(frames):
                if isinstance(item, AddRun):
                    engine.add_run(item)
                elif isinstance(item, AddMix):
                    engine.add_mix(item)
                else:
                    assert isinstance(item, AddBatch)
                    engine.add_batch(item)
            engine.commit(None)
            committed += 1
            added += load.per_buffer
            await trio.lowlevel.checkpoint()
            while engine.is_full or committed - self.durable >= OUTSTANDING_BUFFERS:
                await trio.sleep(0.0005)
                self._tick()
        await self.settle(committed)
        seconds = time.perf_counter() - started
        after = _cpu(self.workers)
        cpu = {name: after[name] - before.get(name, 0.0) for name in after}
        cpu["loop"] -= building
        written = _written_bytes() - io_before
        return Added(added, seconds, cpu, written)

    def _tick(self) -> None:
        """As often as a server does: a tick wakes threads, and these want the GIL."""
        self.engine.free_some()
        now = time.monotonic()
        if now - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = now
            self.engine.tick()

    async def settle(self, committed: int = 0) -> None:
        """Until everything is durable and checkpointed."""
        self.engine.checkpoint()
        while self.durable < committed or self.engine.statistics().generations_waiting:
            await trio.sleep(0.001)
            self._tick()
        while self.engine.free_some():  # noqa: ASYNC110 - nothing announces it, and it is short
            await trio.sleep(0.0001)

    async def close(self) -> None:
        closed = trio.Event()
        self.engine.close(closed.set)
        await closed.wait()


@dataclass
class Added:
    entries: int
    seconds: float
    cpu: dict[str, float]  # seconds by thread; "loop" without building the load
    written_bytes: int

    @property
    def cpu_us(self) -> float:
        """Steady state: files are prepared once and then recycled, so the preparer is apart."""
        total = sum(cpu for name, cpu in self.cpu.items() if name != "journal-preparer")
        return total / self.entries * 1e6


def _cpu(workers: ThreadWorkers) -> dict[str, float]:
    cpu = {worker.name: worker.cpu_seconds for worker in workers.statistics().workers}
    return cpu | {"loop": time.thread_time()}


def _written_bytes() -> int:
    """What this process passed to write calls, RocksDB's included.

    Not `write_bytes`: where the page cache works in large folios, a small write at a border counts
    as a large one there.
    """
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/io does not tell wchar")


def _fail(error: Exception) -> None:
    raise error


@contextmanager
def thread_cpu() -> Iterator[list[float]]:
    taken: list[float] = []
    started = time.thread_time()
    yield taken
    taken.append(time.thread_time() - started)


def machine(figures: Figures, directory: Path) -> None:
    """What the disk and the memory do by themselves."""
    path = directory / "baseline"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    page = os.urandom(4096)
    os.pwrite(fd, bytes(1 << 20), 0)
    took = []
    for n in range(100):
        started = time.perf_counter()
        os.pwrite(fd, page, (n % 256) * 4096)
        took.append(time.perf_counter() - started)
    figures.add("disk: durable write of 4 KiB, p50", median(took) * 1e6, "us")
    block = os.urandom(1 << 20)
    started = time.perf_counter()
    for n in range(64):
        os.pwrite(fd, block, n << 20)
    figures.add("disk: durable writes of 1 MiB", 64 / (time.perf_counter() - started), "MiB/s")
    os.close(fd)
    path.unlink()
    source = bytes(64 << 20)
    started = time.perf_counter()
    for _ in range(4):
        bytearray(source)
    figures.add("memory: copy", 256 / (time.perf_counter() - started), "MiB/s")


async def adds(bench: Bench, figures: Figures, name: str, load: Load, count: int) -> Added:
    added = await bench.add(load, count)
    figures.add(f"{name}: rate", added.entries / added.seconds, "entries/s")
    for thread, seconds in sorted(added.cpu.items()):
        if seconds / added.entries > 2e-8:
            figures.add(f"{name}: CPU, {thread}", seconds / added.entries * 1e6, "us")
    return added


def reads(bench: Bench, figures: Figures, load: Load, count: int) -> None:
    engine = bench.engine
    count = min(count, load.next_entry[0])
    for _ in range(2):  # the first round brings the logs into the page cache
        with thread_cpu() as taken:
            for first in range(0, count, 250):
                answers = engine.read_run(1, range(first, min(first + 250, count)))
                for answer in answers:
                    if not isinstance(answer, bytes):
                        _warm(bench, answer)
    figures.add("sequential read, page cache: CPU", taken[0] / count * 1e6, "us", 1.0)
    with thread_cpu() as taken:
        first = 0
        while first < count:
            found = engine.read_batch(1, first, count_max=1000, bytes_max=1 << 20)
            if isinstance(found, Batch):
                first += found.entry_count
            else:
                _warm(bench, found)
    figures.add("batch read, page cache: CPU", taken[0] / count * 1e6, "us", 0.5)


def _warm(bench: Bench, found: object) -> None:
    assert isinstance(found, Cold), found
    fetched: list[bool] = []
    bench.engine.fetch(found, lambda: fetched.append(True))
    while not fetched:
        time.sleep(0.0005)
        bench.workers.run_pending()


async def run(figures: Figures, directory: Path, scale: float, empty: EmptyLoop) -> None:
    machine(figures, directory)
    tune_for_serving()
    turns = int(10 * EngineOptions().write_cache_bytes * scale)
    kib = turns // 1124
    plain = await session(figures, directory / "plain", "1 KiB", 1024, 1, kib, empty)
    figures.add("1 KiB adds: CPU in all", plain.cpu_us, "us", 4.0)
    figures.add("1 KiB adds: written per byte added",
                plain.written_bytes / (plain.entries * 1060), "x", 2.3)  # fmt: skip
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures.add("memory of the process, at most", rss, "MiB", 200.0)
    batch = await session(
        figures, directory / "batch", "100 B batches", 100, 1, turns // 140, batches=True
    )
    figures.add("100 B batches: CPU in all", batch.cpu_us, "us", 1.0)
    hundred = await session(figures, directory / "hundred", "100 ledgers", 1024, 100, kib)
    index_bytes = _tree_bytes(directory / "hundred" / "ledgers" / "current" / "index")
    figures.add("100 ledgers: index", index_bytes / hundred.entries, "bytes/entry", 3.0)
    many = await session(figures, directory / "many", "10,000 ledgers", 1024, 10_000, kib, empty)
    figures.add("10,000 ledgers: CPU in all", many.cpu_us, "us")
    figures.add("10,000 ledgers: rate, of one ledger's",
                (many.entries / many.seconds) / (plain.entries / plain.seconds), "x", 0.8,
                least=True)  # fmt: skip
    await garbage(figures, directory / "garbage", empty)
    replay(figures, directory / "replay", 225_000)


async def session(
    figures: Figures, directory: Path, name: str, payload_bytes: int, ledgers: int, count: int,
    empty: EmptyLoop | None = None, *, batches: bool = False,
) -> Added:  # fmt: skip
    """One store: adds, and for one ledger of ordinary adds also reads."""
    load = Load(payload_bytes=payload_bytes, ledger_count=ledgers, batches=batches)
    bench = Bench(directory)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        nursery.start_soon(bench.stalls.run)
        # Steady state: journal files are made once and then used again, so make them first.
        await bench.add(load, WARM_UP_BYTES // (payload_bytes + 64))
        await begin_watch(bench, empty)
        added = await adds(bench, figures, name, load, count)
        end_watch(figures, name, bench, empty)
        if ledgers == 1 and not batches:
            reads(bench, figures, load, 100_000)
        await bench.close()
        nursery.cancel_scope.cancel()
    bench.workers.stop()
    bench.store.finish_close()
    return added


async def begin_watch(bench: Bench, empty: EmptyLoop | None) -> None:
    if empty is not None:
        empty.take()
        await trio.sleep(0.01)  # asking held the loop up, which does not count
        bench.stalls.reset()


def end_watch(figures: Figures, name: str, bench: Bench, empty: EmptyLoop | None) -> None:
    if empty is not None:
        stalls = bench.stalls.stalls()
        figures.add_stalls(name, stalls, empty.take())


async def garbage(figures: Figures, directory: Path, empty: EmptyLoop) -> None:
    """Drop most ledgers and compact what they leave, while adds go on."""
    options = EngineOptions(log_bytes=32 << 20)
    bench = Bench(directory, options)
    load = Load(payload_bytes=1024, ledger_count=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        nursery.start_soon(bench.stalls.run)
        await bench.add(load, 200_000)
        upkeep = bench.engine.upkeep
        before = upkeep.statistics()[0]
        await begin_watch(bench, empty)
        bench.engine.drop(range(1, 71), time.time_ns() // 1_000_000)
        cpu = _cpu(bench.workers)["garbage-0"]
        for kind in (None, Kind.MAJOR):
            if kind is not None:
                upkeep.compact(kind)
            while True:
                await bench.add(load, 2_000)
                if upkeep.is_idle:
                    break
        after = upkeep.statistics()[0]
        cpu = _cpu(bench.workers)["garbage-0"] - cpu
        figures.add("garbage: reclaimed", (after.bytes_reclaimed - before.bytes_reclaimed) / 2**20,
                    "MiB")  # fmt: skip
        figures.add("garbage: copied by compaction", after.bytes_copied / 2**20, "MiB")
        figures.add("garbage: CPU", cpu, "s")
        end_watch(figures, "garbage and compaction", bench, empty)
        await bench.close()
        nursery.cancel_scope.cancel()
    bench.workers.stop()
    bench.store.finish_close()


def replay(figures: Figures, directory: Path, count: int) -> None:
    """Start on a journal that was never checkpointed, as after a kill."""
    script = (
        "import sys, trio; from pathlib import Path; from bench.engine import leave_journal; "
        "trio.run(leave_journal, Path(sys.argv[1]), int(sys.argv[2]))"
    )
    if os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", script, str(directory),
                 str(count)) != 9:  # fmt: skip
        raise RuntimeError("the process that fills the journal did not end as it should")
    # No checkpoint on the way, and a clock of CPU time: replay alone.
    options = EngineOptions(generation_bytes=1 << 40, write_cache_bytes=1 << 42)
    bench = Bench(directory, options, clock=time.thread_time)
    replayed = bench.store.replayed
    figures.add("replay: CPU", replayed.seconds / max(1, replayed.entries) * 1e6, "us", 2.0)
    bench.workers.stop()
    bench.store.abandon()


async def leave_journal(directory: Path, count: int) -> None:
    """Fill the journal with adds and die without a checkpoint."""
    options = EngineOptions(generation_bytes=1 << 40, write_cache_bytes=1 << 42)
    bench = Bench(directory, options)
    load = Load(payload_bytes=1024, ledger_count=1)
    committed = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.workers.run)
        while load.next_entry[0] < count:
            frames = FrameBuffer()
            frames.feed(load.buffer())
            for item in scan_requests(frames):
                assert isinstance(item, AddRun)
                bench.engine.add_run(item)
            bench.engine.commit(None)
            committed += 1
            await trio.lowlevel.checkpoint()
        while bench.durable < committed:  # noqa: ASYNC110 - likewise
            await trio.sleep(0.001)
        os._exit(9)


def _tree_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.sst"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one cache turn instead of ten")
    parser.add_argument("--directory", type=Path, help="where to put the stores (a real disk)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="quire-bench-", dir=options.directory))
    figures = Figures()
    empty = EmptyLoop()
    try:
        trio.run(run, figures, directory, 0.1 if options.quick else 1.0, empty)
    finally:
        empty.close()
        shutil.rmtree(directory, ignore_errors=True)
        figures.print_goals()
    if options.json:
        names = ("name", "value", "unit", "goal", "least")
        rows = [dict(zip(names, row, strict=True)) for row in figures.rows]
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
