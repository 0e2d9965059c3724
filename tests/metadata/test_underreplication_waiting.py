"""Workers waiting for marks: woken by changes, asking nothing at rest, surviving trouble."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from metadata.faults import NEVER, Fault, Outcome, Request
from metadata.store import ANY_VERSION
from metadata.underreplication import Lock, UnderReplication
from tests.metadata.marks_world import (
    PATHS,
    A,
    World,
    manager,
    take,
)
from tests.metadata.places import Place, place, planted, until
from wire.types import LedgerId

__all__ = ["place"]


async def acquire_into(under: UnderReplication, locks: list[Lock]) -> None:
    locks.append(await under.acquire())


async def test_a_worker_waits_for_a_mark(place: Place) -> None:
    async with place.connected() as one, place.connected() as two:
        await one.create(place.root)
        mine, theirs = manager(one, place.root), manager(two, place.root)
        await mine.open()
        locks: list[Lock] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acquire_into, mine, locks)
            await trio.sleep(0.3)
            assert not locks
            await theirs.mark(LedgerId(4294967296), [A])
            await until(lambda: bool(locks))
        assert locks[0].ledger_id == 4294967296


async def test_a_worker_waits_for_a_lock_to_be_released(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.other.mark(LedgerId(5), [A])
    theirs = await take(world.other)
    locks: list[Lock] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire_into, world.mine, locks)
        await trio.testing.wait_all_tasks_blocked()
        assert not locks
        await world.other.release(theirs)
        await trio.testing.wait_all_tasks_blocked()
        assert locks


async def test_a_worker_at_rest_asks_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """Also with a ledger that somebody else holds, and with a directory whose mark is to come."""
    world = World()
    await world.other.mark(LedgerId(5), [A])
    await take(world.other)
    planted(world.metadata, [f"{PATHS.marks}/0000/0000/0000/0007"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.mine.acquire)
        await trio.testing.wait_all_tasks_blocked()
        world.requests.clear()
        await trio.sleep(59)
        assert world.requests == []
        nursery.cancel_scope.cancel()


async def test_a_mark_that_comes_after_its_directory_is_noticed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A marker makes four directories and then the mark: the worker may look in between."""
    world = World()
    planted(world.metadata, [f"{PATHS.marks}/0000/0000/0000/0007"])
    locks: list[Lock] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire_into, world.mine, locks)
        await trio.testing.wait_all_tasks_blocked()
        await world.other.mark(LedgerId(7), [A])
        await trio.testing.wait_all_tasks_blocked()
        assert locks


@pytest.mark.parametrize("late", [NEVER, 3.0])
async def test_a_worker_does_not_depend_on_watches(
    late: float, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    await world.other.mark(LedgerId(5), [A])
    await take(world.other)
    for verb in ("children", "exists"):
        world.script.add(Fault(watch_seconds=late), verb=verb, times=1000)
    locks: list[Lock] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire_into, world.mine, locks)
        await trio.testing.wait_all_tasks_blocked()
        await world.other.mark(LedgerId(6), [A])
        await until(lambda: bool(locks))
    assert locks[0].ledger_id == 6


async def test_a_worker_survives_lost_sessions_and_an_absent_store(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    locks: list[Lock] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire_into, world.mine, locks)
        await trio.testing.wait_all_tasks_blocked()
        world.metadata.available = False
        world.expire()
        await trio.sleep(100)
        world.metadata.available = True
        await world.other.mark(LedgerId(6), [A])
        await until(lambda: bool(locks))
    assert locks[0].session == world.store.session


async def test_a_worker_does_not_pick_while_disabled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.other.mark(LedgerId(5), [A])
    await world.other.settings.disable()
    locks: list[Lock] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire_into, world.mine, locks)
        await trio.sleep(1000)
        assert not locks
        await world.other.settings.enable()
        await until(lambda: bool(locks))


async def test_a_worker_waits_for_a_tree_that_was_formatted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """`metaformat` removes `ledgers` and `locks` under running workers."""
    world = World()
    for path in (PATHS.marks, PATHS.locks):
        world.metadata.tree.delete(path, ANY_VERSION)
    world.metadata.publish()
    locks: list[Lock] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire_into, world.mine, locks)
        await trio.testing.wait_all_tasks_blocked()
        await world.other.mark(LedgerId(5), [A])
        await until(lambda: bool(locks))
    assert world.is_locked(5)


async def test_many_workers_on_a_bad_network_repair_every_ledger_once_at_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Requests and watches come late, answers get lost; no two hold one ledger, none is left."""
    for seed in range(6):
        chance = random.Random(seed)

        def fault(request: Request, chance: random.Random = chance) -> Fault:
            lost = request.writes and chance.random() < 0.1
            return Fault(
                outcome=Outcome.ANSWER_LOST if lost else Outcome.ANSWERED,
                request_seconds=chance.random() / 50,
                watch_seconds=chance.random() / 10,
            )

        world = World()
        holders: dict[LedgerId, int] = {}

        async def work(
            under: UnderReplication, number: int, holders: dict[LedgerId, int] = holders
        ) -> None:
            while True:
                lock = await under.acquire()
                assert holders.setdefault(lock.ledger_id, number) == number
                await trio.sleep(0.05)
                del holders[lock.ledger_id]
                await under.finish(lock)

        for number in range(12):
            await world.other.mark(LedgerId(number * 40000), [A])
        async with trio.open_nursery() as nursery:
            for number in range(3):
                store = world.metadata.connect(fault)
                nursery.start_soon(work, manager(store, seed=100 * seed + number), number)
            for _ in range(3000):
                if not await world.other.marked():
                    break
                await trio.sleep(0.5)
            assert await world.other.marked() == []
            nursery.cancel_scope.cancel()
