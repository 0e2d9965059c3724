"""Callers' payloads on their way into batches, and the callers that wait for the outcome.

A payload joins the batch that is being filled; the writer's task takes whatever is waiting when it
looks. What waits is bounded in bytes: above the bound a caller waits for room before its payload is
taken. An id that the caller chose joins only behind its predecessor, so that every batch is a run
of consecutive entries; and one that fills a gap never waits for room, since those behind the gap
hold theirs until it is filled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, Protocol

import trio

from ledger_client.core.adds import Batch as CoreBatch
from ledger_client.core.commands import Failure, Outcome
from ledger_client.errors import error_of
from wire.types import NO_ENTRY, BookieId, LedgerId

#: A batch takes no further payload above either. What it costs beside its entries, some 200 us over
#: three bookies, is shared by them: 0.8 us for each of 250, 0.2 us for each of 1,000.
BATCH_BYTES: Final = 1024 * 1024
BATCH_ENTRIES: Final = 2048
#: Bytes that no batch has taken to the bookies yet; above, callers wait.
QUEUE_BYTES_MAX: Final = 4 * 1024 * 1024
#: What an entry counts for beside its payload, or a million empty ones would weigh nothing.
_ENTRY_BYTES: Final = 64


#: What a batch has once they are entries. Nobody adds to it: it is in no intake any more.
NO_PAYLOADS: Final[list[bytes]] = []


class CopyOwner(Protocol):
    """Who has sent an entry in copies. Told from inside a connection, so it asks nothing there."""

    id: LedgerId  # of the ledger

    def on_copy(self, entry: CoreBatch, bookie_id: BookieId) -> None:
        """The bookie has it."""

    def on_copy_failed(self, entry: CoreBatch, bookie_id: BookieId, outcome: Outcome) -> None: ...


class Batch:
    """Payloads that share their fate, and the callers that wait for it."""

    __slots__ = (
        "_over", "entry", "failure", "first", "frames", "is_over", "last", "owner", "payloads",
        "records", "size"
    )  # fmt: skip

    #: One that was sent in copies: whose it is, and the core's part of it.
    owner: CopyOwner
    entry: CoreBatch

    def __init__(self, first: int = NO_ENTRY, payloads: list[bytes] | None = None) -> None:
        self.payloads: list[bytes] = [] if payloads is None else payloads
        self.size = 0  # of the payloads
        self.is_over = False
        self.failure: Failure | None = None
        self.first = first  # known beforehand if the caller chose it
        self.last = NO_ENTRY
        self.records = b""  # its entries, in one form or the other
        self.frames = b""
        self._over: trio.Event | None = None  # made by the first who waits for it

    @property
    def weight(self) -> int:
        return self.size + len(self.payloads) * _ENTRY_BYTES

    @property
    def next_id(self) -> int:
        """Of caller-chosen ids, the one that would follow."""
        return self.first + len(self.payloads)

    def packaged(self, *, first: int, last: int) -> None:
        """Its payloads are entries now."""
        self.first, self.last = first, last
        self.payloads = NO_PAYLOADS

    def copied(self, entry: CoreBatch, frame: bytes, owner: CopyOwner) -> None:
        """It is one entry, to be sent in copies."""
        self.entry, self.frames, self.owner = entry, frame, owner
        self.packaged(first=entry.first, last=entry.last)

    def end(self, failure: Failure | None = None) -> None:
        """Entries are not kept any longer, but for copies of a single one that have no answer."""
        self.failure = failure
        self.payloads = NO_PAYLOADS
        self.records = b""
        if self.last != self.first:
            self.frames = b""
        self.is_over = True
        if self._over is not None:
            self._over.set()

    async def wait_over(self) -> None:
        """At once if it is: who waits for thousands in turn need not be scheduled for each."""
        if not self.is_over:
            if self._over is None:
                self._over = trio.Event()
            await self._over.wait()

    async def wait(self, index: int, count: int) -> range:
        """The ids of `count` payloads from `index` on, once the batch is confirmed."""
        await self.wait_over()
        if self.failure is not None:
            raise error_of(self.failure)
        return range(self.first + index, self.first + index + count)


class Place:
    """Of one payload in a batch: await a call of it to get the entry's id."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    async def __call__(self) -> int:
        return (await self._batch.wait(self._index, 1)).start


#: Some payloads of a batch: from which on, and how many.
Part = tuple[Batch, int, int]


#: Shared and never filled, by those who have nothing here: thousands, mostly.
_NO_BATCHES: Final[deque[Batch]] = deque()
_NO_IDS: Final[set[int]] = set()


