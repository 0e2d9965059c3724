"""Reading the records of all ledgers, many at a time and few in memory.

An audit of a large cluster is this loop. Records are read in chunks, some at a time, and
a chunk is forgotten before the next one is read: the number of ledgers decides how long it takes,
never how much memory. One record that cannot be read or understood is reported and passed over;
losing the store for longer than our patience ends the scan with an error, never with "no more".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Final, TypeVar

import trio

from metadata.codec import decode_ledger_metadata
from metadata.ledgers import Ledgers
from metadata.model import InvalidMetadataError
from metadata.update import VersionedLedger, persistently
from wire.errors import LedgerError
from wire.types import LedgerId

T = TypeVar("T")

#: Records in memory at a time.
CHUNK_LEDGERS: Final = 1000
#: Requests for some records each, under way at a time: one is decoded while another is read.
_PARTS: Final = 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some ledgers, ascending. One that was deleted on the way is in neither list."""

    ledgers: Sequence[VersionedLedger]
    unreadable: Sequence[tuple[LedgerId, LedgerError]]


class LedgerScan:
    """`async for chunk in scan.chunks()`: every ledger of the cluster, once."""

    def __init__(
        self,
        ledgers: Ledgers,
        *,
        chance: Random,
        at_once: int = 100,
        per_second: float = 0,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`pause` is awaited before each chunk; `per_second` is a bound on ledgers, 0 for none."""
        self._ledgers = ledgers
        self._chance = chance
        self._at_once = at_once
        self._pace = Pace(per_second)
        self._pause = pause
        self.count = 0

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        # No nursery is open at a `yield`: whoever stops in mid scan leaves nothing behind.
        async with aclosing(self._ids()) as walk:
            async for ids in walk:
                if self._pause is not None:
                    await self._pause()
                await self._pace.spend(len(ids))
                chunk = await self.read(ids)
                self.count += len(ids)
                yield chunk

    async def _ids(self) -> AsyncGenerator[list[LedgerId], None]:
        size = CHUNK_LEDGERS
        if self._pace.per_second:
            size = max(1, min(size, int(self._pace.per_second)))
        waiting: list[LedgerId] = []
        walk = self._ledgers.ranges()
        while True:
            try:
                found = await persistently(walk.__anext__, chance=self._chance)
            except StopAsyncIteration:
                break
            waiting += found.ids
            while len(waiting) >= size:
                yield waiting[:size]
                del waiting[:size]
        if waiting:
            yield waiting

    async def read(self, ids: Iterable[LedgerId]) -> Chunk:
        """The records of these ledgers."""
        read: list[VersionedLedger] = []
        unreadable: list[tuple[LedgerId, LedgerError]] = []
        store, paths = self._ledgers.store, self._ledgers.paths

        async def some(part: Sequence[LedgerId]) -> None:
            wanted = [paths.path_of(ledger_id) for ledger_id in part]
            nodes = await persistently(lambda: store.get_many(wanted), chance=self._chance)
            for ledger_id, node in zip(part, nodes, strict=True):
                if node is None:
                    continue
                try:
                    metadata = decode_ledger_metadata(node.data, ledger_id=ledger_id)
                except InvalidMetadataError as error:
                    unreadable.append((ledger_id, error))
                    continue
                read.append(VersionedLedger(metadata, node.stat.version, node.stat.created_ms))

        all_ids = sorted(ids)
        parts = [all_ids[i : i + self._at_once] for i in range(0, len(all_ids), self._at_once)]
        await for_each(parts, some, at_once=_PARTS)
        read.sort(key=lambda ledger: ledger.metadata.ledger_id)
        return Chunk(read, sorted(unreadable, key=lambda pair: pair[0]))


async def for_each(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int
) -> None:
    """Do `work` for all items by at most `at_once` tasks.

    The first error of ours stops the others and is raised as it is, not in a group.
    """
    left = iter(items)
    failure: LedgerError | None = None

    async def worker(first: T, scope: trio.CancelScope) -> None:
        nonlocal failure
        try:
            await work(first)
            for item in left:
                await work(item)
        except LedgerError as error:
            failure = failure or error
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for item in islice(left, at_once):
            nursery.start_soon(worker, item, nursery.cancel_scope)
    if failure is not None:
        raise failure


class Pace:
    """At most so much per second, in the long run and over every second or so."""

    def __init__(self, per_second: float) -> None:
        """0 is no bound."""
        self.per_second = per_second
        self._free_at = -1.0

    async def spend(self, amount: float) -> None:
        """Wait until `amount` may be spent. More than a second's worth is paid for afterwards."""
        if self.per_second <= 0 or amount <= 0:
            return
        now = trio.current_time()
        start = max(now, self._free_at)
        self._free_at = start + amount / self.per_second
        if start > now:
            await trio.sleep(start - now)
