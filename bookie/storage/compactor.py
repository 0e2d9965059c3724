"""Rewriting what lives of nearly empty logs, so that these can go.

Copies go into a log of their own kind, which stays open from source to source until it is full:
otherwise every round would leave a swarm of small logs. A source is never changed. Its runs are
copied and the copies synced; then old keys go and new keys come, each pair in one piece of the
index; and only when that is flushed may the source be removed. A crash in between leaves copies
that no key names, or a source that no key names: both are dead, and found to be so by their keys.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from bookie.core.letting_go import let_go
from bookie.storage.entry_log_format import HEADER_BYTES, LogKind
from bookie.storage.entry_log_writer import EntryLogWriter
from bookie.storage.index_format import LogState
from bookie.storage.indexed_run import RUN_HEADER_BYTES, IndexedRun
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.living_runs import (
    UnreadableLogError,
    blame,
    living_runs,
    named_runs,
    read_living,
)
from bookie.storage.log_table import Move
from runtime.files import FileSystem
from wire.errors import CorruptionError

_log = logging.getLogger(__name__)

#: Copies whose keys are still to be exchanged. More would only cost memory.
_MOVES_MAX: Final = 4096


class Compactor:
    """Belongs to the garbage thread of one ledger directory."""

    def __init__(
        self,
        directory: LedgerDirectory,
        files: FileSystem,
        *,
        charge: Callable[[int], None],
        is_dropped: Callable[[IndexedRun], bool],
        on_damage: Callable[[IndexedRun, Exception], None],
    ) -> None:
        self._directory = directory
        self._files = files
        self._charge = charge  # told the bytes read and written
        self._is_dropped = is_dropped  # its ledger is gone, its key will go without our help
        self._on_damage = on_damage
        self._log: EntryLogWriter | None = None
        self._committed = 0  # how far the index has been told of the log
        self._moves: list[tuple[IndexedRun, bytes]] = []
        self._ended: dict[int, tuple[LogState, int]] = {}  # logs that the index calls open yet
        self.bytes_done = 0  # of the source at hand
        self._staying_bytes = 0  # of runs that are not copied, dead or damaged
        self.bytes_copied = 0
        self.damaged_runs = 0
        self.unreadable_logs = 0

    def compact(self, log_id: int) -> Iterator[None]:
        """Copy what lives of a log and exchange its keys; stops now and then.

        One bad run, or a whole bad log, does not keep the others from being compacted.
        """
        self.bytes_done = self._staying_bytes = 0
        try:
            for run in living_runs(self._directory, log_id):
                if run is not None:
                    yield from self._take(run)
                    self.bytes_done = run.offset
                else:
                    yield
            self._commit()
            yield
            if self._directory.table.live_bytes(log_id) > self._staying_bytes:
                for run in named_runs(self._directory, log_id):  # no header leads to them
                    yield from self._take(run)
                self._commit()
        except UnreadableLogError as error:
            self._moves.clear()
            self.unreadable_logs += 1
            _log.error("compaction passes over a log: %s", error)

    def end(self) -> None:
        """Seal the open log: the bookie stops."""
        if self._log is not None:
            self._commit()
            self._roll(self._log)
        self._settle()

    def give_up(self) -> None:
        """After an error: let go of the open log and of the copies whose keys it did not get.

        What the index was never told of is cut off, or the full disk would stay full of it.
        """
        log, self._log = self._log, None
        self._moves.clear()
        if log is None:
            return
        log.close()
        table = self._directory.table
        stored = table.get(log.log_id)
        if self._committed == HEADER_BYTES and not (stored and stored.live_bytes):
            with contextlib.suppress(OSError):
                self._files.remove(log.path)
            table.forget(log.log_id)
            return
        with contextlib.suppress(OSError):
            file = self._files.open(log.path)
            try:
                file.truncate(self._committed)
            finally:
                file.close()
        self._ended[log.log_id] = (LogState.SEALED, self._committed)

    def let_go(self) -> None:
        """The index failed, perhaps with keys in it that name the newest copies: cut nothing."""
        log, self._log = self._log, None
        self._moves.clear()
        if log is not None:
            log.close()
            self._ended[log.log_id] = (LogState.SEALED, log.size)

    def _take(self, run: IndexedRun) -> Iterator[None]:
        """Copy one run, unless it is dead or damaged."""
        if run.is_damaged or self._is_dropped(run):
            self._staying_bytes += run.body_bytes
            return
        try:
            header, body = read_living(self._directory, run)
        except CorruptionError as error:
            self._blame(run, error)
            return
        log = self._open_log(run.body_bytes)
        self._moves.append((run, log.append_copy(header, body)))
        size = RUN_HEADER_BYTES + run.body_bytes
        self.bytes_copied += size
        self._charge(2 * size)  # once for reading, once for writing
        if log.is_chunk_due:
            log.write_chunk()
            yield
        if len(self._moves) >= _MOVES_MAX:
            self._commit()
            yield

    def _open_log(self, body_bytes: int) -> EntryLogWriter:
        log = self._log
        full = log is not None and log.size + body_bytes > self._directory.log_bytes_target
        if log is not None and log.run_count and full:
            self._commit()
            self._roll(log)
            log = None
        if log is None:
            log = self._log = self._directory.open_log(LogKind.COMPACTION)
            self._committed = log.size
        return log

    def _commit(self) -> None:
        """Make the copies durable, then let the index name them in place of the originals.

        A run whose key has gone meanwhile is dead: its copy must not bring it back.
        """
        log = self._log
        if log is None or not self._moves:
            return
        log.sync()
        table = self._directory.table
        self._committed = log.size  # before the first key: from here on nothing may be cut off
        table.move(self._living_moves(log.log_id))
        table.settle({log.log_id: (LogState.COMPACTION, log.size)})
        self._settle()
        let_go(self._moves)

    def _living_moves(self, log_id: int) -> Iterator[Move]:
        """One at a time: thousands of them, freed at once, would hold the GIL."""
        for run, new_key in self._moves:
            value = self._directory.index.get(run.key)
            if value is not None:
                counts = {run.log_id: -run.body_bytes, log_id: run.body_bytes}
                yield Move(run.key, new_key, value, counts)

    def _roll(self, log: EntryLogWriter) -> None:
        log.seal(self._directory.index.ledger_state)
        self._ended[log.log_id] = (LogState.SEALED, log.size)
        self._log = None
        self._settle()

    def _settle(self) -> None:
        if self._ended:
            self._directory.table.settle(self._ended)
            self._ended = {}

    def _blame(self, run: IndexedRun, error: Exception) -> None:
        """Leave a run that cannot be trusted where it is, and say so."""
        self._staying_bytes += run.body_bytes
        if blame(self._directory, run):
            self.damaged_runs += 1
            self._on_damage(run, error)
