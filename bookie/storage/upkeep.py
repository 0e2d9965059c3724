"""The loop's side of garbage collection: when what is due, and what the threads have found.

One garbage thread per ledger directory does the work (`garbage.py`). Here is decided when it
begins: deletions when their tombstones are on disk, compaction by the clock and by the room on
the disks, scrub once a day, and anything by order of an operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from bookie.core.compaction import JournalWatch, Kind, Schedule
from bookie.storage.disk_watch import Acceptance, DiskWatch
from bookie.storage.garbage import GarbageWorker
from bookie.storage.garbage_values import GarbageOptions, GarbageStatistics, Listing
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.reserve import Reserve
from runtime.files import FileSystem
from runtime.workers import Worker, Workers
from wire.errors import LedgerError

#: Tombstones forgotten in one step of the loop, 20 us each: after a week they must be looked up.
FORGET_MAX: Final = 100


class Drop(NamedTuple):
    """A ledger whose runs may go: those of this write sequence and older."""

    ledger_id: int
    directory: int
    sequence: int


class Host(Protocol):
    """What upkeep asks of the engine."""

    @property
    def fill(self) -> float: ...

    def set_read_only(self, read_only: bool, *, accepts_priority: bool) -> None: ...

    def checkpoint(self) -> None: ...

    def forget(self, ledger_ids: Sequence[int], dropped_until_ms: float) -> None:
        """Drop the tombstones of these ledgers, if they still have one of that age."""

    def retry_journals(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepShell:
    """What upkeep needs of the world."""

    files: FileSystem
    workers: Workers
    clock: Callable[[], float]
    now_ms: Callable[[], int]
    sleep: Callable[[float], None]


class _ListingRequest:
    def __init__(self, done: Callable[[Listing | LedgerError], None]) -> None:
        self.done = done
        self.found: dict[int, Listing | LedgerError] = {}


class Upkeep:
    """Owned by the event loop."""

    def __init__(
        self,
        host: Host,
        directories: Sequence[LedgerDirectory],
        shell: UpkeepShell,
        *,
        options: GarbageOptions,
        reserves: Sequence[Reserve],
        disks: DiskWatch,
        on_damage: Callable[[int, IndexedRun, Exception], None],
        on_acceptance: Callable[[Acceptance], None],
    ) -> None:
        self.disks = disks
        self._host = host
        self._options = options
        self._clock = shell.clock
        self._now_ms = shell.now_ms
        self._on_damage = on_damage
        self._on_acceptance = on_acceptance
        self.journal = JournalWatch(options.journal_seconds_max)
        now = shell.clock()
        self.schedule = Schedule(options.rules, now=now)
        self._scrubbed_at = now
        self._waiting: deque[tuple[int, Drop]] = deque()  # checkpoint to wait for, what then
        self._listings: deque[_ListingRequest] = deque()
        self._forgettable: deque[int] = deque()  # by the last listing
        self.garbage = [
            GarbageWorker(
                directory,
                files=shell.files,
                options=options,
                clock=shell.clock,
                now_ms=shell.now_ms,
                sleep=shell.sleep,
                is_behind=self._must_wait,
                reserve=reserve,
            )
            for directory, reserve in zip(directories, reserves, strict=True)
        ]
        self._workers: list[Worker] = [
            shell.workers.start(f"garbage-{garbage.directory.number}", garbage.step, self._progress)
            for garbage in self.garbage
        ]
        disks.on_change = self._change_acceptance
        self._change_acceptance(disks.acceptance)

    # What the engine tells.

    def dropped(self, checkpoint: int, drops: Sequence[Drop]) -> None:
        """Tombstones were set; their runs go once this checkpoint is in every index."""
        self._waiting.extend((checkpoint, drop) for drop in drops)

    def keep(self, ledger_id: int, directory: int) -> None:
        """The ledger is repaired onto this bookie again: delete no more of it."""
        self._waiting = deque(item for item in self._waiting if item[1].ledger_id != ledger_id)
        self.garbage[directory].keep(ledger_id)

    def resume(self, drops: Sequence[Drop]) -> None:
        """Go on with deletions of an earlier life, whose tombstones are on disk."""
        for drop in drops:
            self.garbage[drop.directory].delete(drop.ledger_id, drop.sequence)
        self._wake()

    def on_checkpoint(self, number: int) -> None:
        while self._waiting and self._waiting[0][0] <= number:
            _, drop = self._waiting.popleft()
            self.garbage[drop.directory].delete(drop.ledger_id, drop.sequence)
        for garbage in self.garbage:
            if not garbage.enabled:
                garbage.enabled = True
                garbage.remove_dead_logs()  # what a crash, or a failure of the index, left behind
        self._wake()

    def tick(self) -> None:
        """Time has passed."""
        if self.disks.tick():
            self._host.retry_journals()
            for number in self.disks.reserves_due():
                self.garbage[number].restore_reserve()
        self.journal.tick()
        now = self._clock()
        kind = self.schedule.due(now, is_tight=self.disks.is_tight)
        if kind is not None:
            self.compact(kind)
        if 0 < self._options.scrub_seconds <= now - self._scrubbed_at:
            self.scrub(everything=False)
        self._forget_some()
        self._wake()

    # What operators and the collector ask for.

    def list_ledgers(self, done: Callable[[Listing | LedgerError], None]) -> None:
        """Call back with the ledgers of all directories, as their indexes have them."""
        self._listings.append(_ListingRequest(done))
        for garbage in self.garbage:
            garbage.list_ledgers()
        self._wake()

    def compact(self, kind: Kind) -> None:
        """Begin a round now, whether or not it is due; suspended kinds begin when resumed."""
        self.schedule.began(kind, self._clock())
        for garbage in self.garbage:
            garbage.compact(kind)
        self._wake()

    def remove_dead_logs(self) -> None:
        for garbage in self.garbage:
            garbage.remove_dead_logs()
        self._wake()

    def scrub(self, *, everything: bool) -> None:
        self._scrubbed_at = self._clock()
        for garbage in self.garbage:
            garbage.scrub(everything=everything)
        self._wake()

    def compact_indexes(self, directories: Collection[int]) -> None:
        """Let the indexes of these directories be compacted, one after the other work there."""
        for number in directories:
            self.garbage[number].compact_index()
        self._wake()

    def clear_flag(self, key: bytes) -> None:
        """Forget that something was wanted of the store's owner: it has been done."""
        for garbage in self.garbage:
            garbage.clear_flag(key)
        self._wake()

    def suspend(self, kind: Kind) -> None:
        """No minor, or no major compaction until `allow`; one under way stops where it is."""
        self.schedule.suspended.add(kind)
        self._pass_suspended()

    def allow(self, kind: Kind) -> None:
        self.schedule.suspended.discard(kind)
        self._pass_suspended()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and all(garbage.is_idle for garbage in self.garbage)

    def statistics(self) -> list[GarbageStatistics]:
        return [garbage.statistics() for garbage in self.garbage]

    def end_cleanly(self) -> None:
        """After the workers have ended."""
        for garbage in self.garbage:
            garbage.end_cleanly()

    def _must_wait(self) -> bool:
        """For the garbage threads: whether compaction would be at the expense of clients.

        A disk that fills up does not wait for the journal to become faster.
        """
        if self._host.fill > self._options.fill_max:
            return True
        return self.journal.is_slow and not self.disks.is_tight

    def _pass_suspended(self) -> None:
        suspended = set(self.schedule.suspended)
        if Kind.MAJOR in suspended:
            suspended.add(Kind.EAGER)
        for garbage in self.garbage:
            garbage.suspended = suspended
        self._wake()

    def _progress(self) -> None:
        """A garbage thread has done something."""
        for number, garbage in enumerate(self.garbage):
            while garbage.damage:
                run, error = garbage.damage.popleft()
                self._on_damage(number, run, error)
            while garbage.listings:
                self._take_listing(number, garbage.listings.popleft())
            if not garbage.enabled and garbage.trouble is not None:
                # The flush thread reopens a failed index, when it meets it.
                garbage.trouble = None
                self._host.checkpoint()

    def _take_listing(self, number: int, found: Listing | LedgerError) -> None:
        request = next(request for request in self._listings if number not in request.found)
        request.found[number] = found
        if len(request.found) < len(self.garbage):
            return
        self._listings.remove(request)
        if isinstance(found, Listing) and len(self.garbage) == 1:
            merged = found  # in order, as the index is: a million would take long to sort
        else:
            merged = Listing([], [], [])
            for listing in request.found.values():
                if isinstance(listing, LedgerError):
                    request.done(listing)
                    return
                for into, part in zip(merged, listing, strict=True):
                    into.extend(part)
            for part in merged:
                part.sort()
        self._forgettable = deque(merged.forgettable)
        self._forget_some()
        request.done(merged)

    def _forget_some(self) -> None:
        """Forget a few tombstones, the rest with the next ticks."""
        count = min(FORGET_MAX, len(self._forgettable))
        if count:
            some = [self._forgettable.popleft() for _ in range(count)]
            oldest_ms = self._now_ms() - self._options.tombstone_seconds * 1000
            self._host.forget(some, oldest_ms)

    def _change_acceptance(self, acceptance: Acceptance) -> None:
        self._host.set_read_only(acceptance.read_only, accepts_priority=acceptance.accepts_priority)
        self._on_acceptance(acceptance)

    def _wake(self) -> None:
        for worker in self._workers:
            worker.wake()
