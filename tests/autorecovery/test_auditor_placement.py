"""The placement check and the worker together: what is marked is moved, and then left alone."""

from __future__ import annotations

import trio
import trio.testing

from autorecovery.auditor import Auditor
from autorecovery.config import AuditorConfig
from autorecovery.worker import run_worker
from tests.autorecovery.auditor_world import AuditWorld, bookie
from tests.autorecovery.core.test_audit_placement import TwoRacks
from wire.types import LedgerId

Clock = trio.testing.MockClock
ONE = LedgerId(1)


def settings(*, repairs: bool) -> AuditorConfig:
    return AuditorConfig(
        ledger_check_seconds=0, placement_check_seconds=3600, repairs_placement=repairs
    )


async def test_a_misplaced_ledger_is_moved_to_another_rack(autojump_clock: Clock) -> None:
    world = AuditWorld(6, policy=TwoRacks(), auditor=settings(repairs=True))
    world.ledger(1, (0, (0, 2, 4)), (5, (0, 1, 2)))
    async with world.context() as context, trio.open_nursery() as nursery:
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        nursery.start_soon(run_worker, context)
        await trio.sleep(60)
        metadata = (await context.client.ledgers.read(ONE)).metadata
        nursery.cancel_scope.cancel()
        text = context.registry.render()
    first, second = metadata.fragments
    assert first.ensemble == (bookie(1), bookie(2), bookie(4))
    assert second.ensemble == (bookie(0), bookie(1), bookie(2))
    assert all((1, entry) in world.pool.entries[bookie(1)] for entry in range(10))
    assert world.marked() == {}
    assert auditor.statistics.counts.misplaced == 1
    assert "replication_worker_NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED 1" in text


async def test_a_ledger_that_cannot_be_placed_better_is_left_where_it_is(
    autojump_clock: Clock,
) -> None:
    world = AuditWorld(5, policy=TwoRacks(3), auditor=settings(repairs=True))
    world.ledger(1, (0, (0, 2, 4)))
    async with world.context() as context, trio.open_nursery() as nursery:
        nursery.start_soon(Auditor(context).run)
        nursery.start_soon(run_worker, context)
        await trio.sleep(60)
        metadata = (await context.client.ledgers.read(ONE)).metadata
        nursery.cancel_scope.cancel()
    assert metadata.fragments[0].ensemble == (bookie(0), bookie(2), bookie(4))
    assert world.marked() == {}


async def test_nothing_is_moved_unless_the_operator_wants_it(autojump_clock: Clock) -> None:
    world = AuditWorld(6, policy=TwoRacks(), auditor=settings(repairs=False))
    world.ledger(1, (0, (0, 2, 4)))
    async with world.context() as context, trio.open_nursery() as nursery:
        await context.marks.mark(ONE, ())  # somebody else's check
        nursery.start_soon(Auditor(context).run)
        nursery.start_soon(run_worker, context)
        await trio.sleep(60)
        metadata = (await context.client.ledgers.read(ONE)).metadata
        nursery.cancel_scope.cancel()
    assert metadata.fragments[0].ensemble == (bookie(0), bookie(2), bookie(4))
    assert world.marked() == {}
