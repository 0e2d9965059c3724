"""A new index out of the entry logs, when the old one cannot be used. For a stopped bookie.

Runs describe themselves, so every entry that a checkpoint has written is found again. Two things
are not in the logs. Ledger states: keys come from footers, but a fence that came later than the
last footer is unknown, and so every ledger is fenced and in limbo until an integrity check has
compared it with the other bookies. And deletions: what garbage collection had dropped is back, and
will be dropped again when it next compares with the metadata.

The mark is set to the oldest block from which the journals go on without a gap; the next start
replays from there, and puts what it finds in limbo as well (`REBUILT_KEY`).

Nothing is deleted. The new index is made beside the old one, which is then renamed to
`index.old-<n>`; until that moment a crash leaves everything as it was. What is no entry log
although it is named like one is renamed too, so that nobody takes it for an empty one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from bookie.storage.entry_log_format import HEADER_BYTES, LogKind, RunHeader
from bookie.storage.entry_log_inspect import entry_logs
from bookie.storage.entry_log_reader import EntryLogReader, ForeignLogError, Gap, OpenLogs
from bookie.storage.index_format import (
    MARK_KEY,
    NEEDS_INTEGRITY_CHECK_KEY,
    REBUILT_KEY,
    JournalPosition,
    LogMark,
    LogState,
    StoredLedgerState,
    StoredLog,
    encode_flag,
    ledger_key,
    location_of,
    log_key,
    run_key,
)
from bookie.storage.index_interface import PIECE_CHANGES_MAX, Change, Index, OpenIndex
from bookie.storage.journal_chain import find_chain
from bookie.storage.replay import nowhere
from bookie.storage.run_builder import rebuild_value
from bookie.storage.store_files import StoreError, StoreFiles
from bookie.storage.store_inspect import read_slot
from runtime.files import FileSystem
from wire.errors import CorruptionError

INDEX_NAME = "index"
_NEW_NAME = "index.new"


@dataclass(slots=True)
class RebuildReport:
    """What was found, and what was made of it."""

    path: str
    logs: int = 0
    runs: int = 0
    entries: int = 0  # every copy counted
    body_bytes: int = 0
    ledgers: int = 0
    keyless_ledgers: int = 0  # take the first key that is offered to them
    mark: LogMark | None = None
    set_aside: list[str] = field(default_factory=list)  # new names of what was renamed
    problems: list[str] = field(default_factory=list)  # one line each


#: Told the number of logs done, of logs in all, and of runs found.
Progress = Callable[[int, int, int], None]


def rebuild_index(
    files: FileSystem,
    journal_directories: Sequence[str],
    ledger_directories: Sequence[str],
    number: int,
    *,
    open_index: OpenIndex,
    rename_index: Callable[[str, str], None] | None = None,
    dry_run: bool = False,
    on_progress: Progress = lambda done, total, runs: None,
) -> RebuildReport:
    """Rebuild the index of ledger directory `number` of a store that no bookie has open.

    All directories of the store are named, as for a start, because the journals belong to it too.
    With `dry_run` everything is read and nothing is written.
    """
    store = StoreFiles(
        files, journal_directories, ledger_directories, new_store_id=_refuse, allow_expansion=True
    )
    try:
        if store.added:
            raise StoreError(f"{store.added[0]} carries no stamp: restore it before a rebuild")
        work = _Rebuild(files, store, store.ledger_paths[number])
        if dry_run:
            for _ in work.changes(on_progress):
                pass
            return work.report
        rename = rename_index or files.rename
        new = os.path.join(work.path, _NEW_NAME)
        work.set_aside(rename, new, INDEX_NAME)  # if an earlier rebuild did not finish
        index = open_index(new, store_id=store.store_id, create=True)
        try:
            _fill(index, work.changes(on_progress))
        finally:
            index.close()
        work.exchange(rename, new)
        return work.report
    finally:
        store.close()


class _Rebuild:
    def __init__(self, files: FileSystem, store: StoreFiles, path: str) -> None:
        self.path = path
        self.report = RebuildReport(path)
        self._files = files
        self._store = store
        self._keys: dict[int, bytes] = {}  # every ledger met, and its key if a footer knows it
        self._sequence = 0
        self._unreadable: list[str] = []

    def changes(self, on_progress: Progress) -> Iterator[Change]:
        """Everything that belongs into the index."""
        # The journals first: if they cannot be used, nothing is worth the time.
        positions = tuple(self._positions())
        logs = entry_logs(self._files, self.path)
        readers = OpenLogs(self._files, self.path, store_id=self._store.store_id, capacity=1)
        try:
            newest = self._newest_of_each_kind(readers, logs)
            for log_id, path in logs:
                yield from self._log(readers, log_id, path, is_newest=log_id in newest)
                self.report.logs += 1
                on_progress(self.report.logs, len(logs), self.report.runs)
        finally:
            readers.close()
        for ledger_id, key in sorted(self._keys.items()):
            state = StoredLedgerState(master_key=key, fenced=True, limbo=True)
            yield ledger_key(ledger_id), state.encode()
        self.report.ledgers = len(self._keys)
        self.report.keyless_ledgers = sum(not key for key in self._keys.values())
        self.report.mark = LogMark(max(self._sequence, self._slot_checkpoint()), positions)
        yield NEEDS_INTEGRITY_CHECK_KEY, encode_flag(True)
        yield REBUILT_KEY, encode_flag(True)
        yield MARK_KEY, self.report.mark.encode()

    def exchange(self, rename: Callable[[str, str], None], new: str) -> None:
        """Put the new index in the place of the old one."""
        for path in self._unreadable:
            self.set_aside(self._files.rename, path, os.path.basename(path))
        old = os.path.join(self.path, INDEX_NAME)
        self.set_aside(rename, old, INDEX_NAME)
        rename(new, old)
        self._files.sync_directory(self.path)

    def set_aside(self, rename: Callable[[str, str], None], path: str, name: str) -> None:
        """Give it a name that is free; nothing happens if it is not there."""
        places = (os.path.join(self.path, f"{name}.old-{number}") for number in count(1))
        aside = next(place for place in places if not self._files.exists(place))
        with suppress(FileNotFoundError):
            rename(path, aside)
            self._files.sync_directory(self.path)
            self.report.set_aside.append(aside)

    def _log(
        self, readers: OpenLogs, log_id: int, path: str, *, is_newest: bool
    ) -> Iterator[Change]:
        try:
            log = readers.get(log_id)
        except ForeignLogError:
            raise
        except CorruptionError as error:
            self.report.problems.append(f"{error}; it is set aside")
            self._unreadable.append(path)
            return
        footer = log.read_footer()
        for ledger_id, totals in footer.ledgers.items() if footer else ():
            # Later logs know better, so they may replace a key, but not by none.
            self._keys[ledger_id] = totals.master_key or self._keys.get(ledger_id, b"")
        live_bytes, end = 0, HEADER_BYTES
        is_damaged = False
        for found in log.hop():
            if isinstance(found, Gap):
                if footer is not None or not is_newest:
                    is_damaged = True
                    self.report.problems.append(
                        f"{found.reason}; bytes {found.offset}..{found.end} of {path} are lost"
                    )
                continue
            end = found.end
            value = self._value(log, found)
            if value is None:
                is_damaged = True
                continue
            live_bytes += found.body_bytes
            location = location_of(log_id=log_id, offset=found.offset)
            yield run_key(found.ledger_id, found.last, location), value
        if is_damaged and not live_bytes:
            self._unreadable.append(path)
            return
        # A log without a footer gets one at the next start.
        state, size = (LogState.SEALED, log.size()) if footer else (LogState.OPEN, end)
        if is_damaged:
            state, size = LogState.DAMAGED, log.size()
        yield log_key(log_id), StoredLog(state, size, live_bytes, log.header.created_ms).encode()

    def _value(self, log: EntryLogReader, header: RunHeader) -> bytes | None:
        """The index value of a run; None if its bytes are not what they were."""
        report = self.report
        try:
            _, body = log.read_run(header.offset, header.body_bytes)
            value = rebuild_value(header, body)
        except CorruptionError as error:
            report.problems.append(
                f"{error}; entries {header.first}..{header.last} of ledger {header.ledger_id} in "
                f"{log.path} are lost"
            )
            # The ledger was here: what is asked for must not be answered with "no such ledger".
            self._keys.setdefault(header.ledger_id, b"")
            return None
        self._keys.setdefault(header.ledger_id, b"")
        self._sequence = max(self._sequence, header.sequence)
        report.runs += 1
        report.entries += header.entry_count
        report.body_bytes += header.body_bytes
        return value

    def _newest_of_each_kind(self, readers: OpenLogs, logs: Sequence[tuple[int, str]]) -> set[int]:
        """The logs that may have been open when the bookie died: remains at their end are normal.

        A flush and a compaction each have one log open.
        """
        newest: dict[LogKind, int] = {}
        for log_id, _ in reversed(logs):
            try:
                newest.setdefault(readers.get(log_id).header.kind, log_id)
            except CorruptionError:
                continue
            if len(newest) == len(LogKind):
                break
        return set(newest.values())

    def _positions(self) -> Iterator[JournalPosition]:
        for number, path in enumerate(self._store.journal_paths):
            chain = find_chain(self._files, path, self._store.store_id)
            if chain.older_file_ids:
                self.report.problems.append(
                    f"journal {path} is replayed from file {chain.file_ids[0]:016x} on; what older "
                    f"files hold (up to {chain.older_file_ids[-1]:016x}) does not lead up to it"
                )
            yield JournalPosition(number, *chain.start) if chain.start else nowhere(number)

    def _slot_checkpoint(self) -> int:
        """The new mark must not be older than the slots, or the next start would refuse it."""
        try:
            slot = read_slot(self._files, self.path)
        except CorruptionError as error:
            self.report.problems.append(str(error))
            return 0
        return 0 if slot is None else slot.checkpoint


def _fill(index: Index, changes: Iterator[Change]) -> None:
    piece: list[Change] = []
    for change in changes:
        piece.append(change)
        if len(piece) == PIECE_CHANGES_MAX:
            index.apply(piece)
            index.flush()
            piece = []
    index.apply(piece)
    index.flush()


def _refuse() -> bytes:
    raise StoreError("none of the directories carries a stamp: there is no store to rebuild")
