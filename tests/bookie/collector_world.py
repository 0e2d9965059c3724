"""Metadata and storage for a collector, as a test wants them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

import trio

from bookie.collector import Collector, CollectorOptions
from bookie.storage.garbage_values import Listing
from metadata.model import InvalidMetadataError
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

ME = BookieId("bk1:3181")
OTHER = BookieId("bk2:3181")


@dataclass
class Record:
    is_closed: bool = True
    bookies: tuple[BookieId, ...] = (ME,)

    def mentions(self, bookie_id: BookieId) -> bool:
        return bookie_id in self.bookies


@dataclass
class World:
    """Metadata and storage in one, both to be tampered with."""

    living: list[int] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    outdated: dict[int, Record] = field(default_factory=dict)  # what some server still says
    hidden: set[int] = field(default_factory=set)  # exist, but a listing lacks them
    damaged: set[int] = field(default_factory=set)  # their records cannot be decoded
    unreadable_now: set[int] = field(default_factory=set)  # the same, for `read` alone
    instance: str | None = "cluster"
    locked: set[int] = field(default_factory=set)
    dropped: list[int] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)  # how many at a time
    resumed: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    error_after: int = 10**9  # ranges listed before the listing fails
    settled: int = 0
    on_lock: Callable[[], None] = lambda: None
    held: bool = True
    operations: list[float] = field(default_factory=list)

    async def ranges(self) -> AsyncIterator[Sequence[LedgerId]]:
        for number, ledger_id in enumerate(sorted(self.records)):
            if number >= self.error_after:
                raise LedgerError("the listing broke off")
            if ledger_id not in self.hidden:
                yield [LedgerId(ledger_id)]

    async def is_gone(self, ledger_id: LedgerId) -> bool:
        self.operations.append(trio.current_time())
        return ledger_id not in self.records

    async def glance(self, ledger_id: LedgerId) -> Record | None:
        self.operations.append(trio.current_time())
        self._decode(ledger_id, self.damaged)
        return self.outdated.get(ledger_id, self.records.get(ledger_id))

    async def read(self, ledger_id: LedgerId) -> Record | None:
        self.operations.append(trio.current_time())
        self._decode(ledger_id, self.damaged | self.unreadable_now)
        return self.records.get(ledger_id)

    def _decode(self, ledger_id: int, damaged: set[int]) -> None:
        if ledger_id in damaged:
            raise InvalidMetadataError(f"ledger {ledger_id}: bad bytes")

    async def instance_id(self) -> str | None:
        return self.instance

    async def lock(self, ledger_id: LedgerId) -> object | None:
        if ledger_id in self.locked:
            return None
        self.on_lock()
        return ledger_id

    def is_held(self, lock: object) -> bool:
        return self.held

    async def release(self, lock: object) -> None:
        assert isinstance(lock, int)
        self.released.append(lock)

    async def settle(self) -> None:
        self.settled += 1

    def list_ledgers(self, done: Callable[[Listing | LedgerError], None]) -> None:
        done(Listing(list(self.living), list(self.unfinished), []))

    def drop(self, ledger_ids: Sequence[int], now_ms: int) -> None:
        self.dropped += ledger_ids
        self.drops.append(len(ledger_ids))

    def resume_drop(self, ledger_ids: Sequence[int]) -> None:
        self.resumed += ledger_ids


def world(local: int = 10, missing: Sequence[int] = ()) -> World:
    """Local ledgers 0.. that exist, but for those missing."""
    return World(
        living=list(range(local)),
        records={n: Record() for n in range(local) if n not in missing},
    )


def collector(made: World, bookie_id: BookieId = ME, **changes: float) -> Collector:
    return Collector(
        made,
        made,
        bookie_id=bookie_id,
        instance_id="cluster",
        options=replace(CollectorOptions(operations_per_second=0), **changes),
        now_ms=lambda: 7,
    )
