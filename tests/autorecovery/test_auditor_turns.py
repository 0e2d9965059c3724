"""Copies are restored first, and checked afterwards."""

from __future__ import annotations

import trio
import trio.testing

from autorecovery.auditor import Auditor
from autorecovery.config import AuditorConfig
from autorecovery.core.parking import Reason, Verdict
from metadata.store import ANY_VERSION
from tests.autorecovery.auditor_world import PATHS, AuditWorld, bookie
from wire.types import LedgerId

Clock = trio.testing.MockClock
ONE, TWO = LedgerId(1), LedgerId(2)


def world_with_a_loss() -> AuditWorld:
    """No check was ever made, so one is due; a bookie is lost, so there is something to restore."""
    world = AuditWorld(auditor=AuditorConfig(ledger_check_seconds=3600 * 24))
    world.ledger(1)
    world.ledger(2)
    world.leave(bookie(0))
    return world


async def test_a_check_waits_until_nothing_is_left_to_be_restored(autojump_clock: Clock) -> None:
    world = world_with_a_loss()
    async with world.context() as context, trio.open_nursery() as nursery:
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        await trio.sleep(600)
        assert set(world.marked()) == {1, 2}
        assert auditor.statistics.counts.ledgers_checked == 0
        world.metadata.tree.delete(PATHS.mark(ONE), ANY_VERSION)
        world.metadata.publish()
        await trio.sleep(600)
        assert auditor.statistics.counts.ledgers_checked == 0, "one is left"
        await context.parking.park(TWO, Verdict(reason=Reason.NO_TARGET))
        await trio.sleep(60)
        assert auditor.statistics.counts.ledgers_checked == 2, "nobody can restore the other"
        nursery.cancel_scope.cancel()


async def test_a_check_does_not_wait_for_ever(autojump_clock: Clock) -> None:
    """Perhaps nobody restores anything: that is no reason never to check."""
    world = world_with_a_loss()
    async with world.context() as context, trio.open_nursery() as nursery:
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        await trio.sleep(3000)
        assert auditor.statistics.counts.ledgers_checked == 0
        await trio.sleep(700)
        assert auditor.statistics.counts.ledgers_checked == 2
        nursery.cancel_scope.cancel()
