"""How much of each entry log still lives, in memory and in the index, kept in step.

Flush adds runs, compaction moves them, garbage collection removes them. Whoever changes run keys
passes through `apply`, which writes the logs' records in the same piece: a piece may become
durable by itself at any moment, and then the counts must agree with exactly the keys in it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bookie.core.compaction import LogUse
from bookie.storage.index_format import LogState, StoredLog, log_key
from bookie.storage.index_interface import PIECE_CHANGES_MAX, Change, Index

#: A change, and by how many bytes it alters what lives in which log.
Counted = tuple[bytes, bytes | None, Mapping[int, int]]


class LogTable:
    """Changed by the flush thread and the garbage thread of one directory, under one lock."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lock = threading.RLock()
        self._logs: dict[int, StoredLog] = {}
        self.reload()

    def reload(self) -> None:
        """Begin again from what the index holds, after it was reopened."""
        with self._lock:
            self._logs = dict(self.index.logs())

    def ids(self) -> list[int]:
        return sorted(self._logs)

    def get(self, log_id: int) -> StoredLog | None:
        return self._logs.get(log_id)

    def uses(self, state: LogState = LogState.SEALED) -> list[LogUse]:
        with self._lock:
            logs = list(self._logs.items())
        return [
            LogUse(log_id, log.size, log.live_bytes) for log_id, log in logs if log.state is state
        ]

    def total_bytes(self) -> int:
        with self._lock:
            return sum(log.size for log in self._logs.values())

    def apply(self, changes: Iterable[Counted]) -> None:
        """Make changes in bounded pieces."""
        piece: list[Change] = []
        moved: Counter[int] = Counter()
        for key, value, bytes_by_log in changes:
            if len(piece) + len(moved) + len(bytes_by_log) + 1 > PIECE_CHANGES_MAX:
                self._apply(piece, moved)
                piece, moved = [], Counter()
            piece.append((key, value))
            moved.update(bytes_by_log)
        if piece:
            self._apply(piece, moved)

    def settle(
        self, logs: Mapping[int, tuple[LogState, int]], changes: Sequence[Change] = ()
    ) -> None:
        """Note state and size of logs, behind the last of their keys; `changes` go with them."""
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
            for start in range(0, len(pending), PIECE_CHANGES_MAX):
                self.index.apply(pending[start : start + PIECE_CHANGES_MAX])
            self._logs.update(settled)

    def begin(self, log_id: int, log: StoredLog) -> None:
        """A new log; the index hears of it with its first keys."""
        with self._lock:
            self._logs[log_id] = log

    def remove(self, log_id: int) -> None:
        with self._lock:
            self._logs.pop(log_id, None)
            self.index.apply([(log_key(log_id), None)])

    def flush(self) -> None:
        self.index.flush()

    def _apply(self, piece: list[Change], moved: Mapping[int, int]) -> None:
        with self._lock:
            counted = dict(self._counted(moved))
            piece += [(log_key(log_id), log.encode()) for log_id, log in counted.items()]
            self.index.apply(piece)
            self._logs.update(counted)

    def _counted(self, moved: Mapping[int, int]) -> Iterator[tuple[int, StoredLog]]:
        for log_id, delta in moved.items():
            log = self._logs.get(log_id)
            if log is not None:  # a log that is gone counts nothing
                yield log_id, log._replace(live_bytes=max(0, log.live_bytes + delta))
