"""A look at all marked ledgers: what they lack, which are stuck, how long they have waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from autorecovery.context import RecoveryContext
from autorecovery.core.forecast import NO_SHORTAGE, Forecast, Progress, Shortage, shortage_of
from autorecovery.ledger_scan import LedgerScan
from wire.types import BookieId, LedgerId

_READS_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Overview:
    forecast: Forecast
    #: Marks older than the operator's patience.
    overdue: int
    #: Ledgers with a verdict.
    parked: frozenset[LedgerId]


async def look(context: RecoveryContext, progress: Progress) -> Overview:
    """Estimate what is left. Keep `progress` from one look to the next: it knows the rate."""
    missing: dict[LedgerId, tuple[BookieId, ...]] = {}
    shortages: dict[LedgerId, Shortage] = {}
    scan = LedgerScan(context.client.ledgers, chance=context.client.chance)
    overdue = 0
    patience_ms = context.settings.auditor.overdue_seconds * 1000

    async def some(ledger_ids: Sequence[LedgerId]) -> None:
        nonlocal overdue
        for mark in await context.marks.read_marks(ledger_ids):
            marked_ms = mark.content.ctime_ms
            if patience_ms and marked_ms is not None and marked_ms + patience_ms < context.now_ms():
                overdue += 1
            missing[mark.ledger_id] = mark.content.replicas
        chunk = await scan.read(ledger_ids)
        alive = context.client.bookies().all
        for metadata in (found.metadata for found in chunk.ledgers):
            named = missing.get(metadata.ledger_id)
            if named is not None:
                # A mark says whose copies are missing; bookies lost since then count, too.
                gone = metadata.bookies() - alive | frozenset(named)
                shortages[metadata.ledger_id] = shortage_of(metadata, gone)

    marked = await context.marks.marked()
    parts = [marked[i : i + _READS_AT_ONCE] for i in range(0, len(marked), _READS_AT_ONCE)]
    for part in parts:  # one after the other: workers use the same session
        await some(part)
    shortages = {ledger_id: shortages.get(ledger_id, NO_SHORTAGE) for ledger_id in missing}
    parked = frozenset([ledger_id async for ledger_id in context.parking.ledgers()])
    forecast = progress.on_look(shortages, trio.current_time(), parked)
    return Overview(forecast, overdue, parked & shortages.keys())


async def drop_outdated_verdicts(context: RecoveryContext) -> int:
    """Forget verdicts on ledgers that nobody marks any more, as after Apache's worker was there."""
    dropped = 0
    outdated = [
        ledger_id
        async for ledger_id in context.parking.ledgers()
        if await context.marks.read_mark(ledger_id) is None
    ]
    for ledger_id in outdated:
        await context.parking.release(ledger_id)
        dropped += 1
    return dropped
