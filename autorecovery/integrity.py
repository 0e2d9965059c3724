"""Healing a bookie that has lost data: ledger by ledger, until none is in limbo.

A bookie that may have lost something does not say "no such entry" about what it cannot find; it
says "unknown". That is safe, and no way to live. This check ends it: every ledger that names the
bookie is compared with what the bookie has, what is missing comes from the other bookies, and only
then is its limbo lifted. An open ledger is recovered first: while its end is unknown, so is what
the bookie must hold; and its writer was fenced here by the limbo already.

Ledgers that the bookie has forgotten altogether are put into limbo before anything else, or it
would deny that they ever existed. Only those that are older than this life of the bookie: it has
not lost what was created since.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from autorecovery.context import RecoveryContext
from autorecovery.ledger_scan import LedgerScan
from autorecovery.replicator import Replicator, Throttle
from autorecovery.worker_listing import Listed, list_entries
from autorecovery.worker_repair import Ending, LedgerRepair, Order, RepairResult, access_of
from ledger_client.recovery import LedgerRecovery
from metadata.store import StoreUnavailableError
from metadata.update import LedgerGoneError
from runtime import logs
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

_log = logs.get("autorecovery.integrity")

#: Between two passes over ledgers that could not be healed yet.
PASS_SECONDS: Final = 30.0


class LimboBookie(Protocol):
    """The bookie that this process runs, as far as limbo is concerned. All of it is durable."""

    @property
    def bookie_id(self) -> BookieId: ...

    @property
    def needs_check(self) -> bool:
        """Whether data was lost since the last check that went to its end."""

    @property
    def started_ms(self) -> int:
        """When this life began, by the store's clock; older ledgers may have been lost."""

    async def ledgers_in_limbo(self) -> Collection[LedgerId]: ...

    async def put_in_limbo(self, ledger_id: LedgerId) -> None:
        """Fence the ledger here, and stop trusting absence."""

    async def end_limbo(self, ledger_id: LedgerId) -> None: ...

    async def end_check(self) -> None:
        """Nothing is in limbo any more: do not ask for a check at the next start."""


@dataclass(slots=True)
class IntegrityStatistics:
    ledgers_healed: int = 0
    ledgers_waiting: int = 0
    entries_fetched: int = 0
    bytes_fetched: int = 0


class IntegrityCheck:
    def __init__(self, context: RecoveryContext, bookie: LimboBookie) -> None:
        self._context = context
        self._bookie = bookie
        throttle = Throttle(bytes_per_second=context.settings.worker.bytes_per_second)
        self._replicator = Replicator(context.client, throttle)
        self.statistics = IntegrityStatistics()

    async def run(self) -> None:
        """Until nothing is in limbo. Returns at once if nothing was lost."""
        if not self._bookie.needs_check:
            return
        _log.info("data was lost: comparing all ledgers with the other bookies")
        while True:
            try:
                if await self._is_healed():
                    await self._bookie.end_check()
                    _log.info("no ledger is in limbo any more", healed=self._healed)
                    return
            except StoreUnavailableError as error:
                _log.info("waiting for the metadata store", error=error)
            await trio.sleep(PASS_SECONDS)

    @property
    def _healed(self) -> int:
        return self.statistics.ledgers_healed

    async def _is_healed(self) -> bool:
        """One pass; whether nothing is left to do."""
        named = await self._named()
        in_limbo = frozenset(await self._bookie.ledgers_in_limbo())
        self.statistics.ledgers_waiting = len(in_limbo)
        for ledger_id in sorted(in_limbo):
            # A ledger that was deleted, or is at home elsewhere by now, has nothing to lose here.
            if ledger_id not in named or await self._heal(ledger_id):
                await self._bookie.end_limbo(ledger_id)
                self.statistics.ledgers_waiting -= 1
        return self.statistics.ledgers_waiting == 0

    async def _named(self) -> frozenset[LedgerId]:
        """The ledgers that name this bookie; those that it has forgotten are in limbo from now."""
        own = self._bookie.bookie_id
        known = frozenset(await self._bookie.ledgers_in_limbo())
        named: set[LedgerId] = set()
        scan = LedgerScan(self._context.client.ledgers, chance=self._context.client.chance)
        async for chunk in scan.chunks():
            # A record that cannot be read may name us: its limbo stays.
            named.update(ledger_id for ledger_id, _ in chunk.unreadable)
            for ledger in chunk.ledgers:
                ledger_id = ledger.metadata.ledger_id
                if not ledger.metadata.mentions(own):
                    continue
                named.add(ledger_id)
                is_old = ledger.created_ms is None or ledger.created_ms < self._bookie.started_ms
                if is_old and ledger_id not in known and await self._has_forgotten(ledger_id):
                    await self._bookie.put_in_limbo(ledger_id)
        return frozenset(named)

    async def _has_forgotten(self, ledger_id: LedgerId) -> bool:
        listed = await list_entries(self._context.client, self._bookie.bookie_id, ledger_id)
        return listed is Listed.NOTHING

    # ------------------------------------------------------------------ one ledger

    async def _heal(self, ledger_id: LedgerId) -> bool:
        try:
            return await self._try_heal(ledger_id)
        except StoreUnavailableError:
            raise
        except LedgerGoneError:
            return True
        except LedgerError as error:
            _log.info("stays in limbo for now", ledger=ledger_id, error=error)
            return False

    async def _try_heal(self, ledger_id: LedgerId) -> bool:
        marks = self._context.marks
        lock = await marks.lock(ledger_id)
        if lock is None:
            return False  # somebody repairs it: perhaps we are replaced
        try:
            ledger = await self._context.client.ledgers.read(ledger_id)
            metadata = ledger.metadata
            own = self._bookie.bookie_id
            if own not in self._context.client.bookies().all:
                return False  # not registered yet: nobody could ask it, we neither
            if not metadata.is_closed and own in metadata.last_fragment.ensemble:
                await LedgerRecovery(self._context.client, ledger, access_of(metadata)).run()
            order = Order(suspects=frozenset({own}), only_suspects=True)
            repair = LedgerRepair(
                self._replicator,
                ledger_id,
                session=lock.session,
                order=order,
                progress=self._count,
            )
            result = await repair.run()
            return await self._judge(ledger_id, result)
        finally:
            await marks.release(lock)

    def _count(self, entries: int, size: int) -> None:
        self.statistics.entries_fetched += entries
        self.statistics.bytes_fetched += size

    async def _judge(self, ledger_id: LedgerId, result: RepairResult) -> bool:
        if result.ending in (Ending.WHOLE, Ending.GONE, Ending.GROWING):
            self.statistics.ledgers_healed += 1
            return True
        if result.verdict is not None:
            # For workers and operators to see; with the mark it will be tried by others, too.
            await self._context.marks.mark(ledger_id, [self._bookie.bookie_id])
            await self._context.parking.park(ledger_id, result.verdict)
        why = result.verdict.text if result.verdict is not None else result.detail
        _log.warning("stays in limbo", ledger=ledger_id, why=why)
        return False


async def heal_bookie(context: RecoveryContext, bookie: LimboBookie) -> None:
    """For the composition root: run it beside a bookie whose store needs a check."""
    await IntegrityCheck(context, bookie).run()