class Intake:
    """Batches that the writer's task has not taken yet."""

    def __init__(self) -> None:
        self._queue = _NO_BATCHES
        self._bytes = 0
        self._given: set[int] = _NO_IDS  # caller-chosen ids that wait here
        self._room_made: trio.Event | None = None  # made by the first who waits for it

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        return self._bytes < QUEUE_BYTES_MAX

    async def wait_room(self) -> None:
        """Once; whoever is woken looks again, since others may be faster or the handle over."""
        if self._room_made is None:
            self._room_made = trio.Event()
        await self._room_made.wait()

    def put(self, payload: bytes, entry_id: int | None = None) -> tuple[Batch, int]:
        """The batch that takes the payload, and its place there."""
        batch = self._queue[-1] if self._queue else None
        if (
            batch is None
            or batch.size + len(payload) > BATCH_BYTES
            or len(batch.payloads) >= BATCH_ENTRIES
            or (entry_id is not None and batch.next_id != entry_id)
        ):
            batch = self._new_batch(NO_ENTRY if entry_id is None else entry_id)
        if entry_id is not None:
            if self._given is _NO_IDS:
                self._given = set()
            self._given.add(entry_id)
        batch.payloads.append(payload)
        batch.size += len(payload)
        self._bytes += len(payload) + _ENTRY_BYTES
        return batch, len(batch.payloads) - 1

    def fill(self, payloads: Iterator[bytes], bytes_max: int, parts: deque[Part]) -> bytes | None:
        """Take payloads until there is no room or no more of them; one that is too large ends it.

        The same as `put` for each, in one loop: this is where the entries of a fast writer come by.
        What was taken when `payloads` raises an error of its own stays taken.
        """
        if not self.has_room:
            return None
        batch = self._queue[-1] if self._queue else self._new_batch()
        taken = batch.payloads
        index, size, added = len(taken), batch.size, 0
        room = QUEUE_BYTES_MAX - self._bytes
        try:
            for payload in payloads:
                length = len(payload)
                if length > bytes_max:
                    return payload
                if taken and (size + length > BATCH_BYTES or len(taken) >= BATCH_ENTRIES):
                    self._on_filled(batch, index, added, parts)
                    batch = self._new_batch()
                    taken = batch.payloads
                    index = size = added = 0
                taken.append(payload if type(payload) is bytes else bytes(payload))
                size += length
                added += length
                room -= length + _ENTRY_BYTES
                if room <= 0:
                    break
            return None
        finally:
            self._on_filled(batch, index, added, parts)
            if not taken:
                self._queue.pop()

    def _on_filled(self, batch: Batch, index: int, added: int, parts: deque[Part]) -> None:
        count = len(batch.payloads) - index
        batch.size += added
        self._bytes += added + count * _ENTRY_BYTES
        if count:
            parts.append((batch, index, count))

    def _new_batch(self, first: int = NO_ENTRY) -> Batch:
        if self._queue is _NO_BATCHES:
            self._queue = deque()
        batch = Batch(first)
        self._queue.append(batch)
        return batch

    def holds(self, entry_id: int) -> bool:
        """Whether a caller-chosen id is waiting here."""
        return entry_id in self._given

    def take(self) -> Batch:
        return self._taken(self._queue.popleft())

    def take_below(self, entry_id: int) -> Batch | None:
        """The batch with the lowest ids, if they are below this one."""
        lowest = min(self._queue, key=lambda batch: batch.first)
        if lowest.first >= entry_id:
            return None
        self._queue.remove(lowest)
        return self._taken(lowest)

    def _taken(self, batch: Batch) -> Batch:
        self._bytes -= batch.weight
        if self._given:
            self._given.difference_update(range(batch.first, batch.next_id))
        return batch

    def tell_room(self) -> None:
        if self.has_room:
            self.tell_all()

    def tell_all(self) -> None:
        """Let everybody who waits look again."""
        if self._room_made is not None:
            self._room_made.set()
            self._room_made = None

    def fail(self, failure: Failure) -> None:
        """End everything that waits, and let nobody wait for room any longer."""
        queue, self._queue, self._bytes = self._queue, _NO_BATCHES, 0
        self._given = _NO_IDS
        for batch in queue:
            batch.end(failure)
        self.tell_room()


def joined(ranges: list[range]) -> Sequence[int]:
    """The ids of many appends, as a range if they are one."""
    if not ranges:
        return range(0)
    whole = range(ranges[0].start, ranges[-1].stop)
    if len(whole) == sum(map(len, ranges)) and all(
        left.stop == right.start for left, right in pairwise(ranges)
    ):
        return whole
    return [entry_id for part in ranges for entry_id in part]
