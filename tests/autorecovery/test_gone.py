"""Copies on bookies that never return: who says so, and what becomes of the rest of the ledger."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from autorecovery import operators
from autorecovery.context import RecoveryContext
from autorecovery.core.parking import Reason, Verdict
from autorecovery.gone import gone_for_good
from autorecovery.operators import RefusedError
from metadata.model import LedgerState
from metadata.store import ANY_VERSION
from tests.autorecovery.auditor_world import PATHS, AuditWorld, bookie
from tests.autorecovery.worker_world import RepairWorld
from wire.types import LedgerId

Clock = trio.testing.MockClock
ONE = LedgerId(1)


def has_verdict(world: RepairWorld) -> bool:
    name = PATHS.mark(ONE).rpartition("/")[2]
    return world.metadata.tree.find(f"{PATHS.underreplication}/quireparked/0/{name}") is not None


def delete_cookie(world: AuditWorld, number: int) -> None:
    world.metadata.tree.delete(PATHS.cookie(bookie(number)), ANY_VERSION)
    world.metadata.publish()


async def reason_of(world: RepairWorld) -> Verdict:
    async with world.context(8) as context:
        parked = await context.parking.read(ONE)
    await world.close(context)
    assert parked is not None
    return parked.verdict


def world_with_a_loss() -> RepairWorld:
    """Every second entry had its only copy on bookie 0; the others are on bookie 1."""
    world = RepairWorld(4)
    world.ledger(1, (0, (0, 1)), entries=10, write_quorum=1, ack_quorum=1)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    return world


async def test_the_order_to_accept_a_loss_works_once_the_cookie_is_deleted(
    autojump_clock: Clock,
) -> None:
    world = world_with_a_loss()
    await world.work_until(lambda: has_verdict(world))
    assert (await reason_of(world)).reason is Reason.NO_SOURCE

    async def give_up(context: RecoveryContext) -> None:
        with pytest.raises(RefusedError, match="delete the cookie of what is gone"):
            await operators.accept_loss(context, ONE)
        delete_cookie(world, 0)
        accepted = await operators.accept_loss(context, ONE)
        assert accepted.verdict.text.startswith("unrecoverable: these entries are lost: 0, 2, 4")

    await world.work_until(lambda: not world.marked() and not has_verdict(world), beside=give_up)
    assert bookie(0) not in world.record(1).bookies()
    wrong = {line.split()[1] for line in world.incomplete(1)}
    assert wrong == {"0", "2", "4", "6", "8"}, "nothing but what was accepted is missing"


async def test_a_worker_calls_entries_lost_whose_bookies_have_no_cookies(
    autojump_clock: Clock,
) -> None:
    world = world_with_a_loss()
    delete_cookie(world, 0)
    await world.work_until(lambda: has_verdict(world))
    verdict = await reason_of(world)
    assert (verdict.reason, verdict.waits_for) == (Reason.LOST, ())
    assert verdict.lost == ((0, 0), (2, 2), (4, 4), (6, 6), (8, 8))


async def test_one_bookie_that_may_return_is_enough_to_wait_for(autojump_clock: Clock) -> None:
    world = RepairWorld(5)
    world.ledger(1, (0, (0, 1)), entries=4)
    world.leave(bookie(0), bookie(1))
    delete_cookie(world, 0)
    world.mark(1, [bookie(0), bookie(1)])
    await world.work_until(lambda: has_verdict(world))
    verdict = await reason_of(world)
    assert (verdict.reason, verdict.waits_for) == (Reason.NO_SOURCE, (bookie(1),))


async def test_an_end_that_is_lost_is_not_accepted_but_named(autojump_clock: Clock) -> None:
    world = AuditWorld()
    async with world.context() as context:
        away = Verdict(reason=Reason.UNDETERMINED, waits_for=(bookie(7),))
        await context.parking.park(ONE, away)
        with pytest.raises(RefusedError, match="delete the ledger"):
            await operators.accept_loss(context, ONE)


async def test_neither_a_cookie_nor_a_registration_means_gone(autojump_clock: Clock) -> None:
    """A bookie that runs without a cookie, as some tools leave it, is there."""
    world = AuditWorld()
    delete_cookie(world, 0)
    async with world.context() as context:
        names = [bookie(0), bookie(1), bookie(7)]
        assert await gone_for_good(context, names) == {bookie(7)}


async def test_a_recovery_without_a_spare_bookie_waits_for_one(autojump_clock: Clock) -> None:
    """As Apache's: the end is found, but not written with fewer copies than the record promises."""
    world = RepairWorld(3)
    world.ledger(1, entries=9, state=LedgerState.OPEN)
    world.leave(bookie(0))
    world.pool.entries.pop(bookie(0))
    world.mark(1, [bookie(0)])
    await world.work_until(lambda: has_verdict(world))
    verdict = await reason_of(world)
    assert verdict.reason is Reason.NO_TARGET
    # Recovery finds it, or whoever plans the copies: either may come first.
    assert "add bookies" in verdict.detail or "start more bookies" in verdict.detail
    world.join(bookie(3))
    await world.heal()
    assert world.is_whole(1)
    assert world.record(1).last_entry_id == 8
