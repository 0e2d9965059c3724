"""The check of a stopped ledger directory against itself: index and entry logs must agree.

Every run that the index names is read where it should be, header, checksums and records; every
log's living bytes are counted again. Nothing is changed. The index is walked once and the logs are
read from end to end, in their order, so a check takes as long as the disk needs to read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bookie.storage.entry_log_format import RunHeader, log_name
from bookie.storage.entry_log_inspect import entry_logs
from bookie.storage.entry_log_reader import EntryLogReader, Gap, OpenLogs
from bookie.storage.index_format import StoredLog, location_of, run_key
from bookie.storage.index_interface import Index
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.run_builder import rebuild_value
from runtime.files import FileSystem
from wire.errors import CorruptionError


@dataclass(slots=True)
class ConsistencyReport:
    logs: int = 0
    runs: int = 0  # named by the index and found as they should be
    entries: int = 0
    dead_runs: int = 0  # in logs, named by nobody: what garbage collection left
    damaged_runs: int = 0  # known to be damaged: flagged in the index
    problems: list[str] = field(default_factory=list)  # one line each

    @property
    def is_consistent(self) -> bool:
        return not self.problems


def check_directory(
    files: FileSystem,
    directory: str,
    index: Index,
    *,
    store_id: bytes,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> ConsistencyReport:
    """Check one ledger directory. `on_progress` is told how many logs of how many are done."""
    report = ConsistencyReport()
    named, live_bytes = _named_by_the_index(index)
    stored = dict(index.logs())
    present = [log_id for log_id, _ in entry_logs(files, directory)]
    logs = OpenLogs(files, directory, store_id=store_id)
    try:
        for log_id in sorted({*present, *stored, *named}):
            record = stored.get(log_id)
            _check_record(report, log_id, record, live_bytes[log_id])
            if log_id in present:
                _check_log(report, logs, index, log_id, named[log_id])
            elif named[log_id]:
                report.problems.append(
                    f"entry log {log_name(log_id)} is missing in {directory}: {named[log_id]} runs "
                    "in the index are unreadable until they are re-replicated"
                )
            report.logs += 1
            on_progress(report.logs, len(present))
    finally:
        logs.close()
    return report


def _named_by_the_index(index: Index) -> tuple[Counter[int], Counter[int]]:
    """Runs by log, and the bytes of their bodies."""
    runs: Counter[int] = Counter()
    live_bytes: Counter[int] = Counter()
    for run in index.runs():
        runs[run.log_id] += 1
        live_bytes[run.log_id] += run.body_bytes
    return runs, live_bytes


def _check_record(
    report: ConsistencyReport, log_id: int, record: StoredLog | None, live_bytes: int
) -> None:
    if record is None:
        if live_bytes:
            report.problems.append(f"the index names runs of log {log_id:08x} and not the log")
    elif record.live_bytes != live_bytes:
        report.problems.append(
            f"the index counts {record.live_bytes} living bytes in log {log_id:08x}, its runs have "
            f"{live_bytes}"
        )


def _check_log(
    report: ConsistencyReport, logs: OpenLogs, index: Index, log_id: int, named: int
) -> None:
    try:
        log = logs.get(log_id)
    except CorruptionError as error:
        if named:
            report.problems.append(f"{error}; {named} runs in the index point there")
        return
    met = 0
    for found in log.hop(lambda: index.run_offsets(log_id)):
        if isinstance(found, Gap):
            continue  # what the index names in it is missed below
        location = location_of(log_id=log_id, offset=found.offset)
        key = run_key(found.ledger_id, found.last, location)
        value = index.get(key)
        if value is None:
            report.dead_runs += 1
            continue
        met += 1
        _check_run(report, log, found, IndexedRun(key, value))
    if met != named:
        for run in [run for run in index.runs() if run.log_id == log_id]:
            _check_place(report, log, run)


def _check_run(
    report: ConsistencyReport, log: EntryLogReader, header: RunHeader, run: IndexedRun
) -> None:
    if run.is_damaged:
        report.damaged_runs += 1
        return
    try:
        _, body = log.read_run(header.offset, header.body_bytes)
        if not _is_same(IndexedRun(run.key, rebuild_value(header, body)), run):
            raise CorruptionError(f"{log.path}: {run} is not what the log holds there")
    except CorruptionError as error:
        report.problems.append(f"{error} (entries {run.first}..{run.last} of {run.ledger_id})")
        return
    report.runs += 1
    report.entries += run.entry_count


def _is_same(rebuilt: IndexedRun, run: IndexedRun) -> bool:
    """Whether both say the same of the records.

    Their bytes may differ: sizes that are all alike are stored once or each, depending on what the
    writer knew of them.
    """
    return rebuilt.value == run.value or (
        (rebuilt.first, rebuilt.last, rebuilt.entry_count, rebuilt.sequence)
        == (run.first, run.last, run.entry_count, run.sequence)
        and (rebuilt.body_bytes, rebuilt.body_crc) == (run.body_bytes, run.body_crc)
        and list(rebuilt.entry_ids()) == list(run.entry_ids())
        and list(rebuilt.starts()) == list(run.starts())
    )


def _check_place(report: ConsistencyReport, log: EntryLogReader, run: IndexedRun) -> None:
    """A run that the walk did not meet: its header says why."""
    try:
        header = log.read_run_header(run.offset)
        if (header.ledger_id, header.last) != (run.ledger_id, run.last):
            raise CorruptionError(
                f"{log.path}: the run at {run.offset} is of ledger {header.ledger_id} and ends at "
                f"{header.last}"
            )
    except CorruptionError as error:
        if not run.is_damaged:
            report.problems.append(
                f"{error}; the index has entries {run.first}..{run.last} of ledger "
                f"{run.ledger_id} there"
            )
        else:
            report.damaged_runs += 1
