"""One ledger directory: its index, entry logs and mark, and the thread that checkpoints it.

A checkpoint writes the directory's share of a generation in an order that a crash cannot turn
against us: runs into the log; sync; the log's name; run keys, ledger states and last of all the
mark into the index; flush of the index; the mark slot. Before the index names a run, the run is
durable; before the mark moves, everything it disposes of is in the index.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from bookie.core.ledger import Ledger
from bookie.core.write_cache import Generation, Part
from bookie.storage.entry_log_format import (
    LOG_BYTES_TARGET,
    LogHeader,
    LogKind,
    log_id_of_name,
    log_name,
)
from bookie.storage.entry_log_reader import OpenLogs
from bookie.storage.entry_log_writer import CACHED_BYTES, CHUNK_BYTES, EntryLogWriter
from bookie.storage.index_format import (
    CLEAN_SHUTDOWN_KEY,
    MARK_KEY,
    LogMark,
    LogState,
    StoredLog,
    encode_flag,
    ledger_key,
)
from bookie.storage.index_interface import Change, IndexFailedError
from bookie.storage.indexed_run import RUN_HEADER_BYTES, IndexedRun
from bookie.storage.log_table import LogTable, Written
from bookie.storage.mark_slots import MarkSlots, SlotMark
from runtime.files import FileSystem
from wire.errors import LedgerError

#: A failing disk (not a full one) gets this many tries, each in a new log.
FAILURES_MAX: Final = 3
#: Room that RocksDB needs to open: a new manifest and options, and some to begin with.
_REOPEN_BYTES: Final = 1 << 20
#: Measured checkpoints that wait to be counted; of more the newest are kept.
_FLUSHES_MAX: Final = 1000


def is_full(error: Exception) -> bool:
    """Whether a disk without room is what is behind this. RocksDB only says so in words."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, IndexFailedError) and "No space left" in str(error)


@dataclass(frozen=True, slots=True)
class Share:
    """What one generation has for one directory."""

    parts: Sequence[Part]
    changed: list[Ledger]
    mark: LogMark

    @classmethod
    def of(cls, generation: Generation, directory: int, mark: LogMark) -> Share:
        """The share of one of several directories."""
        return cls(
            [part for part in generation.parts if part.ledger.home == directory],
            [ledger for ledger in generation.changed if ledger.home == directory],
            mark,
        )

    @classmethod
    def whole(cls, generation: Generation, mark: LogMark) -> Share:
        """The share of the only directory, without a look at every part."""
        return cls(generation.parts, list(generation.changed), mark)


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    checkpoints: int
    runs: int
    run_bytes: int
    failures: int


class Flush(NamedTuple):
    """How long a checkpoint took, for whoever counts them."""

    log_ms: int
    index_ms: int
    bytes: int


