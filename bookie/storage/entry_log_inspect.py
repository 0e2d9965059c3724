"""Looking at entry logs as they are, for people: no index, no verdict.

Everything that is recognisable where it stands is shown: header, runs, gaps, footer. The sibling
for journals is `journal_inspect.py`. Nothing here belongs to a start.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from bookie.storage.entry_log_format import (
    HEADER_BYTES,
    Footer,
    LogHeader,
    RunHeader,
    decode_log_header,
    log_id_of_name,
    log_name,
)
from bookie.storage.entry_log_reader import EntryLogReader, Gap
from bookie.storage.run_builder import record_starts
from runtime.files import FileSystem
from wire.errors import CorruptionError

_IDS = struct.Struct(">qqq")  # ledger, entry, LAC


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySummary:
    """One entry in a log; its bytes are the client's and not shown here."""

    ledger_id: int
    entry_id: int
    lac: int
    offset: int  # of the entry itself, behind its length word
    entry_bytes: int


def entry_logs(files: FileSystem, directory: str) -> list[tuple[int, str]]:
    """Id and path of every entry log in a ledger directory, oldest first."""
    ids = (log_id_of_name(name) for name in files.list_directory(directory))
    return [
        (log_id, os.path.join(directory, log_name(log_id)))
        for log_id in sorted(log_id for log_id in ids if log_id is not None)
    ]


def open_log(files: FileSystem, path: str) -> EntryLogReader:
    """A log of any store, by its path alone. It closes itself when nobody refers to it."""
    header = inspect_log_header(files, path)
    file = files.open(path, read_only=True)
    try:
        return EntryLogReader(file, log_id=header.log_id, store_id=header.store_id)
    except BaseException:
        file.close()
        raise


def inspect_log_header(files: FileSystem, path: str) -> LogHeader:
    with closing(files.open(path, read_only=True)) as file:
        return decode_log_header(file.read(HEADER_BYTES, 0), path)


def inspect_runs(files: FileSystem, path: str) -> Iterator[RunHeader | Gap | Footer]:
    """Every run header in turn, gaps where none can be recognised, and the footer if it is good."""
    log = open_log(files, path)
    yield from log.hop()
    footer = log.read_footer()
    if footer is not None:
        yield footer


def inspect_entries(
    files: FileSystem, path: str, *, ledger_id: int | None = None, entry_id: int | None = None
) -> Iterator[EntrySummary | CorruptionError]:
    """The entries of a log, of one ledger or with one id if these are given.

    A run whose bytes fail their CRC is shown as the error that it is.
    """
    log = open_log(files, path)
    for run in log.hop():
        if isinstance(run, Gap):
            yield CorruptionError(f"{path}: {run.reason}; nothing is known up to {run.end}")
            continue
        if ledger_id not in (None, run.ledger_id):
            continue
        if entry_id is not None and not run.first <= entry_id <= run.last:
            continue
        try:
            found = list(_entries(log, run))
        except CorruptionError as error:
            yield error
            continue
        yield from (entry for entry in found if entry_id in (None, entry.entry_id))


def _entries(log: EntryLogReader, run: RunHeader) -> Iterator[EntrySummary]:
    _, body = log.read_run(run.offset, run.body_bytes)
    starts = record_starts(body, run.entry_count)
    for number in range(run.entry_count):
        start, end = starts[number] + 4, starts[number + 1]
        if end - start < _IDS.size:
            raise CorruptionError(f"{log.path}: run at {run.offset} holds a record too short")
        ledger_id, entry_id, lac = _IDS.unpack_from(body, start)
        yield EntrySummary(
            ledger_id=ledger_id,
            entry_id=entry_id,
            lac=lac,
            offset=run.body_offset + start,
            entry_bytes=end - start,
        )
