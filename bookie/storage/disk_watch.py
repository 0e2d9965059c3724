"""Watches the room on all disks of a bookie, and says when to stop taking entries.

Measured every few seconds, for journal and ledger disks alike, and judged afresh each time
(`core/disk_space.py`). There are other reasons to stop: a journal that finds no room for its next
file, a directory that cannot be written. Each of them ends by itself, and none outlives the
others: what the bookie accepts is computed from all of them whenever one changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bookie.core.disk_space import Level, Space, Thresholds, Verdict, judge
from bookie.storage.reserve import Reserve
from runtime.files import FileSystem

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOptions:
    thresholds: Thresholds = field(default_factory=Thresholds)
    check_seconds: float = 10.0
    #: In each ledger directory. See `reserve.py` for what a bookie should have.
    reserve_bytes: int = 0
    #: Whether to take no entries when space is short; without it only real errors do that.
    read_only_when_full: bool = True


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the bookie takes, and why."""

    read_only: bool
    accepts_priority: bool  # recovery adds, while read-only
    reason: str


class DiskWatch:
    """Owned by the event loop. Asking a file system for its room does not touch the device."""

    def __init__(
        self,
        files: FileSystem,
        *,
        journal_paths: Sequence[str],
        ledger_paths: Sequence[str],
        reserves: Sequence[Reserve],
        options: DiskOptions,
        clock: Callable[[], float],
    ) -> None:
        self.options = options
        self._files = files
        self._ledger_paths = ledger_paths
        self._paths = [*journal_paths, *ledger_paths]
        self._reserves = reserves
        self._clock = clock
        self._troubles: dict[str, str] = {}  # by what has it: a journal's or a directory's name
        self._checked_at = clock()
        self._spaces: dict[str, Space] = {}
        self.verdict = Verdict(Level.NORMAL, False, True, "")
        self.acceptance = Acceptance(False, True, "")
        #: Told of every new acceptance.
        self.on_change: Callable[[Acceptance], None] = lambda acceptance: None
        self.measure()

    @property
    def is_tight(self) -> bool:
        """Whether garbage should be collected now, and logs be compacted eagerly."""
        return self.verdict.level is not Level.NORMAL or bool(self._troubles)

    def tick(self) -> bool:
        """Measure if it is time; whether it was."""
        now = self._clock()
        if now - self._checked_at < self.options.check_seconds:
            return False
        self._checked_at = now
        self.measure()
        return True

    def measure(self) -> None:
        self._spaces = {path: self._space(path) for path in self._paths}
        stopped = self.verdict.read_only
        verdict = judge(self._spaces, self.options.thresholds, read_only=stopped)
        if verdict.level is not self.verdict.level:
            _log.warning("disk space is %s: %s", verdict.level.value, verdict.reason)
        self.verdict = verdict
        self._decide()

    def note(self, name: str, trouble: Exception | None) -> None:
        """A journal or a directory cannot be written to, or (None) can again."""
        if trouble is not None:
            self._troubles[name] = f"{name}: {trouble}"
        else:
            self._troubles.pop(name, None)
        self._decide()

    def release_where_needed(self) -> None:
        """Before a start: a directory too full to work in gets its reserve back.

        Opening an index, ending a log, and above all the checkpoint of what is replayed need room.
        """
        for path, reserve in zip(self._ledger_paths, self._reserves, strict=True):
            if self._spaces[path].free_bytes < reserve.size and reserve.release():
                _log.warning("%s is full: the bookie starts with the help of the reserve", path)

    def reserves_due(self) -> list[int]:
        """Directories whose reserve was given up and for which there is room again.

        Room enough that taking it does not bring the warning back, or it would come and go.
        """
        due = []
        for number, (path, reserve) in enumerate(
            zip(self._ledger_paths, self._reserves, strict=True)
        ):
            if self._troubles or not reserve.is_due:
                continue
            space = self._spaces[path]
            after = Space(space.total_bytes, space.free_bytes - reserve.size)
            if after.free_bytes > 0 and after.used < self.options.thresholds.warn:
                due.append(number)
        return due

    def _decide(self) -> None:
        verdict = self.verdict
        full = verdict.read_only and self.options.read_only_when_full
        reasons = [*self._troubles.values(), *([verdict.reason] if full else [])]
        # With trouble at hand, an entry more would only wait in memory.
        acceptance = Acceptance(
            read_only=bool(reasons),
            accepts_priority=verdict.accepts_priority and not self._troubles,
            reason="; ".join(reasons),
        )
        before, self.acceptance = self.acceptance, acceptance
        if acceptance.read_only != before.read_only:
            if acceptance.read_only:
                _log.warning("no entries are accepted: %s", acceptance.reason)
            else:
                _log.info("entries are accepted again: %s", verdict.reason)
        if acceptance != before:
            self.on_change(acceptance)

    def _space(self, path: str) -> Space:
        try:
            return Space(*self._files.space(path))
        except OSError as error:
            _log.error("room on the disk of %s is unknown, taken for full: %s", path, error)
            return Space(1, 0)
