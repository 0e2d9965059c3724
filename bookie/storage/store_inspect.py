"""Looking at a stopped store: files by kind, last marks, one ledger. For people and their commands.

An index can be opened by one process only, so these need the bookie stopped; `files_on_disk` and
`read_slot` do not, and never write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

from bookie.core.entry_ranges import Range, entry_count
from bookie.storage.entry_log_format import log_id_of_name
from bookie.storage.index_format import (
    CLEAN_SHUTDOWN_KEY,
    NEEDS_INTEGRITY_CHECK_KEY,
    LogMark,
    StoredLedgerState,
    decode_flag,
)
from bookie.storage.index_interface import Index
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.journal_format import file_id_of, is_spare
from bookie.storage.listing import indexed_entries, indexed_runs
from bookie.storage.mark_slots import MARK_NAME, SLOT_BYTES, SlotMark, newest_slot
from bookie.storage.store_files import LOCK_NAME, NEW_STAMP, STAMP_NAME
from runtime.files import FileSystem


class FileKind(Enum):
    JOURNAL = "journal"
    SPARE = "journal file in preparation"
    LOG = "entry log"
    INDEX = "index"
    OLD_INDEX = "index set aside by a rebuild"
    MARK = "mark slots"
    STAMP = "stamp"
    LOCK = "lock"
    COOKIE = "cookie"
    RESERVE = "reserve"
    OTHER = "not ours"


@dataclass(frozen=True, slots=True)
class FoundFile:
    path: str
    kind: FileKind
    byte_count: int  # of a directory, all that is in it


def files_on_disk(files: FileSystem, directories: Sequence[str]) -> Iterator[FoundFile]:
    """What lies in these directories (`.../current` ones), by kind. A running bookie may be in."""
    for directory in directories:
        for name in files.list_directory(directory):
            path = os.path.join(directory, name)
            kind = kind_of(name)
            try:
                yield FoundFile(path, kind, _size(files, path))
            except FileNotFoundError:  # a running bookie has moved on
                continue


def kind_of(name: str) -> FileKind:
    if file_id_of(name) is not None:
        return FileKind.JOURNAL
    if log_id_of_name(name) is not None:
        return FileKind.LOG
    if is_spare(name):
        return FileKind.SPARE
    if name.startswith("index."):
        return FileKind.OLD_INDEX
    return _KINDS.get(name, FileKind.OTHER)


_KINDS = {
    "index": FileKind.INDEX,
    MARK_NAME: FileKind.MARK,
    STAMP_NAME: FileKind.STAMP,
    NEW_STAMP: FileKind.STAMP,
    LOCK_NAME: FileKind.LOCK,
    "VERSION": FileKind.COOKIE,
    "reserve": FileKind.RESERVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMark:
    """How far one ledger directory is, by its index and by its mark slots."""

    mark: LogMark | None
    slot: SlotMark | None
    clean_shutdown: bool
    needs_integrity_check: bool


def last_mark(files: FileSystem, directory: str, index: Index) -> LastMark:
    return LastMark(
        mark=index.mark(),
        slot=read_slot(files, directory),
        clean_shutdown=decode_flag(index.get(CLEAN_SHUTDOWN_KEY)),
        needs_integrity_check=decode_flag(index.get(NEEDS_INTEGRITY_CHECK_KEY)),
    )


def read_slot(files: FileSystem, directory: str) -> SlotMark | None:
    """The newest mark slot of a ledger directory, without the index and without writing."""
    path = os.path.join(directory, MARK_NAME)
    if not files.exists(path):
        return None
    with closing(files.open(path, read_only=True)) as file:
        return newest_slot([file.read(SLOT_BYTES, place * SLOT_BYTES) for place in (0, 1)], path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    ledger_id: int
    state: StoredLedgerState | None
    runs: tuple[IndexedRun, ...]
    entries: list[Range]

    @property
    def entry_count(self) -> int:
        return entry_count(self.entries)

    @property
    def body_bytes(self) -> int:
        """With every copy of an entry counted."""
        return sum(run.body_bytes for run in self.runs)


def inspect_ledger(index: Index, ledger_id: int) -> LedgerReport:
    """One ledger as one directory's index has it; what only the journal has is not in it."""
    return LedgerReport(
        ledger_id=ledger_id,
        state=index.ledger_state(ledger_id),
        runs=tuple(indexed_runs(index, ledger_id)),
        entries=indexed_entries(index, ledger_id),
    )


def _size(files: FileSystem, path: str) -> int:
    try:
        names = files.list_directory(path)
    except NotADirectoryError:
        with closing(files.open(path, read_only=True)) as file:
            return file.size()
    return sum(_size(files, os.path.join(path, name)) for name in names)
