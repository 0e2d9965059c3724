"""The index in RocksDB, through rocksdict. No other module may import rocksdict.

The database keeps no log of its own: the journal is that log, and the log mark, written in the
same atomic flush as the keys it speaks for, says where replay begins.

What is peculiar about rocksdict 0.3.29, found by trying it:
- `write`, `get` and every iterator move hold the GIL, through stalls too; `flush`, `compact_range`
  and `close` release it. Hence small pieces, and `no_slowdown`, which fails where it would wait;
- a write batch is used up by a failed write as well: a retry needs a new one;
- `items` and `keys` end silently at a damaged block; only an iterator's `status` reports it;
- `disable_wal` is an attribute, though the type stub shows a method;
- `set_iterate_lower_bound` sets the upper bound; we use no bounds;
- an iterator keeps the database open, and its directory locked, beyond `close`;
- whoever lets go of the last iterator over a table or memtable that is no longer needed unlinks or
  frees it there and then, with the GIL held, unless RocksDB is told to leave that to its threads;
- opening writes a file of its own into the directory before it looks what is in there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    SliceTransform,
    WriteBatch,
    WriteOptions,
)

from bookie.storage.index_format import run_prefix
from bookie.storage.index_interface import (
    PIECE_CHANGES_MAX,
    REBUILD,
    Change,
    DamagedIndexError,
    IndexFailedError,
    IndexStatistics,
    TransientIndexError,
    check_stamp,
    stamp,
)
from bookie.storage.index_lookup import Cursor, IndexLookup
from runtime.files import OSFileSystem
from wire.errors import LedgerError

_RUN_PREFIX_BYTES: Final = 9  # `R` and the ledger id
_BLOCK_BYTES: Final = 4096  # a look-up takes 3.7 us; 5.4 with 16 KiB blocks, 10 with 64 KiB
_BLOOM_BITS: Final = 10
_INFO_LOGS_KEPT: Final = 4
_INFO_LOG_BYTES_MAX: Final = 4 << 20
#: Compact a table once half of any such stretch of keys are deletions.
_DELETION_WINDOW: Final = 1024
#: How long `reopen` waits for look-ups that were under way in other threads.
_REOPEN_SECONDS_MAX: Final = 5.0
#: What rocksdict and RocksDB put into a directory before CURRENT makes it a database. A start that
#: was killed meanwhile leaves these.
_UNBORN: Final = re.compile(
    r"rocksdict-config\.json|LOCK|LOG(\.old\.\d+)?|IDENTITY"
    r"|(MANIFEST|OPTIONS)-\d+(\.dbtmp)?|\d+\.(dbtmp|log)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """Memory that one index may take. Keys are few, so little is enough."""

    block_cache_bytes: int = 16 << 20
    write_buffer_bytes: int = 8 << 20
    write_buffers: int = 2
    background_jobs: int = 2


class RocksIndex(IndexLookup):
    def __init__(self, path: str, options: IndexOptions, *, create: bool) -> None:
        self.path = path
        self._options = options
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign,assignment]
        self._write_options.no_slowdown = True
        self._run_reads = ReadOptions()
        self._run_reads.set_prefix_same_as_start(True)
        self._all_reads = ReadOptions()
        self._all_reads.set_total_order_seek(True)
        self._failed: LedgerError | None = None
        self._closed = False
        self._db: Rdict | None = self._open(create=create)

    def apply(self, piece: Sequence[Change]) -> None:
        assert len(piece) <= PIECE_CHANGES_MAX
        db = self._writable()
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in piece:
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            db.write(batch, self._write_options)
        except Exception as error:
            if "Write stall" in str(error):
                raise TransientIndexError(f"index {self.path} is behind with flushing") from error
            raise self._write_failure(error) from error

    def flush(self) -> None:
        db = self._writable()
        try:
            db.flush(True)
        except Exception as error:
            raise self._write_failure(error) from error

    def compact(self, *, first_ledger: int, last_ledger: int) -> None:
        db = self._writable()
        try:
            db.compact_range(run_prefix(first_ledger), run_prefix(last_ledger + 1))
        except Exception as error:
            raise self._write_failure(error) from error

    def reopen(self) -> None:
        assert not self._closed
        self._let_go()
        # A look-up in another thread may hold an iterator for some microseconds yet.
        deadline = time.monotonic() + _REOPEN_SECONDS_MAX
        while True:
            try:
                self._db = self._open(create=False)
            except TransientIndexError:
                if time.monotonic() > deadline:
                    raise IndexFailedError(
                        f"index {self.path} cannot be reopened: a look-up has not ended for "
                        f"{_REOPEN_SECONDS_MAX:.0f} s"
                    ) from None
                time.sleep(0.001)
            else:
                self._failed = None
                return

    def close(self) -> None:
        self._closed = True
        failure = self._let_go()
        if failure is not None and self._failed is None:
            raise self._write_failure(failure) from failure

    def get(self, key: bytes) -> bytes | None:
        try:
            return cast("bytes | None", self._readable().get(key))
        except Exception as error:
            raise self._failure(error) from error

    def contains(self, key: bytes) -> bool:
        try:
            return key in self._readable()
        except Exception as error:
            raise self._failure(error) from error

    def statistics(self) -> IndexStatistics:
        try:
            value = self._readable().property_int_value
            return IndexStatistics(
                keys=value("rocksdb.estimate-num-keys") or 0,
                disk_bytes=value("rocksdb.total-sst-files-size") or 0,
                memory_bytes=sum(
                    value(name) or 0
                    for name in (
                        "rocksdb.block-cache-usage",
                        "rocksdb.size-all-mem-tables",
                        "rocksdb.estimate-table-readers-mem",
                    )
                ),
            )
        except Exception as error:
            raise self._failure(error) from error

    def _run_cursor(self) -> Cursor:
        db = self._db or self._readable()
        return db.iter(self._run_reads)

    def _cursor(self) -> Cursor:
        return self._readable().iter(self._all_reads)

    def _readable(self) -> Rdict:
        db = self._db
        if db is None:
            assert not self._closed, "the index was used after close"
            raise TransientIndexError(f"index {self.path} is being reopened")
        return db

    def _writable(self) -> Rdict:
        if self._failed is not None:
            raise self._failed
        return self._readable()

    def _let_go(self) -> Exception | None:
        """Close the database; what went wrong, since the caller may be here because of it."""
        db, self._db = self._db, None
        if db is not None:
            try:
                db.close()
            except Exception as error:
                return error
        return None

    def _failure(self, error: Exception) -> LedgerError:
        """rocksdict raises plain `Exception`s whose text begins with RocksDB's status."""
        if isinstance(error, LedgerError):
            return error
        if isinstance(error, DbClosedError):
            return TransientIndexError(f"index {self.path} is being reopened")
        return DamagedIndexError(f"index {self.path} cannot be read: {_line(error)}; {REBUILD}")

    def _write_failure(self, error: Exception) -> LedgerError:
        if isinstance(error, DbClosedError):
            return TransientIndexError(f"index {self.path} is being reopened")
        self._failed = IndexFailedError(
            f"index {self.path} cannot be written: {_line(error)}; reopen it and repeat the "
            "checkpoint"
        )
        return self._failed

    def _open(self, *, create: bool) -> Rdict:
        _look_before_opening(self.path, create=create)
        try:
            return Rdict(self.path, _database_options(self._options))
        except Exception as error:
            text = _line(error)
            if "LOCK" in text and "lock" in text:
                raise TransientIndexError(
                    f"index {self.path} is open elsewhere: {text}; stop the other process"
                ) from error
            if "No space left" in text:  # opening writes; the database is as good as it was
                raise IndexFailedError(
                    f"index {self.path} cannot be opened: {text}; free space on that disk"
                ) from error
            raise DamagedIndexError(
                f"index {self.path} cannot be opened: {text}; {REBUILD}"
            ) from error


