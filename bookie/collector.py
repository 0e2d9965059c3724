"""Finds out which ledgers of this bookie are garbage, and has the engine drop them.

Deleting what lives is the worst that a bookie can do, and metadata stores have made bookies do it:
listings ended early, followers lagged, stores were reformatted. So a ledger goes only if it was
here before the listing began, if the complete listing lacks it, if the store, asked directly and
after a sync, has no node for it, and if the store is still the cluster that our cookie names. When
most of what we have would go, a second round must agree.

A ledger that exists may still be garbage here: a closed one that no longer names this bookie. It
goes under the ledger's replication lock only, so that nobody is just restoring it to us.

A record that cannot be decoded proves nothing: its ledger stays, and the round goes on. All other
errors end a round. The next one begins from nothing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from zlib import crc32

import trio

from bookie.core.garbage import Comparison, Suspicion
from bookie.storage.garbage_values import Listing
from metadata.model import InvalidMetadataError
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

_log = logging.getLogger(__name__)

#: Ledgers handed to the engine at a time: a checkpoint for all of them, and for each 30 us of the
#: event loop if it has to be looked up. Fewer would take more checkpoints; a thousand stalled the
#: loop for 30 ms.
DROP_MAX: Final = 100
_FREED_AT_ONCE: Final = 10_000
#: Ledgers that a log line names.
_NAMED_MAX: Final = 10


class LedgerRecord(Protocol):
    """What the collector needs of a ledger's metadata."""

    @property
    def is_closed(self) -> bool: ...

    def mentions(self, bookie_id: BookieId) -> bool:
        """Whether any fragment names the bookie."""


