"""The journal's writer: groups of records become durable blocks, strictly one after the other.

The loop appends and never waits; a thread takes everything that is pending, frames it as a block
and writes that with one durable write. What arrives meanwhile is the next group, so groups grow
with the load by themselves. Nothing is acknowledged before its write returned, there is never a
second write in flight, and the first error of a write or sync is the last thing that happens.

Hand-over needs no lock. The loop only appends to the right of `_pending`, the thread only takes
from the left. (Swapping two lists would lose what the loop appends between looking the list up
and appending to it.) Before it rests, the thread sets `_idle` and looks again; the loop looks at
`_idle` after it appended: whichever comes second sees the other, so no wake-up is lost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from bookie.storage.journal_files import FilePool, JournalFile, JournalSpaceError
from bookie.storage.journal_format import (
    BLOCK_HEADER_BYTES,
    FIRST_OFFSET,
    JournalError,
    JournalPosition,
    aligned,
    file_name,
    frame_block,
)
from bookie.storage.journal_groups import (
    Append,
    Close,
    Force,
    Group,
    Item,
    Seal,
    take_group,
)
from bookie.storage.journal_options import (
    JournalCallbacks,
    JournalOptions,
    JournalStatistics,
    ignore,
)
from bookie.storage.journal_reader import EndKind, ReplayEnd
from runtime.files import FileSystem
from runtime.workers import Worker, Workers


class Journal:
    """One journal directory, from the end that replay found onwards.

    Every start writes to a file that no earlier life of the bookie has written to: a torn tail
    is never overwritten, and no block of before can be taken for one of now.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        store_id: bytes,
        workers: Workers,
        callbacks: JournalCallbacks,
        *,
        end: ReplayEnd,
        options: JournalOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options = options or JournalOptions()
        self._directory = directory
        self._workers = workers
        self._callbacks = callbacks
        self._clock = clock
        self._sleep = sleep

        _sync_replayed(files, directory, end)
        if end.kind is EndKind.DAMAGE:  # keep the evidence; it goes when the mark has passed it
            tail = end.next_file_id - 1
        else:
            tail = end.position.file_id if end.position else 0
        self._pool = FilePool(
            files,
            directory,
            store_id,
            file_bytes=options.file_bytes,
            spare_files_max=options.spare_files_max,
            tail_file_id=tail,
            now_ms=now_ms,
        )
        room = aligned(options.file_bytes) - FIRST_OFFSET - BLOCK_HEADER_BYTES
        assert room > 0
        self._payload_bytes_max = min(options.payload_bytes_max, room)

        # Of the loop:
        self._appended_bytes = 0
        self._delivered_bytes = 0
        self._closing = False
        self._failure_told = False
        self._shortage_told: JournalSpaceError | None = None
        # Between the threads:
        self._pending: deque[Item] = deque()
        self._done: deque[Group] = deque()
        self._idle = True
        self._shortage: JournalSpaceError | None = None
        self.failure: JournalError | None = None
        self.stalled = False  # a group waits for room on the disk
        self._retired: deque[tuple[JournalFile, int]] = deque()  # full, and synced up to where
        self._retiring = threading.Lock()
        # Of the writing thread:
        self._held: Group | None = None
        self._file: JournalFile | None = None
        # Where the next block stands if its file has room for it. Behind damage that the operator
        # accepted the log begins anew, so that the mark can pass it.
        self._next = None if end.kind is EndKind.DAMAGE else end.position
        self._sequence = end.next_sequence
        self._durable_before = end.next_sequence  # _sync_replayed made it true
        self._dirty = False  # the present file holds blocks that are not synced
        self._closed = False
        self._blocks = self._records = self._payload_bytes = self._written_bytes = 0
        self._syncs = self._group_records_max = 0

        # In this order: the preparer wakes the writer.
        self._writer: Worker = workers.start("journal", self._write_step, self._deliver)
        self._preparer: Worker = workers.start("journal-preparer", self._prepare_step, ignore)
        self._preparer.wake()

    # The loop's side.

    def append(
        self,
        pieces: Sequence[bytes | memoryview],
        byte_count: int,
        record_count: int,
        token: object,
        deferred: bool = False,
    ) -> None:
        """Write records, `byte_count` bytes in all; `token` comes back when they are durable.

        A deferred append comes back when it has reached the operating system. The pieces belong
        to the journal until then: their bytes must not change.
        """
        assert byte_count > 0
        assert record_count > 0
        self._appended_bytes += byte_count
        self._put(Append(pieces, byte_count, record_count, token, deferred))

    def seal(self, on_sealed: Callable[[JournalPosition], None]) -> None:
        """Learn a position at or before everything appended from now on.

        It is told, in order with the tokens, when everything appended before has been
        acknowledged. What stands there may not be written yet: a replay from this position
        expects its sequence there, or in the first block of a later file.
        """
        self._put(Seal(on_sealed))

    def force(self, token: object) -> None:
        """`token` comes back when everything appended before is durable, deferred or not."""
        self._put(Force(token))

    def release(self, below_file_id: int) -> None:
        """Replay will never again need files with smaller ids: the log mark has passed them."""
        self._pool.release(below_file_id)
        self.retry()

    def retry(self) -> None:
        """Look again for room on the disk, after a shortage was reported."""
        self._preparer.wake()
        self._writer.wake()

    def close(self, on_closed: Callable[[], None]) -> None:
        """Make everything pending durable, then close the files. Nothing may be appended after."""
        self._put(Close(on_closed))
        self._closing = True

    @property
    def pending_bytes(self) -> int:
        """What was appended and has not come back yet."""
        return self._appended_bytes - self._delivered_bytes

    def statistics(self) -> JournalStatistics:
        blocks, payload_bytes, written_bytes = (
            self._blocks,
            self._payload_bytes,
            self._written_bytes,
        )
        return JournalStatistics(
            blocks=blocks,
            records=self._records,
            payload_bytes=payload_bytes,
            written_bytes=written_bytes,
            padding_bytes=written_bytes - payload_bytes - blocks * BLOCK_HEADER_BYTES,
            syncs=self._syncs,
            group_records_max=self._group_records_max,
            pending_bytes=self.pending_bytes,
            queue_length=len(self._pending),
            files_created=self._pool.created_count,
            files_recycled=self._pool.recycled_count,
            file_count=self._pool.file_count(),
            stalled=self.stalled,
        )

    def _put(self, item: Item) -> None:
        if self.failure is not None:
            raise self.failure
        assert not self._closing, "the journal is being closed"
        self._pending.append(item)
        if self._idle:
            self._idle = False
            self._writer.wake()

    def _deliver(self) -> None:
        while self._done:
            group = self._done.popleft()
            self._delivered_bytes += group.byte_count
            group.deliver(self._callbacks.on_durable)  # first: somebody waits for it
            if group.byte_count:
                self._callbacks.on_write(group.write_seconds, group.byte_count, group.record_count)
        if self.failure is not None and not self._failure_told:
            self._failure_told = True
            self._callbacks.on_failure(self.failure)
        shortage = self._shortage
        if shortage is not self._shortage_told:
            self._shortage_told = shortage
            self._callbacks.on_shortage(shortage)

    # The writing thread's side.

    def _write_step(self) -> bool:
        if self.failure is not None or self._closed:
            return False
        group = self._held or self._take()
        if group is None:
            return False
        try:
            self._commit(group)
        except JournalSpaceError as error:
            self._held = group
            self.stalled = True
            self._report(shortage=error)
            return False
        except OSError as error:
            self._fail(error)
            return False
        self._held = None
        self.stalled = False
        self._done.append(group)
        return True

    def _take(self) -> Group | None:
        if self._options.group_wait_seconds and self._pending:
            self._sleep(self._options.group_wait_seconds)
        self._idle = False
        group = take_group(self._pending, self._payload_bytes_max)
        if group is None:
            self._idle = True
            if self._pending:  # appended after we looked, by one who saw us busy
                self._idle = False
                group = take_group(self._pending, self._payload_bytes_max)
        return group

    def _commit(self, group: Group) -> None:
        durable = group.must_sync and self._options.sync_data
        if group.byte_count:
            self._write_block(group, durable=durable)
        else:
            if durable and self._dirty:
                self._sync()
            if group.has_seal and self._next is None:
                self._roll(0)
            group.position = self._next
        if group.closing:
            self._close_files()

    def _write_block(self, group: Group, *, durable: bool) -> None:
        block_bytes = aligned(BLOCK_HEADER_BYTES + group.byte_count)
        if durable and self._dirty:
            self._sync()  # first: no hole may precede a durable block
        file, position = self._place(block_bytes)
        block = frame_block(
            group.pieces,
            byte_count=group.byte_count,
            record_count=group.record_count,
            position=position,
            durable_before=self._durable_before,
        )
        started = self._clock()
        file.write(block, position.offset, durable=durable)
        group.write_seconds = self._clock() - started
        group.position = position
        self._sequence += 1
        self._next = JournalPosition(
            position.file_id, position.offset + block_bytes, self._sequence
        )
        if durable:
            self._durable_before = self._sequence
            self._syncs += 1
        else:
            self._dirty = True
        self._blocks += 1
        self._records += group.record_count
        self._payload_bytes += group.byte_count
        self._written_bytes += block_bytes
        self._group_records_max = max(self._group_records_max, group.record_count)

    def _place(self, block_bytes: int) -> tuple[JournalFile, JournalPosition]:
        """Where a block of this size goes: here, or in the next file if this one is full."""
        if self._file and self._next and self._next.offset + block_bytes <= self._file.size:
            return self._file, self._next
        return self._roll(block_bytes)

    def _roll(self, block_bytes: int) -> tuple[JournalFile, JournalPosition]:
        """Go on in the next file. The old one is synced first if anything in it is not durable."""
        file = self._pool.take(block_bytes)
        if self._file is not None:
            self._leave(self._file)
        position = JournalPosition(file.file_id, FIRST_OFFSET, self._sequence)
        self._file, self._next = file, position
        self._report(shortage=None)
        self._preparer.wake()
        return file, position

    def _leave(self, file: JournalFile) -> None:
        if self._dirty and not self._options.sync_data:
            # A whole file at once would hold everybody up; nobody waits for its durability.
            self._retired.append((file, self._sequence))
            self._dirty = False
            return
        if self._dirty:
            self._sync()
        file.close()

    def _sync(self) -> None:
        assert self._file is not None
        self._file.sync()
        self._dirty = False
        self._durable_before = self._sequence
        self._syncs += 1

    def _close_files(self) -> None:
        if self._file is not None:
            while self._sync_retired():
                pass
            if self._dirty:
                self._sync()
            self._file.close()
            self._file = None
        self._pool.close()
        self._closed = True

    # The preparing thread's side.

    def _prepare_step(self) -> bool:
        if self.failure is not None or self._closed:
            return False
        try:
            worked = self._sync_retired() or self._pool.prepare_step()
        except JournalSpaceError as error:
            self._report(shortage=error)
            return False
        except OSError as error:
            self._fail(error)
            return False
        if self._pool.has_ready_file:
            self._report(shortage=None)
            self._writer.wake()  # always: it may be about to stall
        return worked

    def _sync_retired(self) -> bool:
        """Sync one full file that was written without syncs; False when there is none."""
        with self._retiring:  # so that whoever finds none left knows that all are synced
            if not self._retired:
                return False
            file, sequence = self._retired.popleft()
            file.sync()
            file.close()
            self._durable_before = sequence
            self._syncs += 1
            return True

    # Both threads.

    def _report(self, *, shortage: JournalSpaceError | None) -> None:
        if (shortage is None) != (self._shortage is None):
            self._shortage = shortage
            self._workers.call_in_loop(self._deliver)

    def _fail(self, error: OSError) -> None:
        failure = JournalError(
            f"journal {self._directory}: {error}; nothing more is acknowledged, "
            "replace the disk and start again"
        )
        failure.__cause__ = error
        self.failure = self.failure or failure
        self._workers.call_in_loop(self._deliver)


def _sync_replayed(files: FileSystem, directory: str, end: ReplayEnd) -> None:
    """Make durable what replay has read.

    A killed process leaves blocks that only the operating system holds. They have been replayed,
    so they are part of the log; new blocks behind them claim that everything before is durable,
    and a force() covers them.
    """
    for file_id in end.replayed_file_ids:
        file = files.open(f"{directory}/{file_name(file_id)}")
        try:
            file.sync()
        finally:
            file.close()
