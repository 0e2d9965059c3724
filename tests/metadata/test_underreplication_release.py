"""A lock that is given back is our own one: whoever has the ledger by now keeps it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from metadata.faults import Fault, Outcome
from tests.metadata.marks_world import PATHS, A, B, World, take
from wire.types import LedgerId

LEDGER = LedgerId(5)
LOCK = PATHS.lock(LEDGER)


async def _lock_when_free(world: World) -> None:
    """Another worker that watches the lock and takes it the moment it is gone."""
    while world.is_locked(LEDGER):  # noqa: ASYNC110
        await trio.sleep(0.000_1)
    await world.other.mark(LEDGER, [B])
    assert await world.other.take(LEDGER) is not None


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_a_release_without_an_answer_spares_the_lock_of_the_next_one(
    outcome: Outcome, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    await world.other.mark(LEDGER, [A])
    lock = await take(world.mine)
    world.script.add(Fault(outcome=outcome), verb="delete", path=LOCK)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lock_when_free, world)
            await world.mine.release(lock)
    assert await world.mine.holder(LEDGER) == "elsewhere"


async def test_finishing_without_an_answer_spares_the_lock_of_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Mark and lock went in one transaction, more was lost, and somebody is at it already."""
    world = World()
    for number in range(LEDGER, LEDGER + 150):  # so that the directories above stay
        await world.other.mark(LedgerId(number), [A])
    assert len(await world.mine.sample(1000)) == 150
    lock = await world.mine.take(LEDGER)
    assert lock is not None
    assert world.mine.can_finish_together(lock)
    lost, slow = Fault(outcome=Outcome.ANSWER_LOST), Fault(request_seconds=1.0)
    world.script.add(lost, verb="transact", path=PATHS.mark(LEDGER))
    world.script.add(slow, verb="sync", path=PATHS.mark(LEDGER))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lock_when_free, world)
            assert not await world.mine.finish(lock)
    assert await world.mine.holder(LEDGER) == "elsewhere"
    assert world.mark_of(LEDGER) is not None


async def test_a_lock_that_somebody_removed_by_hand_is_not_ours_to_release() -> None:
    world = World()
    await world.other.mark(LEDGER, [A])
    lock = await take(world.mine)
    await world.other_store.delete(LOCK, version=0)
    assert await world.other.take(LEDGER) is not None
    await world.mine.release(lock)
    assert await world.mine.holder(LEDGER) == "elsewhere"
