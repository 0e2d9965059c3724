"""Moving copies from full bookies to empty ones: a plan to be shown, then copy and commit.

A move is a repair of a slot that is not broken: the same lock, the same copy, the same commit. The
copy that is left behind is garbage, which its bookie collects when it next looks for ledgers that
are not its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import trio

from autorecovery.context import RecoveryContext
from autorecovery.core.rebalance import Plan, PlannedMove, Planner, Usage
from autorecovery.ledger_scan import LedgerScan, for_each
from autorecovery.replicator import Replicator, Throttle
from autorecovery.worker_repair import Ending, LedgerRepair, Move, Order
from ledger_client.bookie_info import ask_bookie_info
from runtime import logs
from wire.errors import LedgerError, TransientError
from wire.types import BookieId

_log = logs.get("autorecovery.rebalance")

#: Ledgers that are moved at a time.
MOVES_AT_ONCE: Final = 4
_ASKED_AT_ONCE: Final = 20


@dataclass(slots=True)
class RebalanceResult:
    moved: int = 0
    bytes: int = 0
    #: Moves that did not come about, and why. Nothing is lost by them.
    left: list[tuple[PlannedMove, str]] = field(default_factory=list)


#: Called after each move with what was done so far.
OnMove = Callable[[RebalanceResult], None]


async def read_usages(context: RecoveryContext) -> list[Usage]:
    """How full each living bookie is; one that does not answer is left out."""
    usages: list[Usage] = []

    async def ask(bookie_id: BookieId) -> None:
        try:
            space = await ask_bookie_info(context.client, bookie_id)
        except TransientError as error:
            _log.warning("left out", bookie=bookie_id, error=error)
        else:
            usages.append(Usage(bookie_id, space.total_bytes, space.free_bytes))

    await for_each(context.client.bookies().all, ask, at_once=_ASKED_AT_ONCE)
    return sorted(usages, key=lambda usage: usage.bookie_id)


async def plan_rebalance(
    context: RecoveryContext, *, tolerance: float = 0.05, bytes_max: int | None = None
) -> Plan:
    """What would be moved. Nothing is changed by planning."""
    planner = Planner(
        await read_usages(context),
        policy=context.client.policy,
        writable=context.client.bookies().writable,
        chance=context.client.chance,
        tolerance=tolerance,
        bytes_max=bytes_max,
    )
    scan = LedgerScan(context.client.ledgers, chance=context.client.chance)
    async with aclosing(scan.chunks()) as chunks:
        async for chunk in chunks:
            if planner.is_done:
                break
            for ledger in chunk.ledgers:
                planner.offer(ledger.metadata)
    return planner.plan()


async def rebalance(
    context: RecoveryContext,
    plan: Plan,
    *,
    bytes_per_second: int | None = None,
    on_move: OnMove | None = None,
) -> RebalanceResult:
    """Carry out a plan. Pauses while re-replication is disabled; may be cancelled at any time."""
    rate = (
        context.settings.worker.bytes_per_second if bytes_per_second is None else bytes_per_second
    )
    replicator = Replicator(context.client, Throttle(bytes_per_second=rate))
    result = RebalanceResult()
    moves = iter(plan.moves)

    async def work() -> None:
        for move in moves:
            await context.marks.settings.wait_enabled()
            why = await _carry_out(context, replicator, move, result)
            if why is not None:
                result.left.append((move, why))
            if on_move is not None:
                on_move(result)

    async with trio.open_nursery() as nursery:
        for _ in range(MOVES_AT_ONCE):
            nursery.start_soon(work)
    return result


async def _carry_out(
    context: RecoveryContext, replicator: Replicator, move: PlannedMove, result: RebalanceResult
) -> str | None:
    """Move one slot; why not, if that was not possible."""
    try:
        lock = await context.marks.lock(move.ledger_id)
        if lock is None:
            return "somebody else is at work on the ledger"
        try:
            order = Order(move=Move(move.first_entry_id, move.source, move.target))
            repair = LedgerRepair(replicator, move.ledger_id, session=lock.session, order=order)
            found = await repair.run()
        finally:
            await context.marks.release(lock)
    except LedgerError as error:
        return str(error)
    if found.ending is Ending.GONE:
        return "the ledger was deleted"
    if found.fragments == 0:
        why = found.verdict.text if found.verdict is not None else found.detail
        return why or f"{move.source} does not hold it any more"
    result.moved += 1
    result.bytes += found.bytes
    return None
