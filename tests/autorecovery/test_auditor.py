"""The auditor on a store of memory: who is lost, what is marked, when, and by whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.lowlevel
import trio.testing

from autorecovery.auditor import Auditor
from autorecovery.config import AuditorConfig
from autorecovery.context import RecoveryContext
from metadata.election import current_auditor
from metadata.faults import Fault, Outcome
from metadata.memory import MemoryStore
from metadata.model import LedgerState
from tests.autorecovery.auditor_world import NOW_MS, PATHS, ROOT, AuditWorld, bookie
from wire.types import LedgerId


@asynccontextmanager
async def auditing(
    world: AuditWorld, number: int = 9
) -> AsyncIterator[tuple[Auditor, RecoveryContext, MemoryStore]]:
    """An auditor that runs during the block. It has audited once when the block begins."""
    async with (
        world.context_and_store(number) as (context, store),
        trio.open_nursery() as nursery,
    ):
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        yield auditor, context, store
        nursery.cancel_scope.cancel()


async def settled() -> None:
    """Everybody has done what there is to do now."""
    await trio.sleep(1)


def with_delay(seconds: int) -> AuditorConfig:
    return AuditorConfig(lost_bookie_delay_seconds=seconds, ledger_check_seconds=0)


async def test_every_ledger_of_a_lost_bookie_is_marked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld()
    world.ledger(1, (0, (0, 1, 2)))
    world.ledger(2, (0, (1, 2, 3)))
    world.ledger(3, (0, (0, 1, 3)), (5, (1, 2, 3)))
    async with auditing(world) as (auditor, _, _):
        await settled()
        assert auditor.is_elected
        assert world.marked() == {}
        world.leave(bookie(0))
        await settled()
        assert world.marked() == {1: {bookie(0)}, 3: {bookie(0)}}
        mark = world.mark_of(1)
        assert mark is not None
        assert mark.ctime_ms == NOW_MS


async def test_bookies_dead_before_any_auditor_started_are_found(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """F43: also one that has no cookie, and is known from a ledger's record alone."""
    world = AuditWorld()
    world.ledger(1, (0, (0, 1, 2)))
    world.ledger(2, (0, (1, 2, 7)))
    world.leave(bookie(0))
    async with auditing(world):
        await settled()
        assert world.marked() == {1: {bookie(0)}, 2: {bookie(7)}}


async def test_read_only_bookies_are_there(autojump_clock: trio.testing.MockClock) -> None:
    world = AuditWorld()
    world.ledger(1)
    async with auditing(world):
        await settled()
        world.leave(bookie(0))
        world.join(bookie(0), read_only=True)
        await settled()
        assert world.marked() == {}


async def test_open_ledgers_and_empty_ones_are_marked_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld()
    world.ledger(1, state=LedgerState.OPEN)
    world.ledger(2, entries=0)
    world.leave(bookie(0))
    async with auditing(world):
        await settled()
        assert set(world.marked()) == {1, 2}


async def test_one_lost_bookie_is_waited_for_and_two_are_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """F44: a rolling restart, then an accident."""
    world = AuditWorld(auditor=with_delay(300))
    world.ledger(1, (0, (0, 1, 2)))
    world.ledger(2, (0, (1, 2, 3)))
    async with auditing(world) as (auditor, _, _):
        await settled()
        for number in range(4):
            world.leave(bookie(number))
            await trio.sleep(250)
            world.join(bookie(number))
            await trio.sleep(10)
        assert world.marked() == {}
        assert auditor.statistics.counts.losses.delayed == 4
        assert auditor.statistics.counts.losses.cancelled == 4
        world.leave(bookie(0))
        await trio.sleep(100)
        assert world.marked() == {}
        world.leave(bookie(3))
        await settled()
        assert world.marked() == {1: {bookie(0)}, 2: {bookie(3)}}


