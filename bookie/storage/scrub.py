"""Reading what lives from time to time, before somebody needs it and all copies have rotted.

By default one log a day, slowly; on demand all of them. What is found damaged is flagged and
reported, exactly as if compaction had met it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from bookie.storage.index_format import LogState
from bookie.storage.indexed_run import RUN_HEADER_BYTES, IndexedRun
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.living_runs import UnreadableLogError, blame, living_runs, read_living
from wire.errors import CorruptionError

_log = logging.getLogger(__name__)

#: Which log was read last, so that restarts do not make the first one the only one.
_CURSOR_KEY: Final = b"Sscrubbed-log"


@dataclass(slots=True)
class ScrubReport:
    """What one scrub has found so far."""

    logs_total: int
    bytes_total: int  # file sizes of the logs to read
    logs: int = 0
    runs: int = 0
    bytes: int = 0  # of living runs, read and checked
    damaged_runs: int = 0
    unreadable_logs: int = 0
    current_log: int | None = None
    is_complete: bool = False


class Scrub:
    """Belongs to the garbage thread of one ledger directory."""

    def __init__(
        self,
        directory: LedgerDirectory,
        *,
        charge: Callable[[int], None],
        on_damage: Callable[[IndexedRun, Exception], None],
    ) -> None:
        self._directory = directory
        self._charge = charge
        self._on_damage = on_damage
        self.report: ScrubReport | None = None  # of the scrub under way, or of the last one

    def next_log(self) -> list[int]:
        """The log whose turn it is: the next one by id, and after the last the first."""
        ids = sorted(log.log_id for log in self._directory.table.uses())
        last = int.from_bytes(self._directory.index.get(_CURSOR_KEY) or b"", "big")
        return [log_id for log_id in ids if log_id > last][:1] or ids[:1]

    def all_logs(self) -> list[int]:
        table = self._directory.table
        return sorted(log.log_id for log in table.uses(LogState.SEALED, LogState.DAMAGED))

    def run(self, log_ids: Iterable[int]) -> Iterator[None]:
        """Check these logs; stops now and then."""
        table = self._directory.table
        stored = {log_id: log for log_id in log_ids if (log := table.get(log_id)) is not None}
        report = self.report = ScrubReport(len(stored), sum(log.size for log in stored.values()))
        for log_id in stored:
            report.current_log = log_id
            try:
                for run in living_runs(self._directory, log_id):
                    if run is not None:
                        self._check(run, report)
                    yield
            except UnreadableLogError as error:
                report.unreadable_logs += 1
                _log.error("scrub passes over a log: %s", error)
            report.logs += 1
            table.settle({}, [(_CURSOR_KEY, log_id.to_bytes(4, "big"))])
        report.current_log = None
        report.is_complete = True

    def _check(self, run: IndexedRun, report: ScrubReport) -> None:
        if run.is_damaged:
            return
        try:
            read_living(self._directory, run)
        except CorruptionError as error:
            if blame(self._directory, run):
                report.damaged_runs += 1
                self._on_damage(run, error)
        report.runs += 1
        report.bytes += run.body_bytes
        self._charge(RUN_HEADER_BYTES + run.body_bytes)
