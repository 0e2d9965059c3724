"""What the index costs: time per run and per look-up, bytes per entry, memory, GIL pauses.

    python -m bench.index [directory]

Entries are 1 KiB or of random sizes, which no compression can do much about; a checkpoint brings
65,536 of them, spread evenly over the ledgers. Puts and look-ups are in CPU time, the rest by the
clock. Ratios travel between machines, absolute times do not.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from bookie.storage.index import RocksIndex, open_index
from bookie.storage.index_format import MARK_KEY, LogMark, location_of, run_key
from bookie.storage.index_interface import PIECE_CHANGES_MAX, Change, TransientIndexError
from bookie.storage.indexed_run import RUN_ENTRIES_MAX, encode_run_value

Result = TypeVar("Result")

STORE_ID = bytes(16)
ENTRIES_PER_CHECKPOINT = 65_536
CHECKPOINTS = 10
LOOK_UPS = 20_000
SWITCH_SECONDS = 0.0005  # as the bookie sets it


def main() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        directory = Path(name)
        _memory(directory / "memory")
        for ledgers in (100, 10_000):
            for varied in (False, True):
                _workload(directory / f"{ledgers}-{varied}", ledgers, varied=varied)
        _gil(directory / "gil")


def _memory(path: Path) -> None:
    before = _resident_bytes()
    seconds, index = _timed(lambda: _open(path, create=True))
    print(f"create {seconds * 1e3:.1f} ms; an empty index takes "
          f"{(_resident_bytes() - before) / 2**20:.1f} MiB of memory")  # fmt: skip
    index.close()


def _workload(path: Path, ledgers: int, *, varied: bool) -> None:
    index = _open(path, create=True)
    rng = random.Random(1)
    written = 0
    apply_seconds = flush_seconds = 0.0
    for checkpoint in range(CHECKPOINTS):
        changes = list(_checkpoint(checkpoint, ledgers, varied, rng))
        written += len(changes)
        changes.append((MARK_KEY, LogMark(checkpoint, ()).encode()))
        for start in range(0, len(changes), PIECE_CHANGES_MAX):
            piece = changes[start : start + PIECE_CHANGES_MAX]
            apply_seconds += _cpu(lambda: _apply(index, piece))  # noqa: B023
        flush_seconds += _timed(index.flush)[0]
    per_ledger = ENTRIES_PER_CHECKPOINT // ledgers * CHECKPOINTS
    entries = per_ledger * ledgers
    size = index.statistics().disk_bytes
    close_seconds = _timed(index.close)[0]
    open_seconds, index = _timed(lambda: _open(path))
    wanted = [(rng.randrange(ledgers), rng.randrange(per_ledger)) for _ in range(LOOK_UPS)]
    _look_up_all(index, wanted)
    warm = _cpu(lambda: _look_up_all(index, wanted))
    full = _cpu(lambda: [index.find_runs(*pair) for pair in wanted])
    last = _cpu(lambda: [index.last_entry_id(ledger_id) for ledger_id, _ in wanted])
    keys = [index.runs_from(*pair, count_max=1)[0].key for pair in wanted[:2000]]
    exact = _cpu(lambda: [index.contains(key) for key in keys])
    index.close()
    print(
        f"{ledgers} ledgers, {'varied' if varied else 'fixed'} sizes, "
        f"{entries // written} entries per run:\n"
        f"  put {apply_seconds / written * 1e6:.2f} us per run "
        f"({apply_seconds / entries * 1e6:.3f} per entry)\n"
        f"  disk {size / entries:.2f} B per entry; "
        f"flush {flush_seconds / CHECKPOINTS * 1e3:.1f} ms, "
        f"open {open_seconds * 1e3:.1f} ms, close {close_seconds * 1e3:.1f} ms\n"
        f"  look-up {warm / LOOK_UPS * 1e6:.2f} us, all copies {full / LOOK_UPS * 1e6:.2f}, "
        f"last entry {last / LOOK_UPS * 1e6:.2f}, exact key {exact / len(keys) * 1e6:.2f}"
    )


def _checkpoint(
    checkpoint: int, ledgers: int, varied: bool, rng: random.Random
) -> Iterator[tuple[bytes, bytes | None]]:
    per_ledger = ENTRIES_PER_CHECKPOINT // ledgers
    offset = 4096
    for ledger_id in range(ledgers):
        first = checkpoint * per_ledger
        end = first + per_ledger
        while first < end:
            count = min(RUN_ENTRIES_MAX, end - first)
            starts: list[int] | int = 1028
            body_bytes = 1028 * count
            if varied:
                sizes = [rng.randrange(60, 2000) for _ in range(count)]
                starts = list(accumulate(sizes, initial=0))
                body_bytes = starts[-1]
            value = encode_run_value(
                first=first,
                count=count,
                body_bytes=body_bytes,
                body_crc=rng.getrandbits(32),
                sequence=checkpoint,
                entry_ids=None,
                starts=starts,
            )
            location = location_of(log_id=checkpoint, offset=offset)
            yield run_key(ledger_id, first + count - 1, location), value
            first += count
            offset += 56 + body_bytes


def _gil(path: Path) -> None:
    """The longest time for which a second thread did not get to run, for each call."""
    index = _open(path, create=True)
    rng = random.Random(2)
    changes = list(_checkpoint(0, 10_000, True, rng))
    calls: list[tuple[str, Callable[[], object]]] = [
        ("apply 1,000", lambda: index.apply(changes[:PIECE_CHANGES_MAX])),
        ("flush", index.flush),
        ("compact", lambda: index.compact(first_ledger=0, last_ledger=10_000)),
        ("reopen", index.reopen),
        ("close", index.close),
    ]
    for name, call in calls:
        with _pauses() as pauses:
            seconds = _timed(call)[0]
        worst = max(pauses, default=0.0)
        print(f"{name}: {seconds * 1e3:.2f} ms, others waited up to {worst * 1e3:.2f} ms")


@contextmanager
def _pauses() -> Iterator[list[float]]:
    pauses: list[float] = []
    running = threading.Event()
    stopped = threading.Event()

    def watch() -> None:
        running.set()
        before = time.perf_counter()
        last = False
        while not last:
            last = stopped.is_set()  # asked first, so that the pause before it is counted
            now = time.perf_counter()
            pauses.append(now - before)
            before = now

    thread = threading.Thread(target=watch)
    thread.start()
    running.wait()
    try:
        yield pauses
    finally:
        stopped.set()
        thread.join()


def _open(path: Path, *, create: bool = False) -> RocksIndex:
    return open_index(str(path), store_id=STORE_ID, create=create)


def _apply(index: RocksIndex, piece: list[Change]) -> None:
    while True:
        try:
            return index.apply(piece)
        except TransientIndexError:
            time.sleep(0.001)


def _look_up_all(index: RocksIndex, wanted: list[tuple[int, int]]) -> None:
    for ledger_id, entry_id in wanted:
        run = index.find_run(ledger_id, entry_id)
        assert run is not None
        run.locate(entry_id)


def _cpu(call: Callable[[], object]) -> float:
    """Seconds of this thread's CPU: steadier than the clock on a machine that others use."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def _timed(call: Callable[[], Result]) -> tuple[float, Result]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