class Metadata(Protocol):
    """What the collector asks of the metadata store. Every error is a LedgerError; of records, one
    that cannot be decoded is an InvalidMetadataError."""

    def ranges(self) -> AsyncIterable[Sequence[LedgerId]]:
        """All ledgers, ascending. Ends only if it has met every one of them."""

    async def is_gone(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger certainly does not exist: asked directly, after a sync."""

    async def glance(self, ledger_id: LedgerId) -> LedgerRecord | None:
        """The ledger's record as any server of the store has it, at half of what `read` costs.

        It may be outdated: good enough to pass over a ledger, never to delete one.
        """

    async def read(self, ledger_id: LedgerId) -> LedgerRecord | None:
        """The ledger's record as of now, after a sync; None if there is none."""

    async def instance_id(self) -> str | None: ...

    async def lock(self, ledger_id: LedgerId) -> object | None:
        """Take the ledger's replication lock; None if somebody has it."""

    def is_held(self, lock: object) -> bool:
        """Whether the session that took the lock is the one that answered us last."""

    async def release(self, lock: object) -> None: ...

    async def settle(self) -> None:
        """Give back locks that a lost connection has left with us: they keep workers away."""


class Storage(Protocol):
    """What the collector asks of the engine."""

    def list_ledgers(self, done: Callable[[Listing | LedgerError], None]) -> None: ...

    def drop(self, ledger_ids: Sequence[int], now_ms: int) -> None: ...

    def resume_drop(self, ledger_ids: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorOptions:
    interval_seconds: float = 600.0
    #: How often ledgers that exist are looked at; 0 is never.
    over_replicated_seconds: float = 86400.0
    operations_per_second: float = 1000.0


@dataclass(slots=True)
class Round:
    """What one round has found and done."""

    local: int = 0
    listed: int = 0
    candidates: int = 0
    dropped: list[int] = field(default_factory=list)
    over_replicated: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    undecoded: list[int] = field(default_factory=list)  # kept, whatever their records should say
    undecoded_error: str = ""  # the first one's
    seconds: float = 0.0
    error: str = ""  # why it ended early


class Collector:
    """Run `run` as a task, or `collect` once."""

    def __init__(
        self,
        storage: Storage,
        metadata: Metadata,
        *,
        bookie_id: BookieId,
        instance_id: str | None,
        options: CollectorOptions,
        now_ms: Callable[[], int],
    ) -> None:
        """`instance_id` is the one in the bookie's cookie."""
        self._storage = storage
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._instance_id = instance_id
        self._options = options
        self._now_ms = now_ms
        self._suspicion = Suspicion()
        self._forced = trio.Event()
        self._is_estranged = False  # the store names another cluster; said once
        self._looked_at = float("-inf")  # when existing ledgers were looked at
        self._next_operation = 0.0
        self.rounds = 0
        self.last_round: Round | None = None
        self.is_suspended = False

    def force(self) -> None:
        """Begin the next round now."""
        self._forced.set()

    async def run(self) -> None:
        # All records are read for it: so not soon after a start, and not by all bookies at once
        # because they were started together.
        part = 0.9 * crc32(self._bookie_id.encode()) / 2**32
        self._looked_at = trio.current_time() - part * self._options.over_replicated_seconds
        while True:
            with trio.move_on_after(self._options.interval_seconds):
                await self._forced.wait()
            self._forced = trio.Event()
            if not self.is_suspended:
                await self.collect()

    async def collect(self) -> Round:
        """One round. Never raises for the store's sake; `error` says what ended it."""
        found = Round()
        started = trio.current_time()
        try:
            await self._metadata.settle()
            if await self._is_our_cluster(found):
                await self._collect(found)
        except LedgerError as error:
            found.error = str(error)
            _log.warning("garbage collection ends this round without a result: %s", error)
        if found.undecoded:
            _log.warning(
                "the records of %d ledgers cannot be decoded, so their entries stay: ledgers %s%s; "
                "the first one's: %s",
                len(found.undecoded),
                ", ".join(map(str, found.undecoded[:_NAMED_MAX])),
                " and more" if len(found.undecoded) > _NAMED_MAX else "",
                found.undecoded_error,
            )
        found.seconds = trio.current_time() - started
        self.rounds += 1
        self.last_round = found
        return found

    async def _is_our_cluster(self, found: Round) -> bool:
        """A store that was reformatted, or somebody else's, would make everything look deleted."""
        stored = await self._metadata.instance_id()
        if stored is not None and stored == self._instance_id:
            self._is_estranged = False
            return True
        found.error = (
            f"the metadata store has instance id {stored}, this bookie's cookie {self._instance_id}"
        )
        if not self._is_estranged:
            _log.error(
                "%s: nothing is deleted until they agree; if the cluster was formatted anew, give "
                "the bookie new directories",
                found.error,
            )
        self._is_estranged = True
        return False

    async def _collect(self, found: Round) -> None:
        local = await self._list()  # before the store's listing: what is created later is not in it
        found.local = len(local.living)
        comparison = Comparison(local.living)
        candidates: list[int] = []
        async for listed in self._metadata.ranges():
            await self._pace()
            candidates += comparison.feed(listed)
        candidates += comparison.finish()
        found.listed = comparison.listed_count
        found.candidates = len(candidates)
        confirmed = self._suspicion.confirmed(
            candidates, local_count=len(local.living), listed_count=comparison.listed_count
        )
        if len(confirmed) < len(candidates):
            _log.warning(
                "%d of %d ledgers look deleted, the store lists %d: waiting for the next round to "
                "agree",
                len(candidates),
                len(local.living),
                comparison.listed_count,
            )
        for start in range(0, len(confirmed), DROP_MAX):
            gone = [
                ledger_id
                for ledger_id in confirmed[start : start + DROP_MAX]
                if await self._is_gone(ledger_id)
            ]
            self._storage.drop(gone, self._now_ms())
            found.dropped += gone
        await self._resume(local.unfinished, found)
        absent = frozenset(candidates)
        living = (ledger_id for ledger_id in local.living if ledger_id not in absent)
        await self._drop_surplus(living, found)
        while local.living:  # ours alone by now; freed at once, a million would stall the loop
            del local.living[-_FREED_AT_ONCE:]
            await trio.lowlevel.checkpoint()

    async def _list(self) -> Listing:
        """The ledgers here, by the engine's garbage threads: it may take a while."""
        answers: list[Listing | LedgerError] = []
        arrived = trio.Event()

        def take(answer: Listing | LedgerError) -> None:
            answers.append(answer)
            arrived.set()

        self._storage.list_ledgers(take)
        await arrived.wait()
        [answer] = answers
        if isinstance(answer, LedgerError):
            raise answer
        return answer

    async def _resume(self, unfinished: Sequence[int], found: Round) -> None:
        """Deletions that a restart interrupted. The world may have changed: ask again.

        A ledger that names this bookie again is being restored to it, or was: its old runs stay
        until its repair brings it back, or until it is deleted.
        """
        for ledger_id in unfinished:
            if await self._is_gone(ledger_id):
                self._resume_one(ledger_id)
                found.resumed.append(ledger_id)
            else:
                await self._under_lock(ledger_id, self._resume_one, found.resumed, found)

    def _resume_one(self, ledger_id: int) -> None:
        self._storage.resume_drop([ledger_id])

    async def _drop_surplus(self, living: Iterable[int], found: Round) -> None:
        """Closed ledgers that name this bookie no longer. `living` may be long, and is not looked
        at before it is time."""
        every = self._options.over_replicated_seconds
        if every <= 0 or trio.current_time() - self._looked_at < every:
            return
        for ledger_id in living:
            await self._pace()
            if await self._is_surplus(ledger_id, self._metadata.glance, found):
                await self._under_lock(ledger_id, self._drop_one, found.over_replicated, found)
        self._looked_at = trio.current_time()

    def _drop_one(self, ledger_id: int) -> None:
        self._storage.drop([ledger_id], self._now_ms())

    async def _under_lock(
        self, ledger_id: int, act: Callable[[int], None], done: list[int], found: Round
    ) -> None:
        """Act on a surplus ledger, if it is still one once we have its replication lock.

        Whoever restores copies holds that lock from before it chooses this bookie until the
        metadata names it. Without the lock, a copy could be dropped that is about to count.
        """
        await self._pace()
        lock = await self._metadata.lock(LedgerId(ledger_id))
        if lock is None:
            return
        try:
            await self._pace()
            # In this order, and nothing awaited in between: an answer through the session that
            # has the lock proves that we had it when the record was read.
            is_surplus = await self._is_surplus(ledger_id, self._metadata.read, found)
            if is_surplus and self._metadata.is_held(lock):
                act(ledger_id)
                done.append(ledger_id)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                await self._metadata.release(lock)

    async def _is_surplus(
        self,
        ledger_id: int,
        ask: Callable[[LedgerId], Awaitable[LedgerRecord | None]],
        found: Round,
    ) -> bool:
        """By the record that `ask` brings; no by one that cannot be decoded."""
        try:
            record = await ask(LedgerId(ledger_id))
        except InvalidMetadataError as error:
            found.undecoded.append(ledger_id)
            found.undecoded_error = found.undecoded_error or str(error)
            return False
        return record is not None and record.is_closed and not record.mentions(self._bookie_id)

    async def _is_gone(self, ledger_id: int) -> bool:
        await self._pace()
        return await self._metadata.is_gone(LedgerId(ledger_id))

    async def _pace(self) -> None:
        """Spread the questions: a bookie with a million ledgers must not drown the store."""
        if self._options.operations_per_second <= 0:
            return
        now = trio.current_time()
        self._next_operation = max(self._next_operation, now)
        if self._next_operation > now:
            await trio.sleep(self._next_operation - now)
        self._next_operation += 1 / self._options.operations_per_second
