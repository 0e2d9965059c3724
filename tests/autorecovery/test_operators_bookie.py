"""Decommission and recover, with the worker that restores copies, on a cluster in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from autorecovery.context import RecoveryContext
from autorecovery.core.parking import Reason
from autorecovery.operators import RefusedError
from autorecovery.operators_bookie import Progress, decommission, recover
from autorecovery.worker import run_worker
from metadata.model import LedgerState
from metadata.paths import ClusterPaths
from tests.autorecovery.auditor_world import ROOT, AuditWorld, bookie
from wire.types import LedgerId

Clock = trio.testing.MockClock
ONE = LedgerId(1)


@asynccontextmanager
async def working(world: AuditWorld) -> AsyncIterator[RecoveryContext]:
    """An operator's context, and a worker elsewhere."""
    async with (
        world.context(9) as context,
        world.context(8) as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(run_worker, other)
        yield context
        nursery.cancel_scope.cancel()


def has_cookie(world: AuditWorld, number: int) -> bool:
    return world.metadata.tree.find(ClusterPaths(ROOT).cookie(bookie(number))) is not None


async def test_decommission_ends_when_everything_is_elsewhere(autojump_clock: Clock) -> None:
    world = AuditWorld(5)
    for number in range(1, 8):
        world.ledger(number, (0, (0, 1, 2)))
    world.ledger(8, (0, (1, 2, 3)))
    world.leave(bookie(0))
    shown: list[tuple[int, int]] = []

    def show(progress: Progress) -> None:
        shown.append((progress.done, progress.total))

    async with working(world) as context:
        report = await decommission(context, bookie(0), progress=show)
        for number in range(1, 8):
            metadata = (await context.client.ledgers.read(LedgerId(number))).metadata
            assert not metadata.mentions(bookie(0))
            (fragment,) = metadata.fragments
            for holder in fragment.ensemble:
                assert all((number, entry) in world.pool.entries[holder] for entry in range(10))
    assert report.is_done
    assert (report.ledgers, report.cookie_deleted) == (7, True)
    assert shown[-1] == (7, 7)
    assert not has_cookie(world, 0)


async def test_decommission_ends_with_empty_ledgers_and_empty_last_fragments(
    autojump_clock: Clock,
) -> None:
    """F54: metadata only; Apache's waits for ever."""
    world = AuditWorld(5)
    world.ledger(1, (0, (0, 1, 2)), entries=0)
    world.ledger(2, (0, (1, 2, 3)), (10, (0, 1, 2)), entries=10)
    world.leave(bookie(0))
    async with working(world) as context:
        report = await decommission(context, bookie(0))
        assert report.is_done
        await trio.sleep(60)
        for number in (1, 2):
            metadata = (await context.client.ledgers.read(LedgerId(number))).metadata
            assert not metadata.mentions(bookie(0))
    assert world.marked() == {}


async def test_decommission_gives_a_verdict_on_single_copies(autojump_clock: Clock) -> None:
    """Qw = 1: the only copy is on the stopped bookie. The others are restored all the same."""
    world = AuditWorld(5)
    world.ledger(1, (0, (0,)), ack_quorum=1)
    world.ledger(2, (0, (0, 1, 2)))
    world.leave(bookie(0))
    async with working(world) as context:
        report = await decommission(context, bookie(0))
        assert not (await context.client.ledgers.read(LedgerId(2))).metadata.mentions(bookie(0))
    assert not report.is_done
    assert list(report.stuck) == [1]
    verdict = report.stuck[ONE]
    assert verdict.reason is Reason.NO_SOURCE
    assert bookie(0) in verdict.waits_for
    assert not report.cookie_deleted
    assert has_cookie(world, 0)
    assert set(world.marked()) == {1}


async def test_decommission_passes_over_a_ledger_that_is_deleted_meanwhile(
    autojump_clock: Clock,
) -> None:
    world = AuditWorld(3)  # nowhere to copy to: without the delete it would be stuck
    world.ledger(1)
    world.leave(bookie(0))

    async with working(world) as context, trio.open_nursery() as nursery:

        async def delete() -> None:
            await trio.sleep(0.5)
            world.delete_ledger(1)

        nursery.start_soon(delete)
        report = await decommission(context, bookie(0), patience_seconds=30)
    assert report.is_done
    assert report.cookie_deleted


async def test_decommission_says_that_there_is_nowhere_to_copy_to(autojump_clock: Clock) -> None:
    world = AuditWorld(3)
    world.ledger(1)
    world.leave(bookie(0))
    async with working(world) as context:
        report = await decommission(context, bookie(0))
    assert report.stuck[ONE].reason is Reason.NO_TARGET


async def test_decommission_ends_when_nobody_works(autojump_clock: Clock) -> None:
    world = AuditWorld(5)
    world.ledger(1)
    world.leave(bookie(0))
    async with world.context() as context:
        report = await decommission(context, bookie(0), patience_seconds=120)
    assert report.stuck[ONE].reason is Reason.NOBODY
    assert "see that autorecovery runs" in report.stuck[ONE].text
    assert world.marked() == {1: {bookie(0)}}


async def test_a_single_copy_is_judged_without_a_worker(autojump_clock: Clock) -> None:
    """Apache's workers give no verdicts; the record says enough."""
    world = AuditWorld(5)
    world.ledger(1, (0, (0,)), (4, (1,)), ack_quorum=1)
    world.leave(bookie(0))
    start = trio.current_time()
    async with world.context() as context:
        report = await decommission(context, bookie(0))
    assert trio.current_time() - start < 10
    verdict = report.stuck[ONE]
    assert (verdict.reason, verdict.lost) == (Reason.NO_SOURCE, ((0, 3),))
    assert verdict.text == (
        "no source: waiting for bk0:3181: the only copies of entries 0-3 are there"
    )


async def test_a_running_bookie_is_not_decommissioned(autojump_clock: Clock) -> None:
    world = AuditWorld()
    async with world.context() as context:
        with pytest.raises(RefusedError, match="bk0:3181 is running: stop it first"):
            await decommission(context, bookie(0))


async def test_decommission_stops_when_the_bookie_comes_back(autojump_clock: Clock) -> None:
    world = AuditWorld(5)
    world.ledger(1)
    world.leave(bookie(0))
    async with world.context() as context, trio.open_nursery() as nursery:

        async def come_back() -> None:
            await trio.sleep(10)
            world.join(bookie(0))

        nursery.start_soon(come_back)
        with pytest.raises(RefusedError, match="is running"):
            await decommission(context, bookie(0))
    assert has_cookie(world, 0)


async def test_nothing_is_decommissioned_while_disabled(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.leave(bookie(0))
    async with world.context() as context:
        await context.marks.settings.disable()
        with pytest.raises(RefusedError, match="disabled"):
            await decommission(context, bookie(0))


async def test_a_bookie_without_ledgers_is_forgotten_at_once(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.leave(bookie(0))
    async with world.context() as context:
        report = await decommission(context, bookie(0))
    assert report.is_done
    assert report.cookie_deleted


# ---------------------------------------------------------------------- by hand


async def test_recover_restores_without_marks_or_workers(autojump_clock: Clock) -> None:
    world = AuditWorld(5)
    world.ledger(1)
    world.ledger(2, (0, (0, 1, 2)), (4, (1, 2, 3)))
    world.leave(bookie(0))
    async with world.context() as context:
        await context.marks.settings.disable()
        report = await recover(context, bookie(0), delete_cookie=True)
        for number in (1, 2):
            metadata = (await context.client.ledgers.read(LedgerId(number))).metadata
            assert not metadata.mentions(bookie(0))
        assert not await context.marks.marked()
        assert await context.marks.holder(ONE) is None
    assert report.is_done
    assert (report.ledgers, report.cookie_deleted) == (2, True)
    assert report.bytes > 0


async def test_recover_closes_an_open_ledger_of_the_bookie_first(autojump_clock: Clock) -> None:
    world = AuditWorld(5)
    world.ledger(1, state=LedgerState.OPEN)
    world.leave(bookie(0))
    world.pool.entries.pop(bookie(0))
    async with world.context() as context:
        skipped = await recover(context, bookie(0), skip_open=True)
        assert skipped.skipped == [1]
        report = await recover(context, bookie(0))
        metadata = (await context.client.ledgers.read(ONE)).metadata
    assert report.is_done
    assert (metadata.is_closed, metadata.last_entry_id) == (True, 9)
    assert not metadata.mentions(bookie(0))


async def test_recover_leaves_an_open_ledger_alone_that_has_moved_on(autojump_clock: Clock) -> None:
    """F39: the bookie is in an older fragment only; its writer goes on."""
    world = AuditWorld(5)
    world.ledger(1, (0, (0, 1, 2)), (5, (1, 2, 3)), state=LedgerState.OPEN)
    world.leave(bookie(0))
    async with world.context() as context:
        await recover(context, bookie(0))
        metadata = (await context.client.ledgers.read(ONE)).metadata
    assert metadata.state is LedgerState.OPEN
    assert not metadata.mentions(bookie(0))


async def test_a_dry_run_changes_nothing(autojump_clock: Clock) -> None:
    world = AuditWorld(5)
    world.ledger(1)
    world.leave(bookie(0))
    async with world.context() as context:
        report = await recover(context, bookie(0), dry_run=True)
        assert (await context.client.ledgers.read(ONE)).metadata.mentions(bookie(0))
    assert report.skipped == [1]
    assert report.ledgers == 1


async def test_recover_skips_what_a_worker_has_locked(autojump_clock: Clock) -> None:
    """F33: both would copy, or the target would collect what is being copied."""
    world = AuditWorld(5)
    world.ledger(1)
    world.leave(bookie(0))
    async with world.context() as context, world.context(8) as other:
        lock = await other.marks.lock(ONE)
        assert lock is not None
        assert (await recover(context, bookie(0))).skipped == [1]
        await other.marks.release(lock)
        assert (await recover(context, bookie(0))).is_done


async def test_recover_gives_verdicts(autojump_clock: Clock) -> None:
    world = AuditWorld(5)
    world.ledger(1, (0, (0,)), ack_quorum=1)
    world.leave(bookie(0))
    async with world.context() as context:
        report = await recover(context, bookie(0), delete_cookie=True)
        assert await context.marks.holder(ONE) is None
    assert list(report.stuck) == [1]
    assert not report.cookie_deleted


async def test_recover_of_one_ledger_leaves_the_others_and_the_cookie(
    autojump_clock: Clock,
) -> None:
    world = AuditWorld(5)
    world.ledger(1)
    world.ledger(2)
    world.ledger(3, (0, (1, 2, 3)))
    world.leave(bookie(0))
    async with world.context() as context:
        report = await recover(context, bookie(0), ledger_id=LedgerId(2), delete_cookie=True)
        assert (report.ledgers, report.is_done, report.cookie_deleted) == (1, True, False)
        assert (await context.client.ledgers.read(ONE)).metadata.mentions(bookie(0))
        two = (await context.client.ledgers.read(LedgerId(2))).metadata
        assert not two.mentions(bookie(0))
        nothing = await recover(context, bookie(0), ledger_id=LedgerId(3))
    assert nothing.ledgers == 0
    assert has_cookie(world, 0)


async def test_recover_with_a_target_copies_to_no_other(autojump_clock: Clock) -> None:
    world = AuditWorld(8)
    for number in range(1, 8):
        world.ledger(number, (0, (0, 1, 2)))
    world.ledger(8, (0, (0, 1, 7)))
    world.leave(bookie(0))
    world.leave(bookie(6))
    async with world.context() as context:
        with pytest.raises(RefusedError, match="is not writable"):
            await recover(context, bookie(0), target=bookie(6))
        report = await recover(context, bookie(0), target=bookie(7))
        for number in range(1, 8):
            (fragment,) = (await context.client.ledgers.read(LedgerId(number))).metadata.fragments
            assert set(fragment.ensemble) == {bookie(1), bookie(2), bookie(7)}
    assert list(report.stuck) == [8]  # it is there already
    assert f"bookie {bookie(7)} cannot take one" in report.stuck[LedgerId(8)].text


async def test_recover_keeps_to_the_rate_it_is_given(autojump_clock: Clock) -> None:
    """The clock jumps, so the time that passes is the time that was waited."""
    passed = []
    for rate in (None, 10):
        world = AuditWorld(5)
        for number in range(1, 21):
            world.ledger(number)
        world.leave(bookie(0))
        async with world.context() as context:
            start = trio.current_time()
            report = await recover(context, bookie(0), bytes_per_second=rate)
            passed.append(trio.current_time() - start)
        assert report.is_done
    assert passed[1] > passed[0] + 1
