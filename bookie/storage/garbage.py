"""The garbage thread of one ledger directory: deletes, unlinks, compacts, scrubs.

Everything that takes runs away or moves them happens in this one thread, so a deletion and a
relocation cannot race; flushes only add. Work comes as jobs, each of them a generator that stops
after a bounded amount of work; between two stops the thread can be paused, slowed down or ended.
A crash may fall anywhere: a log is removed only after no key in the index on disk names it.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from bookie.core.compaction import Budget, Kind, choose
from bookie.core.letting_go import let_go
from bookie.storage.compactor import Compactor
from bookie.storage.entry_log_format import log_name
from bookie.storage.garbage_values import GarbageOptions, GarbageStatistics, Listing, Phase
from bookie.storage.index_format import LogState
from bookie.storage.index_interface import IndexFailedError, TransientIndexError
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.ledger_directory import LedgerDirectory, is_full
from bookie.storage.living_runs import is_dead
from bookie.storage.log_table import Counted
from bookie.storage.reserve import Reserve
from bookie.storage.scrub import Scrub
from runtime.files import FileSystem
from wire.errors import LedgerError
from wire.types import ID_MAX

_log = logging.getLogger(__name__)

#: Run keys looked at, and deleted at most, in one step.
_PAGE_RUNS: Final = 500
#: Ledgers looked at in one step of a listing.
_PAGE_LEDGERS: Final = 1000
#: After this many deletions RocksDB is asked to clear away what they left behind.
_DELETIONS_MANY: Final = 100_000
#: Longest nap of the thread; a longer wait is left to whoever wakes it.
_NAP_SECONDS: Final = 0.25


class _Job:
    __slots__ = ("kind", "not_before", "phase", "steps")

    def __init__(self, phase: Phase, steps: Iterator[None], kind: Kind | None = None) -> None:
        self.phase = phase
        self.steps = steps
        self.kind = kind  # of a round of compaction
        self.not_before = float("-inf")


class GarbageWorker:
    """`step` and what it calls belong to the thread; requests and snapshots are for the loop."""

    def __init__(
        self,
        directory: LedgerDirectory,
        *,
        files: FileSystem,
        options: GarbageOptions,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        sleep: Callable[[float], None],
        is_behind: Callable[[], bool],
        reserve: Reserve,
    ) -> None:
        self.directory = directory
        self.options = options
        self.reserve = reserve
        self.enabled = False  # until the first checkpoint of this life is complete
        self.suspended: set[Kind] = set()
        self.trouble: Exception | None = None
        #: For the loop, which takes them out: damaged runs, and listings that were asked for.
        self.damage: deque[tuple[IndexedRun, Exception]] = deque()
        self.listings: deque[Listing | LedgerError] = deque()
        self._files = files
        self._clock = clock
        self._now_ms = now_ms
        self._sleep = sleep
        self._is_behind = is_behind
        now = clock()
        self._copying = Budget(bytes_per_second=options.compaction_bytes_per_second, now=now)
        self._scrubbing = Budget(bytes_per_second=options.scrub_bytes_per_second, now=now)
        self._compactor = Compactor(
            directory,
            files,
            charge=self._charge_copy,
            is_dropped=self._is_dropped,
            on_damage=self._note_damage,
        )
        self._scrub = Scrub(directory, charge=self._charge_scrub, on_damage=self._note_damage)
        self._drops: dict[int, int] = {}  # ledger -> runs of this sequence and older are dead
        self._handed: deque[tuple[int, int]] = deque()  # changes of it; a sequence of -1 ends one
        self._requests: deque[Callable[[], _Job]] = deque()
        self._rounds_asked: deque[Kind] = deque()
        self._scrubs_asked: deque[bool] = deque()
        # What is short goes first: a compaction that waits must not keep a deletion waiting.
        self._short: _Job | None = None
        self._compaction: _Job | None = None
        self._slow: _Job | None = None
        self._rounds = dict.fromkeys(Kind, 0)
        self._round_seconds = dict.fromkeys(Kind, 0.0)
        self._round_ms = dict.fromkeys(Kind, now_ms())
        self._index_compactions = 0
        self._index_compacted_ms = now_ms()
        self._is_index_asked = False  # to be compacted
        self._log: tuple[int, int] | None = None  # being compacted: id, size
        self._ledgers_deleted = self._runs_deleted = self._logs_removed = self._reclaimed = 0

    # Requests, from the loop, which wakes the worker after them.

    def delete(self, ledger_id: int, sequence: int) -> None:
        """Delete the ledger's runs of this write sequence and older: a tombstone says so, and
        that it does is in the index on disk. Runs written later belong to a repair."""
        self._handed.append((ledger_id, sequence))

    def keep(self, ledger_id: int) -> None:
        """Delete no more of this ledger."""
        self._handed.append((ledger_id, -1))

    def list_ledgers(self) -> None:
        self._requests.append(lambda: _Job(Phase.LISTING, self._list()))

    def remove_dead_logs(self) -> None:
        self._requests.append(lambda: _Job(Phase.REMOVING, self._remove_dead()))

    def compact(self, kind: Kind) -> None:
        """Ask for a round; one that waits already will do for both."""
        if kind not in self._rounds_asked:
            self._rounds_asked.append(kind)

    def scrub(self, *, everything: bool) -> None:
        """Check all logs, or the one whose turn it is."""
        if everything not in self._scrubs_asked:
            self._scrubs_asked.append(everything)

    def restore_reserve(self) -> None:
        self._requests.append(lambda: _Job(Phase.RESERVING, self._restore()))

    def compact_index(self) -> None:
        """Have RocksDB clear away what deletions left behind; one that waits will do for both."""
        if not self._is_index_asked:
            self._is_index_asked = True
            self._requests.append(lambda: _Job(Phase.TIDYING, self._compact_index()))

    def clear_flag(self, key: bytes) -> None:
        self._requests.append(lambda: _Job(Phase.REMOVING, self._clear_flag(key)))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way or asked for. What is paused is not idle."""
        under_way = self._short or self._compaction or self._slow
        drops = self._handed or self._drops
        asked = self._requests or self._rounds_asked or self._scrubs_asked
        return not (under_way or drops or asked)

    def statistics(self) -> GarbageStatistics:
        compaction = self._compaction
        job = self._short or compaction or self._slow
        log, compactor = self._log, self._compactor
        return GarbageStatistics(
            phase=job.phase if job is not None else Phase.IDLE,
            log_id=log[0] if log is not None else None,
            bytes_done=compactor.bytes_done if log is not None else 0,
            bytes_total=log[1] if log is not None else 0,
            rounds=dict(self._rounds),
            last_round_seconds=dict(self._round_seconds),
            last_round_ms=dict(self._round_ms),
            compacting=compaction.kind if compaction is not None else None,
            index_compactions=self._index_compactions,
            index_compacted_ms=self._index_compacted_ms,
            is_index_compacting=self._is_index_asked,
            ledgers_waiting=len(self._drops) + len(self._handed),
            ledgers_deleted=self._ledgers_deleted,
            runs_deleted=self._runs_deleted,
            logs_removed=self._logs_removed,
            bytes_reclaimed=self._reclaimed,
            bytes_copied=compactor.bytes_copied,
            damaged_runs=compactor.damaged_runs,
            unreadable_logs=compactor.unreadable_logs,
            scrub=self._scrub.report,
        )

    def end_cleanly(self) -> None:
        """After the thread has ended: seal the compaction log, so that nobody need look at it."""
        self._compactor.end()

    # The thread.

    def step(self) -> bool:
        """Do a little; False if there is nothing to do, or nothing that may be done yet."""
        self._take_drops()
        job = self._choose() if self.enabled else None
        if job is None:
            return False
        try:
            next(job.steps)
        except StopIteration:
            self._finish(job)
        except (OSError, LedgerError) as error:
            self._finish(job)
            self._stumble(job, error)
        return True

    def _take_drops(self) -> None:
        while self._handed:
            ledger_id, sequence = self._handed.popleft()
            if sequence < 0:
                self._drops.pop(ledger_id, None)
            else:
                self._drops[ledger_id] = sequence

    def _choose(self) -> _Job | None:
        if self._short is None:
            if self._drops:
                self._short = _Job(Phase.DELETING, self._delete_dropped())
            elif self._requests:
                self._short = self._requests.popleft()()
        if self._short is not None:
            return self._short
        if self._compaction is None and self._rounds_asked:
            kind = self._rounds_asked.popleft()
            self._compaction = _Job(Phase.COMPACTING, self._round(kind), kind)
        if self._slow is None and self._scrubs_asked:
            everything = self._scrubs_asked.popleft()
            logs = self._scrub.all_logs() if everything else self._scrub.next_log()
            self._slow = _Job(Phase.SCRUBBING, self._scrub.run(logs))
        return self._next_paced()

    def _next_paced(self) -> _Job | None:
        """Compaction, or else scrub, if the flush is not behind and the budget allows it.

        The nap is short, because nobody can end the thread meanwhile. Whoever ticks wakes us.
        """
        if self._is_behind():
            return None
        jobs = [
            job
            for job in (self._compaction, self._slow)
            if job is not None and job.kind not in self.suspended
        ]
        if not jobs:
            return None
        wait = min(job.not_before for job in jobs) - self._clock()
        if wait > 0:
            self._sleep(min(wait, _NAP_SECONDS))
        now = self._clock()
        return next((job for job in jobs if job.not_before <= now), None)

    def _finish(self, job: _Job) -> None:
        if job is self._short:
            self._short = None
        elif job is self._compaction:
            self._compaction = self._log = None
        else:
            self._slow = None

    def _stumble(self, job: _Job, error: Exception) -> None:
        """End the job. What it left behind is dead or alive by its keys; a later round sees to it.

        The index is reopened by the flush thread alone, whose checkpoint would otherwise lose
        its first pieces unnoticed; it will meet the same error.
        """
        if job.kind is not None and isinstance(error, OSError):
            self._compactor.give_up()
        elif isinstance(error, IndexFailedError):
            self._compactor.let_go()
        if job.kind is not None and is_full(error) and self.reserve.release():
            _log.warning("%s is full: the reserve is used for compaction", self.directory.path)
            self.compact(job.kind)
            return
        if job.phase is Phase.LISTING:
            reason = error if isinstance(error, LedgerError) else TransientIndexError(str(error))
            self.listings.append(reason)
        _log.error("%s in %s ended: %s", job.phase.value, self.directory.path, error)
        self.trouble = error
        if isinstance(error, IndexFailedError | TransientIndexError):
            self.enabled = False  # until a checkpoint is complete: then the index is in order

    # Deleting.

    def _delete_dropped(self) -> Iterator[None]:
        drops = list(self._drops.items())
        count = self._runs_deleted
        for ledger_id, sequence in drops:
            try:
                yield from self._delete_runs(ledger_id, sequence)
            except LedgerError as error:
                if isinstance(error, IndexFailedError | TransientIndexError):
                    raise
                # One ledger that the index cannot tell about must not keep the others.
                _log.error("runs of dropped ledger %d stay: %s", ledger_id, error)
        self.directory.table.flush()  # done is what the index cannot lose any more
        for ledger_id, sequence in drops:
            if self._drops.get(ledger_id) == sequence:
                del self._drops[ledger_id]
        self._ledgers_deleted += len(drops)
        yield from self._remove_dead()
        if self._runs_deleted - count > _DELETIONS_MANY:
            first, last = min(drops)[0], max(drops)[0]
            self.directory.index.compact(first_ledger=first, last_ledger=last)
        let_go(drops)

    def _delete_runs(self, ledger_id: int, sequence: int) -> Iterator[None]:
        after = b""
        while True:
            if self._drops.get(ledger_id) != sequence:  # it was brought back meanwhile
                return
            runs = self.directory.index.runs_from(ledger_id, 0, count_max=_PAGE_RUNS, after=after)
            dead: list[Counted] = [
                (run.key, None, {run.log_id: -run.body_bytes})
                for run in runs
                if run.sequence <= sequence
            ]
            self.directory.table.apply(dead)
            self._runs_deleted += len(dead)
            yield
            if len(runs) < _PAGE_RUNS:
                return
            after = runs[-1].key

    def _is_dropped(self, run: IndexedRun) -> bool:
        return run.sequence <= self._drops.get(run.ledger_id, -1)

    def _clear_flag(self, key: bytes) -> Iterator[None]:
        self.directory.table.apply([(key, None, {})])
        self.directory.table.flush()
        yield

    def _remove_dead(self) -> Iterator[None]:
        """Unlink the logs that hold nothing any more. The count says whom to ask, the keys decide.

        First the index is flushed: a log must not go while the deletion of a key that names it
        could still be lost. If the flush thread reopens the index meanwhile, lost deletions show
        as keys, and the log stays.
        """
        self.directory.table.flush()
        yield
        table = self.directory.table
        empty = [
            log for log in table.uses(LogState.SEALED, LogState.DAMAGED) if log.live_bytes == 0
        ]
        removed = []
        for log in empty:
            if not (yield from is_dead(self.directory, log.log_id)):
                _log.error(
                    "entry log %08x in %s counts no living bytes, but the index names runs in it",
                    log.log_id,
                    self.directory.path,
                )
                continue
            self.directory.logs.forget(log.log_id)
            with suppress(FileNotFoundError):
                self._files.remove(os.path.join(self.directory.path, log_name(log.log_id)))
            removed.append(log)
            self._logs_removed += 1
            self._reclaimed += log.bytes
            yield
        if removed:
            self._files.sync_directory(self.directory.path)
        for log in removed:
            table.remove(log.log_id)

    # Compacting.

    def _round(self, kind: Kind) -> Iterator[None]:
        started = self._clock()
        rules = self.options.rules
        yield from self._remove_dead()
        for use in choose(self.directory.table.uses(), threshold=rules.threshold(kind)):
            if 0 < self.options.round_seconds_max <= self._clock() - started:
                break
            log = self.directory.table.get(use.log_id)
            if log is None or log.state is not LogState.SEALED:
                continue
            if log.live_bytes:
                self._log = (use.log_id, log.size)
                yield from self._compactor.compact(use.log_id)
                self._log = None
            yield from self._remove_dead()
        self.trouble = None
        self._rounds[kind] += 1
        self._round_seconds[kind] = self._clock() - started
        self._round_ms[kind] = self._now_ms()

    def _charge_copy(self, count: int) -> None:
        if self._compaction is not None:
            self._compaction.not_before = self._pay(self._copying, count)

    def _charge_scrub(self, count: int) -> None:
        if self._slow is not None:
            self._slow.not_before = self._pay(self._scrubbing, count)

    def _pay(self, budget: Budget, count: int) -> float:
        now = self._clock()
        return now + budget.charge(count, now)

    def _note_damage(self, run: IndexedRun, error: Exception) -> None:
        _log.error("%s", error)
        self.damage.append((run, error))

    # The rest.

    def _restore(self) -> Iterator[None]:
        self.reserve.restore()
        yield

    def _compact_index(self) -> Iterator[None]:
        try:
            self.directory.index.compact(first_ledger=0, last_ledger=ID_MAX - 1)
        finally:
            self._is_index_asked = False
        self._index_compactions += 1
        self._index_compacted_ms = self._now_ms()
        yield

    def _list(self) -> Iterator[None]:
        directory = self.directory
        listing = Listing([], [], [])
        oldest_ms = self._now_ms() - self.options.tombstone_seconds * 1000
        for number, (ledger_id, state) in enumerate(directory.index.ledger_states(), 1):
            if state.tombstone is None:
                listing.living.append(ledger_id)
            elif directory.index.runs_from(ledger_id, 0, count_max=1):
                if ledger_id not in self._drops:
                    listing.unfinished.append(ledger_id)
            elif (
                state.tombstone.time_ms <= oldest_ms
                # The journal before the mark is not replayed: no add in it can bring it back.
                and state.tombstone.checkpoint + 1 < directory.mark.checkpoint
            ):
                listing.forgettable.append(ledger_id)
            if number % _PAGE_LEDGERS == 0:
                yield
        self.listings.append(listing)
