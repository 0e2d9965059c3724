"""A look at all marked ledgers: what they lack, which are stuck, how long they have waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import trio

from autorecovery.context import RecoveryContext
from autorecovery.core.forecast import NO_SHORTAGE, Forecast, Progress, Shortage, shortage_of
from autorecovery.ledger_scan import for_each
from metadata.marks import Mark
from metadata.model import InvalidMetadataError
from metadata.update import LedgerGoneError
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
    shortages: dict[LedgerId, Shortage] = {}
    overdue = 0
    patience_ms = context.settings.auditor.overdue_seconds * 1000

    async def one(ledger_id: LedgerId) -> None:
        nonlocal overdue
        mark = await context.marks.read_mark(ledger_id)
        if mark is None:
            return
        shortages[ledger_id] = await _shortage(context, mark)
        marked_ms = mark.content.ctime_ms
        if patience_ms and marked_ms is not None and marked_ms + patience_ms < context.now_ms():
            overdue += 1

    await for_each(await context.marks.marked(), one, at_once=_READS_AT_ONCE)
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


async def _shortage(context: RecoveryContext, mark: Mark) -> Shortage:
    """A mark says whose copies are missing; bookies lost since then count, too."""
    try:
        metadata = (await context.client.ledgers.read(mark.ledger_id)).metadata
    except (LedgerGoneError, InvalidMetadataError):
        return NO_SHORTAGE
    alive = context.client.bookies().all
    missing: frozenset[BookieId] = metadata.bookies() - alive | frozenset(mark.content.replicas)
    return shortage_of(metadata, missing)
