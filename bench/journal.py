"""What does the journal cost, and how near is it to the device? `python -m bench.journal [dir]`.

Three figures, each beside its base line of the same run: the processor time of the journal thread
per 1 KiB add under load, the latency of one outstanding append against a bare durable 4 KiB write,
and the time replay takes per entry.
"""

from __future__ import annotations

import ctypes
import select
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from bookie.storage.journal_options import JournalCallbacks, JournalOptions
from bookie.storage.journal_reader import replay
from bookie.storage.journal_records import encode_add, iterate_records
from bookie.storage.journal_writer import Journal
from runtime.files import OSFileSystem
from runtime.workers import ThreadWorkers

STORE_ID = bytes(16)
ENTRY_BYTES = 1024
ADDS_PER_APPEND = 64  # what one receive buffer brings
OUTSTANDING_APPENDS = 32
APPENDS = 3000
LONE_APPENDS = 400
FILES = OSFileSystem()
FRAME = encode_add(bytes(20), (7).to_bytes(8, "big") + bytes(ENTRY_BYTES - 8))


class WaitingWorkers(ThreadWorkers):
    """A loop that does nothing else: it sleeps until the workers have something to say."""

    def wait(self) -> None:
        select.select([self._signal], [], [])
        self.run_pending()


class Bench:
    def __init__(self, directory: str) -> None:
        self.workers = WaitingWorkers()
        self.done = 0
        reading = replay(FILES, directory, STORE_ID, mark=None)
        self.replayed = sum(block.record_count for block in reading)
        self.journal = Journal(
            FILES,
            directory,
            STORE_ID,
            self.workers,
            JournalCallbacks(on_durable=self._on_durable, on_failure=_stop),
            end=reading.end,
            options=JournalOptions(file_bytes=256 * 1024 * 1024),
        )

    def _on_durable(self, tokens: list[object]) -> None:
        self.done += len(tokens)

    def wait_until(self, done: int) -> None:
        while self.done < done:
            self.workers.wait()

    def close(self) -> None:
        closed = threading.Event()
        self.journal.close(closed.set)
        while not closed.is_set():
            self.workers.wait()
        self.workers.stop()


def _stop(error: Exception) -> None:
    raise error


def _journal_thread_seconds() -> float:
    """Processor time of the thread named `journal`, user and system, from the kernel."""
    for thread in threading.enumerate():
        if thread.name == "journal":
            assert thread.ident is not None
            return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    raise LookupError("no journal thread")


def measure_load(bench: Bench) -> None:
    buffer = FRAME * ADDS_PER_APPEND
    target, counts = bench.done, bench.journal.statistics()
    before, started = _journal_thread_seconds(), time.perf_counter()
    for number in range(APPENDS):
        bench.journal.append([buffer], len(buffer), ADDS_PER_APPEND, number)
        bench.wait_until(target + number + 1 - OUTSTANDING_APPENDS)
    bench.wait_until(target + APPENDS)
    seconds, cpu = time.perf_counter() - started, _journal_thread_seconds() - before
    after = bench.journal.statistics()
    blocks = after.blocks - counts.blocks
    adds = APPENDS * ADDS_PER_APPEND
    print(
        f"load: {adds / seconds:,.0f} adds/s of 1 KiB, journal thread {cpu / adds * 1e6:.2f} us "
        f"per add, {adds / blocks:.0f} adds and "
        f"{adds * len(FRAME) / blocks / 1024:.0f} KiB per block (most "
        f"{after.group_records_max}), padding {after.padding_bytes / after.written_bytes:.2%}"
    )


def measure_lone(bench: Bench, directory: str) -> None:
    path = f"{directory}/raw"
    raw = FILES.open(path, create=True)
    for offset in range(0, 4096 * LONE_APPENDS, 4096):
        raw.write(bytes(4096), offset)
    raw.sync()
    raw.close()
    raw = FILES.open(path, durable=True)
    bare: list[float] = []
    lone: list[float] = []
    page = bytes(4096)
    for number in range(LONE_APPENDS):  # interleaved, so that both meet the same neighbours
        started = time.perf_counter()
        raw.write(page, number * 4096)
        middle = time.perf_counter()
        target = bench.done + 1
        bench.journal.append([FRAME], len(FRAME), 1, number)
        bench.wait_until(target)
        bare.append(middle - started)
        lone.append(time.perf_counter() - middle)
    raw.close()
    FILES.remove(path)
    ours, theirs = statistics.median(lone), statistics.median(bare)
    print(
        f"one outstanding: p50 {ours * 1e6:.0f} us, a bare durable write of 4 KiB "
        f"{theirs * 1e6:.0f} us: {ours / theirs:.2f}x"
    )


def measure_replay(directory: str) -> None:
    started = time.process_time()
    entries = 0
    last = started
    for block in replay(FILES, directory, STORE_ID, mark=None):
        payload = block.payload
        for _, start, end in iterate_records(payload):
            _ = payload[start + 20 : end]
            entries += 1
        last = time.process_time()
    print(
        f"replay: {entries:,} entries, {(last - started) / entries * 1e6:.2f} us each, slicing "
        f"included; then {(time.process_time() - last) * 1e3:.0f} ms to look behind the end"
    )


def set_allocator() -> None:
    """As the bookie does: keep freed blocks, do not give their pages back each time."""
    libc = ctypes.CDLL(None)
    for option, value in ((-1, 1 << 30), (-2, 16 << 20), (-3, 64 << 20)):
        libc.mallopt(option, value)


def main() -> None:
    sys.setswitchinterval(0.0005)
    set_allocator()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        directory = str(Path(name))
        bench = Bench(directory)
        # The first append takes the first file; then the next one is prepared, once. Wait for it:
        # zeros on their way to the same disk would be measured as ours.
        bench.journal.append([FRAME], len(FRAME), 1, None)
        while bench.journal.statistics().files_created < 2:
            bench.workers.wait()
        measure_load(bench)
        measure_lone(bench, directory)
        bench.close()
        measure_replay(directory)


if __name__ == "__main__":
    main()
