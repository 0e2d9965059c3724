"""Logs that an earlier life of the bookie left open: find their end and give them a footer.

The index decides what lives: a run counts if its exact key is there. What stands behind the last
such run is what a crash left of a checkpoint that never completed; the journal has it, and replay
will write it again, elsewhere. A header that cannot be read in front of a living run is damage,
which is reported and never cut off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from bookie.storage.entry_log_format import Footer, LedgerTotals, log_id_of_name, log_name
from bookie.storage.entry_log_reader import EntryLogReader, ForeignLogError, Gap
from bookie.storage.entry_log_writer import seal_old_log
from bookie.storage.index_format import LogState, StoredLog, location_of, run_key
from bookie.storage.ledger_directory import LedgerDirectory, is_full
from runtime.files import FileSystem
from wire.errors import CorruptionError


def mend_logs(files: FileSystem, directory: LedgerDirectory, *, was_clean: bool) -> list[str]:
    """End every log that is still open; one line for each damage found."""
    names = files.list_directory(directory.path)
    present = {log_id for name in names if (log_id := log_id_of_name(name)) is not None}
    reports = []
    for log_id in sorted(present | set(directory.table.ids())):
        stored = directory.table.get(log_id)
        if stored is not None and log_id not in present:
            if stored.live_bytes:
                reports.append(
                    f"entry log {log_name(log_id)} is missing in {directory.path}: its entries "
                    "are answered with errors until they are re-replicated"
                )
            # Of a log that was empty, a crash has only kept the record; it will be removed.
            directory.table.settle({log_id: (LogState.SEALED, stored.size)})
            continue
        if stored is not None and stored.state in (LogState.SEALED, LogState.DAMAGED):
            if log_id == max(present):
                reports += _look_at_newest(directory, log_id)
            continue
        reports += _mend(files, directory, log_id, stored, was_clean=was_clean)
    directory.index.flush()
    return reports


def _mend(
    files: FileSystem,
    directory: LedgerDirectory,
    log_id: int,
    stored: StoredLog | None,
    *,
    was_clean: bool,
) -> Iterator[str]:
    table, index = directory.table, directory.index
    if stored is None:
        stored = StoredLog(LogState.OPEN, 0, 0, 0)
        table.begin(log_id, stored)
    path = os.path.join(directory.path, log_name(log_id))
    try:
        log = directory.logs.get(log_id)
    except ForeignLogError:
        raise
    except CorruptionError as error:
        # The header reached the disk with the first sync, and no key was written before that.
        state = LogState.DAMAGED if stored.live_bytes else LogState.SEALED
        table.settle({log_id: (state, stored.size)})
        if stored.live_bytes:
            yield str(error)
        return
    footer = log.read_footer()
    if footer is not None:
        table.settle({log_id: (LogState.SEALED, log.size())})
        return
    end, ledgers, gaps = _living(log, directory)
    damage = [gap for gap in gaps if gap.offset < max(end, stored.size)]
    yield from (gap.reason for gap in damage)
    if damage:
        table.settle({log_id: (LogState.DAMAGED, log.size())})
        return
    end = max(end, min(stored.size, log.size()))
    directory.logs.forget(log_id)
    file = files.open(path)
    try:
        seal_old_log(file, Footer(log_id, end, ledgers), index.ledger_state)
        size = file.size()
    except OSError as error:
        if not is_full(error):
            raise
        size = file.size()  # it does without a footer: its run headers say the same
    finally:
        file.close()
    table.settle({log_id: (LogState.SEALED, size)})


def _look_at_newest(directory: LedgerDirectory, log_id: int) -> Iterator[str]:
    """A newer release, or another store, that was here meanwhile has left its logs behind ours.

    The others are not looked at before somebody reads them; there may be thousands.
    """
    try:
        directory.logs.get(log_id)
    except ForeignLogError:
        raise
    except CorruptionError as error:
        yield str(error)


def _living(
    log: EntryLogReader, directory: LedgerDirectory
) -> tuple[int, dict[int, LedgerTotals], list[Gap]]:
    """Where the last living run ends, what lives by ledger, and what could not be read."""
    end = 0
    ledgers: dict[int, LedgerTotals] = {}
    gaps = []
    for found in log.hop(lambda: directory.index.run_offsets(log.log_id)):
        if isinstance(found, Gap):
            gaps.append(found)
            continue
        location = location_of(log_id=log.log_id, offset=found.offset)
        if directory.index.contains(run_key(found.ledger_id, found.last, location)):
            end = found.end
            ledgers[found.ledger_id] = ledgers.get(found.ledger_id, LedgerTotals()).plus(found)
    return end, ledgers, gaps