class LedgerDirectory:
    """`step` and what it calls belong to the flush thread; reading is for everybody."""

    def __init__(
        self,
        number: int,
        path: str,
        *,
        files: FileSystem,
        table: LogTable,
        store_id: bytes,
        mark: LogMark,
        now_ms: Callable[[], int],
        pace: Callable[[], None],
        log_bytes_target: int = LOG_BYTES_TARGET,
        cached_bytes: int = CACHED_BYTES,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self.number = number
        self.path = path
        self.table = table
        self.index = table.index
        self.logs = OpenLogs(files, path, store_id=store_id)
        self.mark = mark
        self.shares: deque[Share] = deque()
        self.flushes: deque[Flush] = deque(maxlen=_FLUSHES_MAX)  # since somebody took them out
        self.trouble: Exception | None = None
        self.failed = False  # for good: too many errors of the disk
        self._files = files
        self._store_id = store_id
        self._now_ms = now_ms
        self._pace = pace  # called after each chunk: naps while the loop should have the processor
        self.log_bytes_target = log_bytes_target
        self._cached_bytes = cached_bytes  # how much of what was written stays in the page cache
        self._cooling: list[int] = []  # sealed logs of which the page cache may still have some
        self._make_room = make_room  # gives up the reserve; whether there was any
        self._slots = MarkSlots(files, path)
        self._log: EntryLogWriter | None = None
        self._distrusted = -1  # a log in which damage was found
        self._ended: dict[int, tuple[LogState, int]] = {}  # logs that the index calls open yet
        self._log_ids = count(self._first_free_log_id())
        self._retrying = True
        self._index_failed = False  # and is to be opened anew
        self._failures = self._checkpoints = self._runs = self._run_bytes = 0

    # For everybody.

    def read(self, run: IndexedRun, start: int, end: int) -> bytes:
        """The records at positions start..end-1 of a run; may wait for the disk."""
        begin = run.start(start)
        return self.logs.get(run.log_id).read(run.start(end) - begin, run.body_offset + begin)

    def read_cached(self, run: IndexedRun, start: int, end: int) -> bytes | None:
        """The same if it can be had without waiting, else None."""
        begin = run.start(start)
        log = self.logs.peek(run.log_id) or self.logs.get(run.log_id)
        return log.read_cached(run.start(end) - begin, run.body_offset + begin)

    def distrust(self, log_id: int) -> None:
        """Damage was found in this log: write no more to it, above all not what it has lost."""
        log = self._log
        if log is not None and log.log_id == log_id:  # the others are not written to anyway
            self._distrusted = log_id

    def retry(self) -> None:
        self._retrying = True

    def statistics(self) -> CheckpointStatistics:
        return CheckpointStatistics(self._checkpoints, self._runs, self._run_bytes, self._failures)

    def new_log_id(self) -> int:
        """For the garbage thread too: ids only ever grow, and no two threads get the same."""
        return next(self._log_ids)

    def open_log(self, kind: LogKind) -> EntryLogWriter:
        header = LogHeader(self.new_log_id(), kind, self._store_id, self._now_ms())
        try:
            log = EntryLogWriter(self._files, self.path, header, cached_bytes=self._cached_bytes)
        except OSError:
            with contextlib.suppress(OSError):  # a file that nobody knows would stay for ever
                self._files.remove(os.path.join(self.path, log_name(header.log_id)))
            raise
        state = LogState.OPEN if kind is LogKind.FLUSH else LogState.COMPACTION
        self.table.begin(log.log_id, StoredLog(state, log.size, 0, header.created_ms))
        return log

    def close(self) -> None:
        """Let go of everything. The caller has taken the last checkpoint, or died trying."""
        if self._log is not None:
            self._log.close()
            self._log = None
        self._slots.close()
        self.logs.close()
        self.index.close()

    # The flush thread.

    def step(self) -> bool:
        if not self.shares or not self._retrying or self.failed:
            return False
        try:
            self._reopen_index()
            self.write(self.shares[0])
        except (OSError, LedgerError) as error:
            self._stumble(error)
            return True
        self.shares.popleft()
        self.trouble = None
        self._failures = 0
        return True

    def write(self, share: Share) -> None:
        """Take a checkpoint. After an error it can be repeated as a whole, in a new log."""
        begun = self._log
        run_bytes = self._run_bytes
        size = begun.size if begun is not None else 0
        started_ms = self._now_ms()
        try:
            if begun is not None and begun.log_id == self._distrusted:
                self._roll(begun)
            written = self._write_runs(share)
            if self._log is not None and written:
                self._log.sync()
                self._cool_down(self._log.size)
        except (OSError, LedgerError):
            self._cut_off(self._log, size if self._log is begun else 0)
            raise
        synced_ms = self._now_ms()
        try:
            self._write_index(share, written)
        except (OSError, LedgerError):
            self._let_go_of_log()
            raise
        self.mark = share.mark
        self._checkpoints += 1
        index_ms = self._now_ms() - synced_ms
        self.flushes.append(Flush(synced_ms - started_ms, index_ms, self._run_bytes - run_bytes))

    def _write_index(self, share: Share, written: list[Written]) -> None:
        # States before keys: a run whose ledger nobody knows could not be found.
        states: list[Change] = [
            # A ledger without a state is one that is to be forgotten.
            (ledger_key(ledger.id), ledger.stored or None)
            for ledger in share.changed
        ]
        self.table.add_runs(states, written)
        settled = dict(self._ended)
        if self._log is not None:
            settled[self._log.log_id] = (LogState.OPEN, self._log.size)
        self.table.settle(settled, [(MARK_KEY, share.mark.encode())])
        self.index.flush()
        self._slots.write(
            SlotMark(
                share.mark.checkpoint,
                *share.mark.journals[0][1:],
                time_ms=self._now_ms(),
            )
        )
        self._ended.clear()

    def end_cleanly(self) -> None:
        """After the last checkpoint: seal the open log and say that nothing is left to replay."""
        if self._log is not None:
            self._roll(self._log)
        flag = [(CLEAN_SHUTDOWN_KEY, encode_flag(True))]
        self.table.settle(dict(self._ended), flag)
        self._ended.clear()
        self.index.flush()

    def _write_runs(self, share: Share) -> list[Written]:
        """Append the share's runs, chunk by chunk; their keys, to be applied after the sync."""
        sequence = share.mark.checkpoint
        log = self._log
        keys: list[Change] = []
        sizes: list[int] = []
        written: list[Written] = [] if log is None else [(log.log_id, keys, sizes)]
        run_bytes = 0
        parts, at = share.parts, 0
        while at < len(parts):
            if log is not None:
                size = log.size
                reached = log.append_small(parts, at, sequence, self.log_bytes_target, keys, sizes)
                run_bytes += log.size - size - (reached - at) * RUN_HEADER_BYTES
                if log.buffered_bytes >= CHUNK_BYTES:
                    log.write_chunk()
                    self._pace()
                if reached > at:
                    at = reached
                    continue
            part = parts[at]
            at += 1
            ledger_id = part.ledger.id
            for run in part.runs_to_write():
                size = len(run.body)
                if log is not None and log.run_count and log.size + size > self.log_bytes_target:
                    self._roll(log)
                    log = None
                if log is None:
                    log = self._log = self.open_log(LogKind.FLUSH)
                    keys, sizes = [], []
                    written.append((log.log_id, keys, sizes))
                keys.append(log.append_run(ledger_id, run, sequence))
                sizes.append(size)
                run_bytes += size
                if log.buffered_bytes >= CHUNK_BYTES:
                    log.write_chunk()
                    self._pace()
        written = [named for named in written if named[1]]
        self._runs += sum(len(keys) for _, keys, _ in written)
        self._run_bytes += run_bytes
        return written

    def _roll(self, log: EntryLogWriter) -> None:
        """Write the log's footer. The index hears of it behind the log's last key, not before:
        compaction would take runs whose keys are still to come for dead ones."""
        log.seal(self.index.ledger_state)
        self._ended[log.log_id] = (LogState.SEALED, log.size)
        self._cooling.append(log.log_id)
        self._log = None

    def _cool_down(self, size: int) -> None:
        """Once the open log alone fills what may stay in the page cache, let go of older ones."""
        if size <= self._cached_bytes:
            return
        for log_id in self._cooling:
            with contextlib.suppress(OSError, LedgerError):  # gone, or unreadable: not our concern
                self.logs.get(log_id).drop_cached()
        self._cooling.clear()

    def _cut_off(self, log: EntryLogWriter | None, size: int) -> None:
        """Give back what a failed checkpoint wrote to its log and the index was never told.

        On a full disk it would take the room that the next try needs. The log itself is not
        written to any more: after an error its tail is in doubt.
        """
        self._let_go_of_log()
        if log is None:
            return
        with contextlib.suppress(OSError):
            if size:
                file = self._files.open(log.path)
                try:
                    file.truncate(size)
                finally:
                    file.close()
            elif not self.table.live_bytes(log.log_id):
                self._files.remove(log.path)
                self.table.forget(log.log_id)
                self._ended.pop(log.log_id, None)

    def _let_go_of_log(self) -> None:
        """Go on in a new log. Without a footer, the run headers of this one say what is in it."""
        if self._log is not None:
            log = self.table.get(self._log.log_id)
            self._ended[self._log.log_id] = (LogState.SEALED, log.size if log else 0)
            self._log.close()
            self._log = None

    def _stumble(self, error: OSError | LedgerError) -> None:
        """Keep the share (the journal has it too) and decide when to try again."""
        if isinstance(error, IndexFailedError):
            self._index_failed = True
        self.trouble = error
        if is_full(error):
            self._retrying = self._make_room()
            return
        self._failures += 1
        self._retrying = False
        self.failed = self._failures >= FAILURES_MAX

    def _reopen_index(self) -> None:
        """Open an index that failed anew, before the next try and not sooner: until then it still
        serves reads, and on a full disk it could be closed but not opened again."""
        if not self._index_failed:
            return
        if self._files.space(self.path).free_bytes < _REOPEN_BYTES:
            raise OSError(errno.ENOSPC, "No space left to open the index again", self.path)
        self.table.reopen()
        self._index_failed = False

    def _first_free_log_id(self) -> int:
        names = map(log_id_of_name, self._files.list_directory(self.path))
        used = [log_id for log_id in names if log_id is not None] + self.table.ids()
        return max(used, default=0) + 1
