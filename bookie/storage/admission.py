"""Taking adds: judged, cached and queued for the journal in one step, by the receive buffer.

From "not fenced" to "readable and in the journal's queue" there is no gap in which anything else
can run, so a fence and an add never pass each other: the event loop is the lock.

A caller adds everything that one receive buffer brought, run by run, and then commits once: the
accepted frames go to the journal as slices of the buffer, neighbours as one slice, and one token
comes back when all of them are durable.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from hmac import compare_digest
from typing import Final

from bookie.core.ledger import Ledger
from bookie.core.runs import entries_of, run_of_batch
from bookie.core.write_cache import ENTRY_OVERHEAD_BYTES as ENTRY_OVERHEAD_BYTES
from bookie.core.write_cache import RUN_OVERHEAD_BYTES, Part, WriteCache
from bookie.storage.journal_records import (
    encode_add_head,
    encode_ledger_key,
    encode_untombstone,
    record_key,
)
from bookie.storage.journal_writer import Journal
from bookie.storage.ledgers import Ledgers
from wire.batch import BATCH_HEAD_BYTES
from wire.errors import Status
from wire.scan_v2 import AddBatch, AddMix, AddRun
from wire.types import MASTER_KEY_BYTES, Flag

_V2: Final = 2
# As plain numbers: an operation on an enum costs more than the rest of an add's judgement.
_RECOVERY_ADD: Final = int(Flag.RECOVERY_ADD)
_HIGH_PRIORITY: Final = int(Flag.HIGH_PRIORITY)
_DEFERRED_SYNC: Final = int(Flag.DEFERRED_SYNC)


class Split:
    """One token for appends to several journals: it comes back with the last of them."""

    __slots__ = ("missing", "token")

    def __init__(self, missing: int, token: object) -> None:
        self.missing = missing
        self.token = token


class _Log:
    """What was accepted for one journal since the last commit."""

    __slots__ = ("_data", "_end", "_start", "byte_count", "deferred", "pieces", "record_count")

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.byte_count = 0
        self.record_count = 0
        self.deferred = True  # until something that is not comes along
        self._data = b""
        self._start = self._end = 0

    def add_slice(self, data: bytes, start: int, end: int, record_count: int) -> None:
        """Records as they lie in a buffer; a slice behind the last one makes it longer."""
        if data is not self._data or start != self._end:
            self._cut()
            self._data, self._start = data, start
        self._end = end
        self.byte_count += end - start
        self.record_count += record_count

    def add_pieces(self, *pieces: bytes) -> None:
        """One record."""
        self.add_records(pieces, sum(map(len, pieces)), 1)

    def add_records(self, pieces: Iterable[bytes], byte_count: int, record_count: int) -> None:
        self._cut()
        self.pieces += pieces
        self.byte_count += byte_count
        self.record_count += record_count

    def finish(self) -> list[bytes | memoryview]:
        self._cut()
        return self.pieces

    def _cut(self) -> None:
        if self._end > self._start:
            self.pieces.append(memoryview(self._data)[self._start : self._end])
        self._data = b""
        self._start = self._end = 0


class Admission:
    """Owned by the event loop, like everything it touches."""

    def __init__(
        self,
        ledgers: Ledgers,
        cache: WriteCache,
        journals: Sequence[Journal],
        *,
        on_state: Callable[[Ledger], None],
        on_return: Callable[[Ledger], None],
        on_lac: Callable[[Ledger], None],
    ) -> None:
        self._ledgers = ledgers
        self._cache = cache
        self._journals = journals
        self._on_state = on_state  # the ledger's state changed: the next checkpoint writes it
        self._on_return = on_return  # a dropped ledger is repaired onto this bookie again
        self._on_lac = on_lac  # the LAC rose, and somebody waits for that
        self._logs = [_Log() for _ in journals]
        self.read_only = False
        self.accepts_priority = True  # while read-only: recovery adds, as long as the reserve lasts
        self.entries_added = 0
        self.bytes_added = 0

    def add_run(self, run: AddRun) -> Status:
        """Take v2 adds of one ledger. Accepted or refused as a whole: they are all alike."""
        status, ledger = self._judge(run.ledger_id, run.master_key, run.flags)
        if ledger is None:
            return status
        ids, data, bounds = run.entry_ids, run.data, run.bounds
        taken = self._open_part(ledger, run.master_key).add_frames(ids, data, bounds)
        log = self._logs[ledger.journal]
        if run.version == _V2:
            log.add_slice(data, bounds[0], bounds[-1], len(ids))
        else:  # replay knows one layout only
            self._log_entries(log, run.master_key, run.entries(), run.flags)
        log.deferred = False  # whatever the flags say: only batches and v3 can ask for it
        self._account(ledger, bounds[-1] - bounds[0], taken, len(ids), ids[-1], run.lac)
        return Status.OK

    def add_mix(self, mix: AddMix) -> dict[int, Status]:
        """Take v2 adds of many ledgers; the refused ones by their place."""
        refused: dict[int, Status] = {}
        load, cache, data, bounds = self._ledgers.get, self._cache, mix.data, mix.bounds
        find, generation = self._ledgers.peek, cache.active.number
        log = self._logs[0] if len(self._logs) == 1 else None
        read_only = self.read_only
        begin = bounds[0]  # what lies behind it is accepted, and not logged yet
        refused_bytes = 0
        rows = zip(
            mix.master_keys,
            mix.ledger_ids,
            mix.entry_ids,
            mix.lacs,
            entries_of(data, bounds),
            strict=True,
        )
        for place, (key, ledger_id, entry_id, lac, entry) in enumerate(rows):
            ledger = find(ledger_id) or load(ledger_id)
            plain_key = ledger.plain_key
            if plain_key is None or not compare_digest(plain_key, key) or read_only:
                start, end = bounds[place], bounds[place + 1]
                status, admitted = self._judge(ledger_id, key, 0)
                if log is not None:
                    self._log_frames(log, data, bounds, begin, start)
                    begin = start if admitted else end
                if admitted is None:
                    refused[place] = status
                    refused_bytes += end - start
                    continue
                self.claim(ledger, key)
            part = ledger.active
            if part is None or part.generation != generation:
                part = cache.part(ledger)
            part.entries[entry_id] = entry
            if entry_id < part.low:
                part.low = entry_id
            if entry_id > ledger.last_entry:
                ledger.last_entry = entry_id
            if lac > ledger.lac:
                ledger.lac = lac
                if ledger.waiters:
                    self._on_lac(ledger)
            if log is None:
                self._logs[ledger.journal].add_slice(data, bounds[place], bounds[place + 1], 1)
        taken = len(mix.ledger_ids) - len(refused)
        size = bounds[-1] - bounds[0] - refused_bytes
        if log is not None:
            self._log_frames(log, data, bounds, begin, bounds[-1])
        for used in self._logs:
            used.deferred &= not used.record_count
        cache.grow(size + taken * ENTRY_OVERHEAD_BYTES, taken)
        self.entries_added += taken
        self.bytes_added += size
        return refused

    def add_entry(
        self, ledger_id: int, entry_id: int, lac: int, key: bytes, entry: bytes, flags: int
    ) -> Status:
        """Take an add that came by v3: any key length, and perhaps deferred."""
        return self.add_entries(ledger_id, (entry_id,), lac, key, (entry,), flags)

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        lac: int,
        key: bytes,
        entries: Sequence[bytes],
        flags: int,
    ) -> Status:
        """Take v3 adds of one ledger, key and flags, ids ascending; all or none of them."""
        status, ledger = self._judge(ledger_id, key, flags)
        if ledger is None:
            return status
        self._open_part(ledger, key).add_entries(entry_ids, entries)
        self._log_entries(self._logs[ledger.journal], key, entries, flags)
        size, count = sum(map(len, entries)), len(entries)
        taken = size + count * ENTRY_OVERHEAD_BYTES
        self._account(ledger, size, taken, count, entry_ids[-1], lac)
        return Status.OK

    def add_batch(self, batch: AddBatch) -> Status:
        """Take a batch frame: one record of the journal, one run of the cache."""
        request, walk = batch.request, batch.walk
        flags = (
            _RECOVERY_ADD * request.recovery
            | _HIGH_PRIORITY * request.high_priority
            | _DEFERRED_SYNC * request.deferred_sync
        )
        status, ledger = self._judge(request.ledger_id, request.master_key, flags)
        if ledger is None:
            return status
        body_start = batch.start + BATCH_HEAD_BYTES
        run = run_of_batch(walk, batch.data, body_start, batch.end)
        self._open_part(ledger, request.master_key).add_run(run)
        log = self._logs[ledger.journal]
        log.add_slice(batch.data, batch.start, batch.end, 1)
        log.deferred &= request.deferred_sync and not request.recovery
        size = len(run.body)
        taken = size + RUN_OVERHEAD_BYTES
        self._account(ledger, size, taken, run.count, request.last_entry_id, walk.lac)
        return Status.OK

    def commit(self, token: object) -> bool:
        """Queue everything accepted since the last commit; False if that was nothing.

        `token` comes back when all of it is durable (if all of it is deferred: written).
        """
        logs = [(log, journal) for log, journal in zip(self._logs, self._journals, strict=True)
                if log.record_count]  # fmt: skip
        if not logs:
            return False
        if len(logs) > 1:
            token = Split(len(logs), token)
        for log, journal in logs:
            journal.append(log.finish(), log.byte_count, log.record_count, token, log.deferred)
        self._logs = [_Log() for _ in self._journals]
        return True

    def assert_committed(self) -> None:
        """Whoever brings a token of its own must not carry off somebody else's adds."""
        assert not any(log.record_count for log in self._logs), "commit adds first"

    def log_state(self, ledger: Ledger, *records: bytes) -> None:
        """Add records about a ledger's state to what the next commit queues."""
        log = self._logs[ledger.journal]
        for record in records:
            log.add_pieces(record)
        log.deferred = False

    def claim(self, ledger: Ledger, key: bytes) -> None:
        """Give a ledger its key if it has none; bring a dropped one back for repair."""
        if ledger.tombstone is not None:
            self.log_state(ledger, encode_untombstone(ledger.id))
            ledger.tombstone = None
            ledger.limbo = False
            ledger.master_key = None
            self._on_return(ledger)
        if ledger.master_key != key:
            ledger.master_key = key
            ledger.key_presented = True
            if len(key) != MASTER_KEY_BYTES:
                self.log_state(ledger, encode_ledger_key(ledger.id, key))
            self._on_state(ledger)

    def _judge(self, ledger_id: int, key: bytes, flags: int) -> tuple[Status, Ledger | None]:
        if self.read_only and not (flags & _HIGH_PRIORITY and self.accepts_priority):
            return Status.READ_ONLY, None
        ledger = self._ledgers.get(ledger_id)
        status = ledger.admit_add(key, recovery=flags & _RECOVERY_ADD != 0)
        return status, ledger if status is Status.OK else None

    def _open_part(self, ledger: Ledger, key: bytes) -> Part:
        if ledger.master_key != key or ledger.tombstone is not None:
            self.claim(ledger, key)
        return self._cache.part(ledger)

    def _log_frames(
        self, log: _Log, data: bytes, bounds: Sequence[int], begin: int, end: int
    ) -> None:
        """Log the frames of a mix from one bound to another as one slice."""
        if end > begin:
            log.add_slice(data, begin, end, bisect_left(bounds, end) - bisect_left(bounds, begin))

    def _log_entries(self, log: _Log, key: bytes, entries: Sequence[bytes], flags: int) -> None:
        """Log entries that did not come in v2 frames, in the layout of such."""
        sizes = list(map(len, entries))
        heads = {
            size: encode_add_head(record_key(key), entry_bytes=size, flags=flags)
            for size in set(sizes)
        }
        records = [b""] * (2 * len(entries))
        records[0::2] = [heads[size] for size in sizes]
        records[1::2] = entries
        log.add_records(records, sum(sizes) + len(sizes) * len(records[0]), len(sizes))
        log.deferred &= flags & (_DEFERRED_SYNC | _RECOVERY_ADD) == _DEFERRED_SYNC

    def _account(
        self, ledger: Ledger, size: int, taken: int, count: int, last: int, lac: int
    ) -> None:
        self._cache.grow(taken, count)
        self.entries_added += count
        self.bytes_added += size
        if last > ledger.last_entry:
            ledger.last_entry = last
        if ledger.raise_lac(lac) and ledger.waiters:
            self._on_lac(ledger)
