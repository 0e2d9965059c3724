"""How much of each entry log still lives, in memory and in the index, kept in step.

Flush adds runs, compaction moves them, garbage collection removes them. Whoever changes run keys
passes through here, and the logs' records are written in the same piece: a piece may become
durable by itself at any moment, and then the counts must agree with exactly the keys in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bookie.core.compaction import LogUse
from bookie.core.letting_go import take
from bookie.storage.index_format import LogState, StoredLog, log_key
from bookie.storage.index_interface import (
    Change,
    Index,
    IndexFailedError,
    TransientIndexError,
)

#: A busy index is asked again this often before it counts as failed.
_BUSY_TRIES: Final = 200
_BUSY_SECONDS: Final = 0.005

#: Most changes in one piece. RocksDB's write holds the GIL, and the event loop would wait: for a
#: thousand changes 0.9-1.3 ms.
PIECE_CHANGES: Final = 256

#: A change, and by how many bytes it alters what lives in which log.
Counted = tuple[bytes, bytes | None, Mapping[int, int]]


#: Runs that a checkpoint wrote to one log: its id, their keys with values, the sizes of the bodies.
Written = tuple[int, list[Change], list[int]]


class Move(NamedTuple):
    """A run that compaction copied: the old key goes as the new one comes."""

    old_key: bytes
    new_key: bytes
    value: bytes
    bytes_by_log: Mapping[int, int]


class LogTable:
    """Changed by the flush thread and the garbage thread of one directory, under one lock."""

    def __init__(self, index: Index, *, sleep: Callable[[float], None]) -> None:
        self.index = index
        self._sleep = sleep
        self._lock = threading.RLock()
        self._logs: dict[int, StoredLog] = dict(index.logs())

    def reopen(self) -> None:
        """Begin again from what the index has on disk, after it failed. For the flush thread only:
        what it has applied of an unfinished checkpoint is lost here, and nobody else would know.

        Nobody may apply anything between the reopening and the new counts, or these would be
        wrong. Logs that the index has not heard of yet hold nothing that it names.
        """
        with self._lock:
            self.index.reopen()
            unheard = {log_id: log._replace(live_bytes=0) for log_id, log in self._logs.items()}
            self._logs = unheard | dict(self.index.logs())

    def ids(self) -> list[int]:
        return sorted(self._logs)

    def get(self, log_id: int) -> StoredLog | None:
        return self._logs.get(log_id)

    def live_bytes(self, log_id: int) -> int:
        log = self._logs.get(log_id)
        return log.live_bytes if log is not None else 0

    def uses(self, *states: LogState) -> list[LogUse]:
        """The logs in one of these states; without any named, the sealed ones."""
        with self._lock:
            logs = list(self._logs.items())
        return [
            LogUse(log_id, log.size, log.live_bytes)
            for log_id, log in logs
            if log.state in (states or (LogState.SEALED,))
        ]

    def total_bytes(self) -> int:
        with self._lock:
            return sum(log.size for log in self._logs.values())

    def apply(self, changes: Iterable[Counted]) -> None:
        """Make changes in bounded pieces."""
        self._apply_all(([(key, value)], moved) for key, value, moved in changes)

    def add_runs(self, states: list[Change], written: Iterable[Written]) -> None:
        """Write ledger states, and behind them the keys of new runs, in bounded pieces.

        The lists are used up, piece by piece: thousands of keys freed at once hold the GIL.
        """
        piece: list[Change] = []
        moved: dict[int, int] = {}
        for log_id, keys, sizes in ((-1, states, []), *written):
            keys.reverse()
            sizes.reverse()
            while keys:
                room = PIECE_CHANGES - len(piece) - len(moved) - 1
                if room <= 0:
                    self._apply(piece, moved)
                    piece, moved = [], {}
                    continue
                piece += take(keys, room)
                if sizes:
                    moved[log_id] = sum(take(sizes, room))
        if piece:
            self._apply(piece, moved)

    def move(self, moves: Iterable[Move]) -> None:
        """Replace keys, in bounded pieces that never part an old key from its new one."""
        self._apply_all(
            ([(move.old_key, None), (move.new_key, move.value)], move.bytes_by_log)
            for move in moves
        )

    def settle(
        self, logs: Mapping[int, tuple[LogState, int]], changes: Sequence[Change] = ()
    ) -> None:
        """Note state and size of logs, behind the last of their keys; `changes` go with them."""

        def settle() -> None:
            with self._lock:
                settled = {
                    log_id: self._logs[log_id]._replace(state=state, size=size)
                    for log_id, (state, size) in logs.items()
                    if log_id in self._logs
                }
                pending: list[Change] = [
                    (log_key(log_id), log.encode()) for log_id, log in settled.items()
                ]
                pending += changes
                for start in range(0, len(pending), PIECE_CHANGES):
                    self.index.apply(pending[start : start + PIECE_CHANGES])
                self._logs.update(settled)

        self._patiently(settle)

    def begin(self, log_id: int, log: StoredLog) -> None:
        """A new log; the index hears of it with its first keys."""
        with self._lock:
            self._logs[log_id] = log

    def forget(self, log_id: int) -> None:
        """A log of which the index has not heard yet, and never will."""
        with self._lock:
            self._logs.pop(log_id, None)

    def remove(self, log_id: int) -> None:
        """The log is gone, or about to go: no key names anything in it."""

        def remove() -> None:
            with self._lock:
                self.index.apply([(log_key(log_id), None)])
                self._logs.pop(log_id, None)

        self._patiently(remove)

    def flush(self) -> None:
        self.index.flush()

    def _apply_all(self, groups: Iterable[tuple[list[Change], Mapping[int, int]]]) -> None:
        piece: list[Change] = []
        moved: dict[int, int] = {}
        for changes, bytes_by_log in groups:
            more = len(changes) + len(bytes_by_log)
            if len(piece) + len(moved) + more > PIECE_CHANGES:
                self._apply(piece, moved)
                piece, moved = [], {}
            piece += changes
            for log_id, count in bytes_by_log.items():
                moved[log_id] = moved.get(log_id, 0) + count
        if piece:
            self._apply(piece, moved)

    def _apply(self, piece: Sequence[Change], moved: Mapping[int, int]) -> None:
        def apply() -> None:
            with self._lock:
                counted = dict(self._counted(moved))
                logs = [(log_key(log_id), log.encode()) for log_id, log in counted.items()]
                self.index.apply([*piece, *logs])
                self._logs.update(counted)

        self._patiently(apply)

    def _counted(self, moved: Mapping[int, int]) -> Iterator[tuple[int, StoredLog]]:
        for log_id, delta in moved.items():
            log = self._logs.get(log_id)
            if log is not None:  # a log that is gone counts nothing
                yield log_id, log._replace(live_bytes=max(0, log.live_bytes + delta))

    def _patiently(self, change: Callable[[], None]) -> None:
        """RocksDB may ask for patience while it compacts; waiting inside it would hold the GIL.

        Piece by piece: repeating a piece that was applied would count its bytes twice.
        """
        for _ in range(_BUSY_TRIES):
            try:
                return change()
            except TransientIndexError:
                self._sleep(_BUSY_SECONDS)
        raise IndexFailedError(
            f"the index took no changes for {_BUSY_TRIES * _BUSY_SECONDS:.0f} s; check the disk"
        )
