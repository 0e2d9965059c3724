"""RocksDB writes past our file interface, so crashes of the index are tried on a real process.

A child completes checkpoints as the engine does: pieces of run keys without a write-ahead log,
the mark in the last one, a flush. It reports every step, and is killed after some of them. What
it left must hold every run that the mark speaks for, and the mark must not be behind a flush
that was reported.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from bookie.storage.index import IndexOptions, RocksIndex, open_index
from bookie.storage.index_format import MARK_KEY, LogMark
from bookie.storage.index_interface import TransientIndexError
from tests.bookie.index_values import STORE_ID, run_change

KILLS = 20
LEDGERS = 2000
PIECES = 8


def _open(path: str, *, create: bool = False) -> RocksIndex:
    # Buffers smaller than a checkpoint, so that RocksDB flushes some of its pieces by itself.
    options = IndexOptions(write_buffer_bytes=64 << 10)
    return open_index(path, store_id=STORE_ID, create=create, options=options)


def _pieces(checkpoint: int) -> list[list[tuple[bytes, bytes]]]:
    """One run for each ledger, in pieces; the last one moves the mark."""
    runs = [
        run_change(ledger_id, [checkpoint * 2], offset=checkpoint, sequence=checkpoint)
        for ledger_id in range(LEDGERS)
    ]
    pieces = [runs[n::PIECES] for n in range(PIECES)]
    pieces[-1].append((MARK_KEY, LogMark(checkpoint, ()).encode()))
    return pieces


def _child(path: str) -> None:
    index = _open(path)
    mark = index.mark()
    checkpoint = 0 if mark is None else mark.checkpoint
    while True:
        checkpoint += 1
        for piece in _pieces(checkpoint):
            _apply(index, piece)
            print("applied", checkpoint, flush=True)
        index.flush()
        print("done", checkpoint, flush=True)


def _apply(index: RocksIndex, piece: list[tuple[bytes, bytes]]) -> None:
    while True:
        try:
            return index.apply(piece)
        except TransientIndexError:
            time.sleep(0.001)


def test_killed_index_has_all_that_its_mark_speaks_for_and_all_that_was_flushed(
    tmp_path: Path,
) -> None:
    rng = random.Random(7)
    path = str(tmp_path / "index")
    _open(path, create=True).close()
    checked = 0
    for _ in range(KILLS):
        acknowledged = _run_and_kill(path, rng)
        index = _open(path)
        mark = index.mark()
        assert mark is not None or acknowledged < 0
        reached = 0 if mark is None else mark.checkpoint
        assert reached >= acknowledged
        for ledger_id in range(0, LEDGERS, 7):  # some of every piece
            runs = index.runs_from(ledger_id, checked * 2, count_max=10_000)
            found = {run.sequence for run in runs}
            assert found >= set(range(max(checked, 1), reached + 1))
            assert max(found, default=0) <= reached + 1
        checked = reached
        index.close()
    assert checked >= KILLS


def _run_and_kill(path: str, rng: random.Random) -> int:
    """Let a child work for a few checkpoints, kill it; the last one that it reported done."""
    command = [sys.executable, "-m", "tests.bookie.test_index_kill", path]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        assert child.stdout is not None
        try:
            acknowledged = _last_done(child.stdout, rng.randrange(1, 5 * PIECES))
        finally:
            child.kill()
        return max(acknowledged, _last_done(child.stdout, None))


def _last_done(lines: IO[str], limit: int | None) -> int:
    last = -1
    while limit is None or limit > 0:
        line = lines.readline()
        if not line.endswith("\n"):
            assert limit is None, "the child ended by itself"
            break
        word, number = line.split()
        if word == "done":
            last = int(number)
        limit = None if limit is None else limit - 1
    return last


if __name__ == "__main__":
    _child(sys.argv[1])