async def test_a_bookie_that_stays_away_is_marked_after_the_delay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld(auditor=with_delay(300))
    world.ledger(1)
    async with auditing(world):
        await settled()
        world.leave(bookie(0))
        await trio.sleep(299)
        assert world.marked() == {}
        await trio.sleep(2)
        assert world.marked() == {1: {bookie(0)}}


async def test_a_successor_keeps_the_delay(autojump_clock: trio.testing.MockClock) -> None:
    """F44 with the auditor's own host among the restarted ones."""
    world = AuditWorld(auditor=with_delay(300))
    world.ledger(1)
    world.leave(bookie(0))
    async with auditing(world):
        await trio.sleep(290)
        assert world.marked() == {}
        world.join(bookie(0))
        await trio.sleep(1000)
        assert world.marked() == {}


async def test_the_delay_of_the_cluster_counts_and_not_the_file(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld(auditor=with_delay(0))
    world.ledger(1)
    async with world.context() as context:
        await context.marks.settings.set_delay(600)
    async with auditing(world) as (_, context, _):
        await settled()
        world.leave(bookie(0))
        await trio.sleep(500)
        assert world.marked() == {}
        await context.marks.settings.set_delay(550)
        await trio.sleep(49)
        assert world.marked() == {}
        await trio.sleep(2)
        assert world.marked() == {1: {bookie(0)}}


async def test_an_audit_can_be_ordered(autojump_clock: trio.testing.MockClock) -> None:
    """`triggeraudit` writes the delay again."""
    world = AuditWorld(auditor=with_delay(600))
    world.ledger(1)
    async with auditing(world) as (_, context, _):
        await settled()
        world.leave(bookie(0))
        await settled()
        assert world.marked() == {}
        await context.marks.settings.trigger_audit()
        await settled()
        assert world.marked() == {1: {bookie(0)}}


async def test_the_regular_check_finds_what_nobody_reported(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld(auditor=AuditorConfig(bookie_check_seconds=600, ledger_check_seconds=0))
    async with auditing(world):
        await settled()
        world.ledger(1, (0, (0, 1, 7)))
        await trio.sleep(590)
        assert world.marked() == {}
        await trio.sleep(20)
        assert world.marked() == {1: {bookie(7)}}


async def test_nothing_is_marked_while_disabled_and_everything_after(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld()
    world.ledger(1)
    async with auditing(world) as (_, context, _):
        await settled()
        await context.marks.settings.disable()
        world.leave(bookie(0))
        await trio.sleep(500)
        assert world.marked() == {}
        await context.marks.settings.enable()
        await trio.sleep(2)
        assert world.marked() == {1: {bookie(0)}}


async def test_an_unreadable_record_does_not_end_an_audit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld()
    world.ledger(1)
    world.plant_record(2, b"no record at all")
    world.ledger(3)
    world.leave(bookie(0))
    async with auditing(world) as (auditor, _, _):
        await settled()
        assert set(world.marked()) == {1, 3}
        assert auditor.statistics.counts.unreadable == 1


async def test_a_ledger_deleted_during_the_audit_is_passed_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld()
    world.ledger(1)
    world.ledger(2)
    world.leave(bookie(0))
    world.script.add(
        Fault(meanwhile=lambda: world.delete_ledger(1)), verb="get", path="/ledgers/00/0000/L0001"
    )
    async with auditing(world):
        await settled()
        assert set(world.marked()) == {2}


async def test_a_store_that_is_away_during_the_audit_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """F42: no mark is lost."""
    world = AuditWorld()
    for number in range(20):
        world.ledger(number)
    async with auditing(world):
        await settled()
        world.leave(bookie(0))
        await trio.lowlevel.checkpoint()
        world.metadata.available = False
        await trio.sleep(60)
        world.metadata.available = True
        await trio.sleep(700)
        assert set(world.marked()) == set(range(20))


async def test_all_bookies_away_at_once_is_the_store_and_no_loss(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld()
    world.ledger(1)
    async with auditing(world) as (_, context, _):
        await settled()
        world.leave(*world.names)
        await trio.sleep(100)
        await context.marks.settings.trigger_audit()
        await trio.sleep(100)
        for name in world.names:
            world.join(name)
            await trio.sleep(2)
        await trio.sleep(100)
        assert world.marked() == {}
        world.leave(bookie(0))
        await settled()
        assert world.marked() == {1: {bookie(0)}}


async def test_an_audit_while_nobody_is_in_sight_settles_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It was ordered and has met all ledgers, but whoever stays away must still be acted upon."""
    world = AuditWorld()
    world.ledger(1)
    async with auditing(world) as (_, context, _):
        await settled()
        world.leave(*world.names)
        await settled()
        await context.marks.settings.trigger_audit()
        await trio.sleep(5)
        assert world.marked() == {}
        for number in (1, 2, 3):
            world.join(bookie(number))
        await trio.sleep(60)
        assert world.marked() == {1: {bookie(0)}}


async def test_an_auditor_whose_session_expires_stands_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """F42: without a restart, and what was lost meanwhile is found."""
    world = AuditWorld()
    world.ledger(1)
    async with auditing(world) as (auditor, _, store):
        await settled()
        for lost in (0, 1):
            assert auditor.is_elected
            assert store.session is not None
            world.metadata.expire(store.session)
            world.leave(bookie(lost))
            await trio.sleep(10)
            assert auditor.is_elected
            assert world.marked() == {1: {bookie(number) for number in range(lost + 1)}}


async def test_a_successor_takes_over_when_the_auditor_dies(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """F42: the old one is paused and does not know that its session is over."""
    world = AuditWorld()
    world.ledger(1)
    async with auditing(world, 8) as (first, context, store), auditing(world, 9) as (second, _, _):
        await settled()
        assert (first.is_elected, second.is_elected) == (True, False)
        assert store.session is not None
        world.metadata.expire(store.session, silently=True)
        world.leave(bookie(0))
        await trio.sleep(5)
        assert second.is_elected
        assert world.marked() == {1: {bookie(0)}}
        assert await current_auditor(context.store, ROOT) == bookie(9)


async def test_two_auditors_at_once_make_the_same_marks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """F42: both hold office as far as they know, and mark the same loss."""
    world = AuditWorld()
    for number in range(30):
        world.ledger(number)
    async with auditing(world, 8) as (first, _, store), auditing(world, 9) as (second, _, _):
        await settled()
        assert store.session is not None
        path = PATHS.election
        votes = sorted(world.metadata.tree.get(path).children)
        world.metadata.tree.delete(f"{path}/{votes[0]}", -1)  # the first has not noticed yet
        world.leave(bookie(0))
        world.metadata.publish()
        await trio.sleep(20)
        assert second.is_elected or first.is_elected
        assert set(world.marked()) == set(range(30))
        assert all(world.marked()[number] == {bookie(0)} for number in range(30))


async def test_an_orderly_stop_takes_the_vote_back(autojump_clock: trio.testing.MockClock) -> None:
    world = AuditWorld()
    async with auditing(world):
        await settled()
    assert not world.metadata.tree.get(PATHS.election).children


async def test_a_mark_whose_answer_was_lost_is_made_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """F15 for marks."""
    world = AuditWorld()
    world.ledger(1)
    async with auditing(world):
        await settled()
        lost_answer = Fault(outcome=Outcome.ANSWER_LOST)
        world.script.add(lost_answer, verb="create", path=PATHS.mark(LedgerId(1)))
        world.leave(bookie(0))
        await trio.sleep(5)
        assert world.marked() == {1: {bookie(0)}}


async def test_a_term_begins_with_what_the_last_one_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = AuditWorld()
    world.ledger(1)
    world.leave(bookie(0))
    async with auditing(world):
        await settled()
    before = world.metadata.tree.get(PATHS.mark(LedgerId(1))).stat()
    async with auditing(world):
        await settled()
    assert world.metadata.tree.get(PATHS.mark(LedgerId(1))).stat() == before