def open_index(
    path: str, *, store_id: bytes, create: bool = False, options: IndexOptions | None = None
) -> RocksIndex:
    """Open the index of this store. `create` demands that there is none yet.

    An index is stamped with its store's id when it is made. A directory that holds no stamped
    index is never taken for an empty one: every entry would then be reported as missing.
    """
    index = RocksIndex(path, options or IndexOptions(), create=create)
    try:
        if create:
            _stamp(index, store_id)
        check_stamp(index, path, store_id)
    except BaseException:
        index.close()
        raise
    return index


def _stamp(index: RocksIndex, store_id: bytes) -> None:
    # A crash may have left an index without its stamp; it is as good as none while empty.
    cursor = index._cursor()
    cursor.seek(b"")
    if cursor.valid():
        raise DamagedIndexError(f"index {index.path} exists already: open it, or move it away")
    del cursor
    index.apply(stamp(store_id))
    index.flush()
    OSFileSystem().sync_directory(os.path.dirname(os.path.abspath(index.path)))


def _look_before_opening(path: str, *, create: bool) -> None:
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise DamagedIndexError(f"index {path} cannot be opened: {error}") from error
    if "CURRENT" in names:
        return
    if foreign := sorted(name for name in names if not _UNBORN.fullmatch(name)):
        raise DamagedIndexError(
            f"{path} holds no index but other files ({foreign[0]}): check the configured directory"
        )
    if not create:
        raise DamagedIndexError(f"index {path} is missing; put it back, or {REBUILD}")


def _database_options(options: IndexOptions) -> Options:
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(options.block_cache_bytes))
    tables.set_block_size(_BLOCK_BYTES)
    tables.set_bloom_filter(_BLOOM_BITS, False)
    # Index and filter blocks stay with the open tables: a look-up never waits for them.
    tables.set_cache_index_and_filter_blocks(False)
    database = Options(raw_mode=True)  # bytes in, bytes out; other key types cost 2.8 times as much
    database.create_if_missing(True)
    database.set_block_based_table_factory(tables)
    database.set_prefix_extractor(SliceTransform.create_fixed_prefix(_RUN_PREFIX_BYTES))
    database.set_compression_type(DBCompressionType.lz4())
    database.set_write_buffer_size(options.write_buffer_bytes)
    database.set_max_write_buffer_number(options.write_buffers)
    database.set_max_background_jobs(options.background_jobs)
    # RocksDB's default lets the first level grow to 256 MiB, all of it rewritten every few
    # flushes, since each flush touches keys all over. The same size as level zero is enough.
    database.set_max_bytes_for_level_base(4 * options.write_buffer_bytes)
    database.set_target_file_size_base(options.write_buffer_bytes)
    database.add_compact_on_deletion_collector_factory(_DELETION_WINDOW, _DELETION_WINDOW // 2, 0.5)
    # The end of a look-up took 3-5 ms of CPU now and then, and on a busy disk a quarter of a
    # second, to unlink what a compaction had replaced meanwhile. Everybody waited for the GIL.
    database.set_avoid_unnecessary_blocking_io(True)
    database.set_skip_stats_update_on_db_open(True)
    database.set_stats_dump_period_sec(0)
    database.set_stats_persist_period_sec(0)
    database.set_keep_log_file_num(_INFO_LOGS_KEPT)
    database.set_max_log_file_size(_INFO_LOG_BYTES_MAX)
    return database


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
