"""The bookie of this process, as the check that ends limbo wants to see it.

A bookie that has lost data must not deny what it has forgotten. `remember_ledgers` runs before it
answers anybody: every ledger that names it and that it does not know is put in limbo. From then on
it may serve; the check (`autorecovery/integrity.py`) heals ledger after ledger beside that.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Final

import trio

from bookie.server import LostBookie, RunningBookie
from metadata.ledgers import Ledgers
from metadata.paths import ClusterPaths
from metadata.store import StoreUnavailableError
from wire.types import BookieId, LedgerId

#: States looked at before other tasks get their turn.
_STEP: Final = 1000
#: Between two looks for our own registration, if the session was lost right after it.
_RETRY_SECONDS: Final = 1.0


class RunningLimbo:
    """A `LimboBookie` around a bookie that runs."""

    def __init__(self, running: RunningBookie, *, started_ms: int) -> None:
        self._running = running
        self._started_ms = started_ms

    @classmethod
    async def of(cls, running: RunningBookie) -> RunningLimbo:
        """A life begins when the bookie registers, and by the store's clock.

        Ledgers are dated by that clock, too. By a clock of ours that is ahead, a ledger that was
        just made, and has no entry yet, would be one that was lost: its writer would be fenced.
        """
        paths = ClusterPaths(running.cluster.root)
        own = running.identity.bookie_id
        while True:
            for readonly in (False, True):
                with suppress(StoreUnavailableError):
                    stat = await running.metadata.exists(paths.registration(own, readonly=readonly))
                    if stat is not None:
                        return cls(running, started_ms=stat.created_ms)
            await trio.sleep(_RETRY_SECONDS)

    @property
    def bookie_id(self) -> BookieId:
        return self._running.identity.bookie_id

    @property
    def needs_check(self) -> bool:
        return self._running.store.needs_integrity_check

    @property
    def started_ms(self) -> int:
        return self._started_ms

    async def ledgers_in_limbo(self) -> Collection[LedgerId]:
        """What the indexes say, and above all what memory says, which may be in no index yet."""
        engine = self._running.store.engine
        found = {ledger.id for ledger in engine.in_memory() if ledger.limbo}
        count = 0
        for directory in engine.directories:
            for ledger_id, state in directory.index.ledger_states():
                if state.limbo and state.tombstone is None:
                    found.add(ledger_id)
                count += 1
                if count % _STEP == 0:
                    await trio.lowlevel.checkpoint()
        return {ledger_id for ledger_id in found if engine.ledger(ledger_id).limbo}

    async def put_in_limbo(self, ledger_id: LedgerId) -> None:
        await self._set(ledger_id, is_on=True)

    async def end_limbo(self, ledger_id: LedgerId) -> None:
        await self._set(ledger_id, is_on=False)

    async def _set(self, ledger_id: LedgerId, *, is_on: bool) -> None:
        is_durable = trio.Event()
        self._running.store.engine.set_limbo(ledger_id, is_on, is_durable.set)
        await is_durable.wait()

    async def end_check(self) -> None:
        self._running.store.integrity_checked()


async def remember_ledgers(lost: LostBookie) -> None:
    """Put what the metadata expects here, and what is not here, in limbo; durable on return."""
    from autorecovery.ledger_scan import LedgerScan

    engine, own = lost.store.engine, lost.identity.bookie_id
    ledgers = Ledgers(lost.metadata, lost.cluster.root, lost.cluster.layout, chance=lost.chance)
    async for chunk in LedgerScan(ledgers, chance=lost.chance).chunks():
        named = [ledger_id for ledger_id, _ in chunk.unreadable]
        named += [
            ledger.metadata.ledger_id for ledger in chunk.ledgers if ledger.metadata.mentions(own)
        ]
        waiting: list[trio.Event] = []
        for ledger_id in named:
            if not engine.ledger(ledger_id).exists:
                waiting.append(trio.Event())
                engine.set_limbo(ledger_id, True, waiting[-1].set)
        for is_durable in waiting:
            await is_durable.wait()
