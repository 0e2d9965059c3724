"""What the storage engine asks of an index, and how an index says no.

Two forms keep this promise: RocksDB's (`index.py`) and one in memory that can crash
(`memory_index.py`). Both pass the same suite.

A piece (one call of `apply`) is atomic. Pieces become durable in the order of the calls: all of
them by `flush`, any prefix of them by the index's own decision at any time. What was applied
since the last flush may be gone after a crash, after an error, and after `reopen`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from bookie.storage.index_format import (
    FORMAT_KEY,
    INDEX_FORMAT,
    STORE_ID_BYTES,
    STORE_ID_KEY,
    LogMark,
    StoredLedgerState,
    StoredLog,
    check_version,
)
from bookie.storage.indexed_run import IndexedRun
from wire.errors import CorruptionError, LedgerError, TransientError
from wire.types import LedgerId

#: Most changes in one piece. RocksDB's write holds the GIL from end to end, so this bounds how
#: long the event loop can be kept waiting: a thousand changes are well below a millisecond.
PIECE_CHANGES_MAX: Final = 1000

#: What to do about an index that is beyond use: entry logs hold all it takes but ledger states.
REBUILD: Final = "rebuild the index from the entry logs"

#: A key with its new value, or with None to delete it.
Change = tuple[bytes, bytes | None]


class TransientIndexError(TransientError):
    """The index would have to wait, or is being reopened. The same call may succeed soon.

    Nothing of the piece was applied.
    """


class IndexFailedError(LedgerError):
    """The index could not write. Reopen it and repeat from the last flush on."""


class DamagedIndexError(CorruptionError):
    """The index cannot be read, or is not the one that belongs here."""


class IndexStatistics(NamedTuple):
    """For metrics. RocksDB estimates the number of keys."""

    keys: int
    disk_bytes: int
    memory_bytes: int


class Index(Protocol):
    """(ledger, entry) to the runs that hold it, and everything else that must outlive a restart.

    Any thread may read. One thread at a time may change it. No call leaves an iterator behind:
    an iterator sees a frozen past, pins files, and keeps RocksDB from being reopened.
    """

    def apply(self, piece: Sequence[Change]) -> None:
        """Make up to `PIECE_CHANGES_MAX` changes, all or none. Not durable before `flush`."""

    def flush(self) -> None:
        """Make every applied piece durable."""

    def reopen(self) -> None:
        """Begin again from what is durable. The way out of an `IndexFailedError`."""

    def close(self) -> None:
        """Flush and let go. Idempotent."""

    def get(self, key: bytes) -> bytes | None: ...

    def contains(self, key: bytes) -> bool:
        """Whether this very key is there. For a run key: whether that run is alive."""

    def mark(self) -> LogMark | None: ...

    def ledger_state(self, ledger_id: int) -> StoredLedgerState | None: ...

    def ledger_ids(self) -> Iterator[LedgerId]:
        """Every ledger that has a state, ascending; changes meanwhile may or may not show."""

    def ledger_states(self) -> Iterator[tuple[LedgerId, StoredLedgerState]]: ...

    def logs(self) -> Iterator[tuple[int, StoredLog]]:
        """Every entry log that the index knows, by id."""

    def runs(self) -> Iterator[IndexedRun]:
        """Every run of every ledger. A walk over the whole index: for checks, not for every day."""

    def find_run(self, ledger_id: int, entry_id: int) -> IndexedRun | None:
        """A run that holds the entry: an undamaged one if there is any. None is a promise."""

    def find_runs(self, ledger_id: int, entry_id: int) -> list[IndexedRun]:
        """All runs that hold the entry: undamaged ones first, newest write sequence first."""

    def runs_from(
        self, ledger_id: int, entry_id: int, *, count_max: int, after: bytes = b""
    ) -> list[IndexedRun]:
        """The next runs that end at `entry_id` or behind it, by last entry.

        `after` is the key of the last run already seen; an answer of fewer than `count_max` runs
        is the end. Runs may overlap, and the first ones may begin before `entry_id`.
        """

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id stored, NO_ENTRY if there is none."""

    def run_offsets(self, log_id: int) -> list[int]:
        """Where the indexed runs of one log begin, ascending. Walks the whole index: for
        finding the way past damage, not for every day."""

    def run_keys(self, log_id: int) -> dict[int, bytes]:
        """The keys of the runs of one log, by where these begin, ascending. As costly."""

    def compact(self, *, first_ledger: int, last_ledger: int) -> None:
        """Get rid of what deletions left behind in the keys of these ledgers."""

    def statistics(self) -> IndexStatistics: ...


class OpenIndex(Protocol):
    """How the engine opens an index: `open_index`, or `MemoryIndexes.open` in the simulator."""

    def __call__(self, path: str, *, store_id: bytes, create: bool = False) -> Index:
        """Open the index of this store. `create` demands that there is none yet."""


def stamp(store_id: bytes) -> list[Change]:
    """What makes an empty database an index: the format, and whose it is."""
    assert len(store_id) == STORE_ID_BYTES
    return [(FORMAT_KEY, INDEX_FORMAT.to_bytes(2, "big")), (STORE_ID_KEY, store_id)]


def check_stamp(index: Index, path: str, store_id: bytes) -> None:
    """Refuse an index that is unfinished, newer than this release, or another store's.

    Taking such a directory for ours would report every entry in it as missing, or worse, found.
    """
    version, found = index.get(FORMAT_KEY), index.get(STORE_ID_KEY)
    if version is None or found is None:
        raise DamagedIndexError(f"index {path} was never finished or lost its stamp; {REBUILD}")
    check_version(int.from_bytes(version, "big"), INDEX_FORMAT, f"index {path}")
    if found != store_id:
        raise DamagedIndexError(
            f"index {path} belongs to store {found.hex()}, this bookie is store {store_id.hex()}: "
            "put the right directory back"
        )
