"""The index in memory: the twin of RocksDB's, which can crash, stall and fail.

A `MemoryIndexes` is a machine's disk full of indexes; it outlives the bookies that open them.
Since the last flush an index remembers its pieces one by one, because RocksDB may write its
memtable at any moment: a crash keeps any prefix of them, never a later one without an earlier.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence

from bookie.storage.index_format import run_prefix
from bookie.storage.index_interface import (
    PIECE_CHANGES_MAX,
    Change,
    DamagedIndexError,
    IndexFailedError,
    IndexStatistics,
    TransientIndexError,
    check_stamp,
    stamp,
)
from bookie.storage.index_lookup import Cursor, IndexLookup
from wire.errors import LedgerError


def keep_nothing(pieces: int) -> int:
    return 0


class _Disk:
    """What one index has written: what is durable, and the pieces that may yet be lost."""

    def __init__(self) -> None:
        self.durable: dict[bytes, bytes] = {}
        self.pieces: list[list[Change]] = []
        self.user: MemoryIndex | None = None

    def keep(self, count: int) -> None:
        """Make the oldest `count` pieces durable and forget the others."""
        for piece in self.pieces[:count]:
            _change(self.durable, piece)
        self.pieces.clear()


class MemoryIndexes:
    """All indexes of one simulated machine, by path."""

    def __init__(self) -> None:
        self._disks: dict[str, _Disk] = {}

    def open(self, path: str, *, store_id: bytes, create: bool = False) -> MemoryIndex:
        disk = self._disks.get(path)
        if disk is None and not create:
            raise DamagedIndexError(f"index {path} is missing; put it back")
        if disk is None:
            disk = self._disks[path] = _Disk()
        elif disk.user is not None:
            raise TransientIndexError(f"index {path} is open elsewhere")
        elif create and disk.durable:
            raise DamagedIndexError(f"index {path} exists already: open it, or move it away")
        index = MemoryIndex(path, disk)
        if create:
            index.apply(stamp(store_id))
            index.flush()
        try:
            check_stamp(index, path, store_id)
        except LedgerError:
            index.close()
            raise
        return index

    def rename(self, old: str, new: str) -> None:
        """As a file system would, for indexes that nobody has open."""
        if old not in self._disks:
            raise FileNotFoundError(old)
        self._disks[new] = self._disks.pop(old)

    def crash(self, keep: Callable[[int], int] = keep_nothing) -> None:
        """Lose what a crash would lose; whoever had an index open is left with a dead one.

        `keep` is told how many pieces of an index were not flushed, and says how many survive.
        """
        for disk in self._disks.values():
            disk.keep(keep(len(disk.pieces)))
            if disk.user is not None:
                disk.user.die()
                disk.user = None


class MemoryIndex(IndexLookup):
    def __init__(self, path: str, disk: _Disk) -> None:
        self.path = path
        #: How many of the next changes are refused with TransientIndexError.
        self.stalls = 0
        #: Raise IndexFailedError at the next `apply` or `flush`, as a failing disk would.
        self.fails = False
        #: How many unflushed pieces a `reopen` finds again.
        self.kept_by_reopen: Callable[[int], int] = keep_nothing
        self._disk = disk
        self._failed: IndexFailedError | None = None
        self._closed = False
        self._crashed = False
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        disk.user = self
        self._load()

    def apply(self, piece: Sequence[Change]) -> None:
        assert len(piece) <= PIECE_CHANGES_MAX
        self._check_writable()
        if self.stalls:
            self.stalls -= 1
            raise TransientIndexError(f"index {self.path} is behind with flushing")
        self._disk.pieces.append(list(piece))
        for key, value in piece:
            known = key in self._values
            if value is not None:
                self._values[key] = value
                if not known:
                    insort(self._keys, key)
            elif known:
                del self._values[key]
                del self._keys[bisect_left(self._keys, key)]

    def flush(self) -> None:
        self._check_writable()
        self._disk.keep(len(self._disk.pieces))

    def compact(self, *, first_ledger: int, last_ledger: int) -> None:
        self._check_writable()

    def reopen(self) -> None:
        self._check_alive()
        self._disk.keep(self.kept_by_reopen(len(self._disk.pieces)))
        self._failed = None
        self._load()

    def close(self) -> None:
        if not self._closed and not self._crashed:
            if self._failed is None:
                self._disk.keep(len(self._disk.pieces))
            self._disk.user = None
        self._closed = True

    def die(self) -> None:
        """The machine crashed; whoever still holds this handle only thinks it is running."""
        self._crashed = True

    def get(self, key: bytes) -> bytes | None:
        self._check_alive()
        return self._values.get(key)

    def contains(self, key: bytes) -> bool:
        return self.get(key) is not None

    def statistics(self) -> IndexStatistics:
        self._check_alive()
        size = sum(len(key) + len(value) for key, value in self._values.items())
        return IndexStatistics(keys=len(self._keys), disk_bytes=size, memory_bytes=size)

    def _run_cursor(self) -> Cursor:
        self._check_alive()
        return _MemoryCursor(self._keys, self._values, prefix_bytes=len(run_prefix(0)))

    def _cursor(self) -> Cursor:
        self._check_alive()
        return _MemoryCursor(self._keys, self._values, prefix_bytes=0)

    def _failure(self, error: Exception) -> LedgerError:
        if isinstance(error, LedgerError):
            return error
        raise error  # a bug of this module

    def _load(self) -> None:
        self._values = dict(self._disk.durable)
        self._keys = sorted(self._values)

    def _check_alive(self) -> None:
        assert not self._closed, "the index was used after close"
        if self._crashed:
            raise IndexFailedError(f"index {self.path} was opened before the crash")

    def _check_writable(self) -> None:
        self._check_alive()
        if self.fails:
            self.fails = False
            self._failed = IndexFailedError(
                f"index {self.path} cannot be written; reopen it and repeat the checkpoint"
            )
        if self._failed is not None:
            raise self._failed


class _MemoryCursor:
    """Over the keys as they are, not as they were: no caller keeps one across a change.

    It ends where keys no longer begin with what the key sought began with, for `prefix_bytes`.
    """

    __slots__ = ("_keys", "_position", "_prefix", "_prefix_bytes", "_values")

    def __init__(self, keys: list[bytes], values: dict[bytes, bytes], *, prefix_bytes: int) -> None:
        self._keys = keys
        self._values = values
        self._prefix_bytes = prefix_bytes
        self._prefix = b""
        self._position = len(keys)

    def seek(self, key: bytes, /) -> None:
        self._prefix = key[: self._prefix_bytes]
        self._position = bisect_left(self._keys, key)

    def seek_for_prev(self, key: bytes, /) -> None:
        self._prefix = key[: self._prefix_bytes]
        self._position = bisect_right(self._keys, key) - 1

    def next(self) -> None:
        self._position += 1

    def valid(self) -> bool:
        position = self._position
        return 0 <= position < len(self._keys) and self._keys[position].startswith(self._prefix)

    def status(self) -> None:
        return None

    def key(self) -> bytes:
        return self._keys[self._position]

    def value(self) -> bytes:
        return self._values[self.key()]


def _change(values: dict[bytes, bytes], piece: Sequence[Change]) -> None:
    for key, value in piece:
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
