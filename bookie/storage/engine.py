"""The storage engine's face: add, fence, read, checkpoint, close.

Plain synchronous code for the event loop. Nothing here waits: what must wait is done by workers,
and comes back as tokens (`on_durable`) or as a second call that finds what was cold before. The
same code runs on threads and real disks, and inline on memory files under the simulator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from bookie.core.ledger import Ledger, Tombstone
from bookie.core.write_cache import WriteCache
from bookie.storage.admission import Admission, Split
from bookie.storage.checkpoints import FREE_STEP, Checkpoints
from bookie.storage.engine_values import EngineCallbacks, EngineOptions, EngineStatistics
from bookie.storage.garbage_values import Listing
from bookie.storage.journal_records import (
    encode_explicit_lac,
    encode_fence,
    encode_limbo,
    record_key,
)
from bookie.storage.journal_writer import Journal
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.ledgers import Ledgers, stored_state
from bookie.storage.listing import EntryListing
from bookie.storage.reads import Batch, Cold, Reads
from bookie.storage.upkeep import Drop, Upkeep
from runtime.workers import Worker, Workers
from wire.errors import LedgerError, Status
from wire.scan_v2 import AddBatch, AddMix, AddRun
from wire.types import NO_ENTRY


class _Fencing:
    """A fence on its way to the disk, and who waits for it."""

    __slots__ = ("ledger", "token")

    def __init__(self, ledger: Ledger, token: object) -> None:
        self.ledger = ledger
        self.token = token


def _nobody() -> None:
    """Who waits for a block that is fetched ahead."""


class Engine:
    def __init__(
        self,
        *,
        journals: Sequence[Callable[[Callable[[list[object]], None]], Journal]],
        directories: Sequence[LedgerDirectory],
        ledgers: Ledgers,
        cache: WriteCache,
        workers: Workers,
        make_upkeep: Callable[[Engine], Upkeep],
        options: EngineOptions,
        callbacks: EngineCallbacks,
        clock: Callable[[], float],
    ) -> None:
        """Made by `open_engine`, which has replayed the journals into `cache`."""
        self.options = options
        self.directories = directories
        self._callbacks = callbacks
        self._clock = clock
        self._cache = cache
        self._ledgers = ledgers
        self.journals = [make(self._on_durable) for make in journals]
        self._admission = Admission(
            ledgers,
            cache,
            self.journals,
            on_state=self._changed,
            on_return=self._returned,
            on_lac=callbacks.on_news,
        )
        self._checkpoints = Checkpoints(
            cache,
            self.journals,
            directories,
            workers,
            clock=clock,
            on_checkpoint=self._on_checkpoint,
            on_trouble=self._on_trouble,
        )
        self._first_generation = cache.active.number
        self._entries_committed = 0
        self.reads = Reads(
            directories,
            cache_bytes=options.read_cache_bytes,
            clock=clock,
            on_damage=callbacks.on_damage,
            prefetch=lambda cold: self.fetch(cold, _nobody),
        )
        self._cold: deque[tuple[Cold, Callable[[], None]]] = deque()
        self._fetched: deque[tuple[Cold, object, Callable[[], None]]] = deque()
        self._readers: list[Worker] = [
            workers.start(f"reader-{number}", self._fetch_step, self._take_fetched)
            for number in range(options.reader_count)
        ]
        self._closing: Callable[[], None] | None = None
        self._forgotten: deque[tuple[int, Sequence[int]]] = deque()  # by which checkpoint, who
        self._dropped: deque[tuple[int, Sequence[int]]] = deque()  # and after which checkpoint
        self.upkeep = make_upkeep(self)

    # Adds.

    def add_run(self, run: AddRun) -> Status:
        """v2 adds of one ledger; queue them with `commit`."""
        return self._admission.add_run(run)

    def add_mix(self, mix: AddMix) -> dict[int, Status]:
        """v2 adds of many ledgers, the refused ones by their place; queue them with `commit`."""
        return self._admission.add_mix(mix)

    def add_entry(
        self, ledger_id: int, entry_id: int, lac: int, key: bytes, entry: bytes, flags: int
    ) -> Status:
        """A v3 add; queue it with `commit`."""
        return self._admission.add_entry(ledger_id, entry_id, lac, key, entry, flags)

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        lac: int,
        key: bytes,
        entries: Sequence[bytes],
        flags: int,
    ) -> Status:
        """v3 adds of one ledger that differ only in entry, ids ascending; `lac` is the highest."""
        return self._admission.add_entries(ledger_id, entry_ids, lac, key, entries, flags)

    def add_batch(self, batch: AddBatch) -> Status:
        """A batch frame; queue it with `commit`."""
        return self._admission.add_batch(batch)

    def commit(self, token: object) -> bool:
        """Journal what was added since the last commit; False if there was nothing."""
        committed = self._admission.commit(token)
        # Twice as fast as entries come in, or memory would only grow.
        added = self._admission.entries_added
        self._checkpoints.free_some(FREE_STEP + 2 * (added - self._entries_committed))
        self._entries_committed = added
        options = self.options
        if self._cache.is_due(
            bytes_min=options.generation_bytes, bytes_max=options.write_cache_bytes // 2
        ):
            self._checkpoints.seal()
        return committed

    @property
    def is_full(self) -> bool:
        """Whether connections that add should not be read from for now."""
        return (
            self._cache.bytes > self.options.write_cache_bytes * 3 // 4
            or sum(journal.pending_bytes for journal in self.journals)
            > self.options.journal_pending_bytes
        )

    @property
    def fill(self) -> float:
        """How full the write cache is; the flush threads pace themselves by it."""
        return self._cache.bytes / self.options.write_cache_bytes

    def set_read_only(self, read_only: bool, *, accepts_priority: bool) -> None:
        self._admission.read_only = read_only
        self._admission.accepts_priority = accepts_priority

    # State.

    def ledger(self, ledger_id: int) -> Ledger:
        return self._ledgers.get(ledger_id)

    def in_memory(self) -> Sequence[Ledger]:
        """The ledgers that memory knows; states of some of them are in no index yet."""
        return self._ledgers.in_memory()

    def fence(self, ledger_id: int, key: bytes | None, token: object) -> tuple[Status, bool]:
        """Refuse ordinary adds from now on. (status, whether to wait for `token`).

        Commit adds first. No answer to whoever asked, not even a negative one, may leave before
        the fence is durable: a restarted bookie would otherwise accept what recovery has already
        ruled out.
        """
        ledger = self._ledgers.get(ledger_id)
        self._admission.assert_committed()
        status = ledger.admit_fence(key)
        if status is not Status.OK:
            return status, False
        assert key is not None
        journal = self.journals[ledger.journal]
        if ledger.fenced:
            if ledger.fence_durable:
                return status, False
            journal.force(token)
            return status, True
        self._admission.claim(ledger, key)
        ledger.fenced = True
        ledger.fence_durable = False
        self._changed(ledger)
        self._admission.log_state(ledger, encode_fence(ledger.id, record_key(key)))
        self._admission.commit(_Fencing(ledger, token))
        if ledger.waiters:
            self._callbacks.on_news(ledger)
        return status, True

    def write_lac(self, ledger_id: int, key: bytes, body: bytes, token: object) -> Status:
        """Set the explicit LAC. The last one wins, also downwards; the known LAC only rises."""
        if self._admission.read_only:
            return Status.READ_ONLY
        ledger = self._ledgers.get(ledger_id)
        self._admission.assert_committed()
        status = ledger.admit_explicit_lac(key)
        if status is not Status.OK:
            return status
        self._admission.claim(ledger, key)
        ledger.explicit_lac = body
        self._changed(ledger)
        self._admission.log_state(ledger, encode_explicit_lac(ledger.id, record_key(key), body))
        self._admission.commit(token)
        ledger.raise_lac(int.from_bytes(body[8:16], "big", signed=True))
        if ledger.waiters:
            self._callbacks.on_news(ledger)
        return status

    def force(self, ledger_id: int, token: object) -> None:
        """`token` comes back when everything journaled for the ledger so far is durable."""
        self.journals[self._ledgers.get(ledger_id).journal].force(token)

    def set_limbo(self, ledger_id: int, on: bool, token: object) -> None:
        """Data of this ledger may be lost here (or no longer). In limbo it is fenced, too."""
        ledger = self._ledgers.get(ledger_id)
        self._admission.assert_committed()
        ledger.limbo = on
        if on and not ledger.fenced:
            ledger.fenced = True
            ledger.fence_durable = False
            token = _Fencing(ledger, token)
        self._changed(ledger)
        self._admission.log_state(ledger, encode_limbo(ledger.id, on=on))
        self._admission.commit(token)

    def drop(self, ledger_ids: Sequence[int], now_ms: int) -> None:
        """The ledgers are deleted, or belong elsewhere. Their runs go when this is checkpointed.

        What is in the cache now will still be flushed by the generation that holds it, with a write
        sequence at or below the tombstone's: dead. When that is done, the tombstones are written
        by one more checkpoint, and only then do they count. Its mark lies in a later block of the
        journal than everything from before the drop, so that no replay can undo it.
        """
        if not ledger_ids:
            return
        sequence = self._checkpoints.seal().number
        for ledger_id in ledger_ids:
            ledger = self._ledgers.get(ledger_id)
            if not ledger.exists:
                continue
            ledger.tombstone = Tombstone(now_ms, sequence)
            ledger.explicit_lac = None
            ledger.lac = ledger.last_entry = NO_ENTRY
            ledger.loaded = True
            self.reads.cache.forget(ledger_id)
            self._changed(ledger)
            if ledger.waiters:
                self._callbacks.on_news(ledger)
        self._dropped.append((sequence, ledger_ids))

    def _write_tombstones(self, checkpoint: int) -> None:
        """Everything from before these drops is in the index: write their tombstones for good."""
        while self._dropped and self._dropped[0][0] <= checkpoint:
            sequence, ledger_ids = self._dropped.popleft()
            drops = []
            for ledger in map(self._ledgers.get, ledger_ids):
                if ledger.tombstone is not None and ledger.tombstone.sequence == sequence:
                    self._changed(ledger)
                    drops.append(Drop(ledger.id, ledger.home, sequence))
            if drops:
                self.upkeep.dropped(self._checkpoints.seal().number, drops)

    def _returned(self, ledger: Ledger) -> None:
        """A dropped ledger is here again. What was not deleted of it so far stays, and counts:
        whoever sees an entry here must not lose it to the deletion."""
        ledger.loaded = False
        self.reads.cache.forget(ledger.id)  # a read may have been under way during the drop
        self.upkeep.keep(ledger.id, ledger.home)

    def list_ledgers(self, done: Callable[[Listing | LedgerError], None]) -> None:
        """Call back with the ledgers that the indexes know: what garbage collection begins with."""
        self.upkeep.list_ledgers(done)

    def resume_drop(self, ledger_ids: Sequence[int]) -> None:
        """Go on with deletions that an earlier life of the bookie did not finish.

        The caller has asked the metadata again. Whoever was brought back since has no tombstone
        any more; and nothing that this life has written is ever touched, whatever sequence a
        tombstone names: one may have reached the disk ahead of the checkpoint that it names.
        """
        ledgers = [self._ledgers.get(ledger_id) for ledger_id in ledger_ids]
        self.upkeep.resume(
            [
                Drop(ledger.id, ledger.home, min(tombstone.sequence, self._first_generation - 1))
                for ledger in ledgers
                if (tombstone := ledger.tombstone) is not None
            ]
        )

    def forget(self, ledger_ids: Sequence[int], dropped_until_ms: float) -> None:
        """Nothing is left of these dropped ledgers, and it was long ago: forget that they were.

        The next checkpoint deletes their states; after it they are as new. Not before: replay
        passes over the entries of a ledger whose tombstone is on disk. A younger tombstone is not
        the one that was judged: the ledger came back meanwhile and was dropped once more.
        """
        for ledger_id in ledger_ids:
            ledger = self._ledgers.get(ledger_id)
            if ledger.tombstone is None or ledger.is_pinned:
                continue
            if ledger.tombstone.time_ms > dropped_until_ms:
                continue
            ledger.stored = b""
            self._cache.change(ledger)
        self._forgotten.append((self._cache.active.number, ledger_ids))

    # Reads.

    def read(self, ledger_id: int, entry_id: int) -> bytes | Status | Cold:
        return self.reads.read(self._ledgers.get(ledger_id), entry_id)

    def read_run(self, ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | Status | Cold]:
        """Many entries of one ledger, in any order, each with its own answer."""
        return self.reads.read_run(self._ledgers.get(ledger_id), entry_ids)

    def read_batch(
        self, ledger_id: int, first: int, *, count_max: int, bytes_max: int
    ) -> Batch | Status | Cold:
        ledger = self._ledgers.get(ledger_id)
        return self.reads.read_batch(ledger, first, count_max=count_max, bytes_max=bytes_max)

    def list_entries(self, ledger_id: int) -> EntryListing | Status:
        """Which entries are here, to be found step by step. In limbo too: what is not listed is
        then missing for whoever compares, and gets repaired."""
        ledger = self._ledgers.get(ledger_id)
        if not ledger.exists:
            return ledger.absent()
        return EntryListing(ledger, self.directories[ledger.home].index)

    def lac(self, ledger_id: int) -> int | Status | Cold:
        return self.reads.lac(self._ledgers.get(ledger_id))

    def fetch(self, cold: Cold, done: Callable[[], None]) -> None:
        """Have a reader thread bring a cold piece into memory; then ask again, in `done`."""
        cold.ledger.loads += 1
        self._cold.append((cold, done))
        self._readers[len(self._cold) % len(self._readers)].wake()

    def _fetch_step(self) -> bool:
        try:
            cold, done = self._cold.popleft()
        except IndexError:
            return False
        self._fetched.append((cold, self.reads.fetch(cold), done))
        return True

    def _take_fetched(self) -> None:
        while self._fetched:
            cold, found, done = self._fetched.popleft()
            cold.ledger.loads -= 1
            self.reads.put(cold, found)  # type: ignore[arg-type]
            done()

    # Time, and the end of it.

    def tick(self) -> bool:
        """Flush what is old and free a little of what was dropped; whether more is to free."""
        active = self._cache.active
        if active and self._clock() - active.opened_at >= self.options.flush_interval_seconds:
            self._checkpoints.seal()
        self._checkpoints.retry()
        self.upkeep.tick()
        return self._checkpoints.free_some()

    def free_some(self) -> bool:
        """Free a little of what was dropped; whether more is to free. After every checkpoint."""
        return self._checkpoints.free_some()

    def checkpoint(self) -> None:
        """Begin a checkpoint of everything added so far."""
        self._checkpoints.seal()

    def retry_journals(self) -> None:
        """Let journals that are short of room look again."""
        for journal in self.journals:
            journal.retry()

    def close(self, on_closed: Callable[[], None]) -> None:
        """Checkpoint everything, then close journals; the owner closes the directories after."""
        self._closing = on_closed
        self._checkpoints.seal()

    def statistics(self) -> EngineStatistics:
        reads, admission = self.reads, self._admission
        return EngineStatistics(
            entries_added=admission.entries_added,
            bytes_added=admission.bytes_added,
            entries_read=reads.entries_read,
            read_errors=reads.errors,
            write_cache_bytes=self._cache.bytes,
            write_cache_items=sum(g.items for g in (self._cache.active, *self._cache.sealed)),
            generations_waiting=len(self._cache.sealed),
            read_cache_bytes=reads.cache.bytes,
            read_cache_blocks=len(reads.cache),
            read_cache_hits=reads.cache.hits,
            read_cache_misses=reads.cache.misses,
            ledgers_in_memory=len(self._ledgers),
            journal_pending_bytes=sum(journal.pending_bytes for journal in self.journals),
        )

    def _changed(self, ledger: Ledger) -> None:
        marks = self._checkpoints.latest_marks
        ledger.stored = stored_state(ledger, marks[ledger.journal] if marks else None)
        self._cache.change(ledger)

    def _on_durable(self, tokens: list[object]) -> None:
        answered: list[object] = []
        for token in tokens:
            if isinstance(token, Split):
                token.missing -= 1
                if token.missing:
                    continue
                token = token.token
            if isinstance(token, _Fencing):
                token.ledger.fence_durable = True
                token = token.token
            answered.append(token)
        if answered:
            self._callbacks.on_durable(answered)

    def _on_trouble(self, directory: LedgerDirectory, error: Exception | None) -> None:
        self.upkeep.disks.note(directory.path, error)
        self._callbacks.on_trouble(directory, error)

    def _on_checkpoint(self, number: int) -> None:
        while self._forgotten and self._forgotten[0][0] <= number:
            self._ledgers.forget_dropped(self._forgotten.popleft()[1])
        self._write_tombstones(number)
        self.upkeep.on_checkpoint(number)
        self._callbacks.on_checkpoint(number)
        if self._closing is not None and self._checkpoints.is_idle:
            left = len(self.journals)

            def closed() -> None:
                nonlocal left
                left -= 1
                if not left and self._closing is not None:
                    self._closing()

            for journal in self.journals:
                journal.close(partial(closed))
