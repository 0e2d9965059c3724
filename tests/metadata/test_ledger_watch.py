"""Following one ledger through changes, lost sessions, lagging servers and its end."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from metadata.codec import encode_ledger_metadata
from metadata.faults import NEVER, Fault
from metadata.ledgers import LedgerWatch
from metadata.update import FinishRecovery, LedgerGoneError, StartRecovery
from tests.metadata.ledger_world import TEMPLATE, World, ledgers_of
from tests.metadata.places import Place, place
from wire.types import LedgerId

__all__ = ["place"]


async def test_a_watch_delivers_changes_and_the_end(place: Place) -> None:
    async with place.connected() as store, place.connected() as other:
        await store.create(place.root)
        mine, theirs = ledgers_of(store, root=place.root), ledgers_of(other, root=place.root)
        created = await mine.create(TEMPLATE)
        watch = LedgerWatch(mine, created)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await theirs.update(LedgerId(0), StartRecovery())
            with trio.fail_after(20):
                recovering = await watch.wait_newer(created)
            assert recovering.version == 1
            await theirs.delete(LedgerId(0))
            with trio.fail_after(20), pytest.raises(LedgerGoneError):
                await watch.wait_newer(recovering)
            assert watch.latest is None


async def test_a_watch_goes_on_in_the_next_session(place: Place) -> None:
    async with place.connected() as store, place.connected() as other:
        await store.create(place.root)
        mine, theirs = ledgers_of(store, root=place.root), ledgers_of(other, root=place.root)
        created = await mine.create(TEMPLATE)
        watch = LedgerWatch(mine, created)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await place.expire(store)
            await theirs.update(LedgerId(0), StartRecovery())
            with trio.fail_after(20):
                recovering = await watch.wait_newer(created)
                await theirs.update(LedgerId(0), FinishRecovery(last_entry_id=-1, length=0))
                assert (await watch.wait_newer(recovering)).version == 2
            nursery.cancel_scope.cancel()


async def test_a_watch_survives_the_loss_of_its_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    other = ledgers_of(world.metadata.connect())
    created = await world.ledgers.create(TEMPLATE)
    watch = LedgerWatch(world.ledgers, created)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.testing.wait_all_tasks_blocked()
        world.metadata.available = False
        assert world.store.session is not None
        world.metadata.expire(world.store.session)
        await trio.sleep(1)
        world.metadata.available = True
        await other.update(LedgerId(0), StartRecovery())
        recovering = await watch.wait_newer(created)
        assert recovering.version == 1
        await other.update(LedgerId(0), FinishRecovery(last_entry_id=-1, length=0))
        assert (await watch.wait_newer(recovering)).version == 2
        nursery.cancel_scope.cancel()


async def test_a_watch_that_never_fires_is_made_up_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    created = await world.ledgers.create(TEMPLATE)
    world.script.add(Fault(watch_seconds=NEVER), verb="get")
    watch = LedgerWatch(world.ledgers, created)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.testing.wait_all_tasks_blocked()
        await ledgers_of(world.metadata.connect()).update(LedgerId(0), StartRecovery())
        assert (await watch.wait_newer(created)).version == 1
        nursery.cancel_scope.cancel()


async def test_a_watch_ignores_servers_that_lag(autojump_clock: trio.testing.MockClock) -> None:
    """The caller knows version 1 already; a follower still shows 0, then nothing at all."""
    world = World()
    created = await world.ledgers.create(TEMPLATE)
    world.store.lag()
    other = ledgers_of(world.metadata.connect())
    known = (await other.update(LedgerId(0), StartRecovery())).ledger
    watch = LedgerWatch(world.ledgers, known)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.testing.wait_all_tasks_blocked()
        assert watch.latest is known
        assert watch.latest is not created
        world.store.catch_up()
        await other.delete(LedgerId(0))
        with pytest.raises(LedgerGoneError):
            await watch.wait_newer(known)


async def test_a_watch_does_not_take_a_lagging_absence_for_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.store.lag()
    other = ledgers_of(world.metadata.connect())
    created = await other.create(TEMPLATE)
    watch = LedgerWatch(world.ledgers, created)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await other.update(LedgerId(0), StartRecovery())
        assert (await watch.wait_newer(created)).version == 1
        nursery.cancel_scope.cancel()


async def test_a_watch_keeps_the_old_record_when_the_new_one_is_unreadable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    created = await world.ledgers.create(TEMPLATE)
    path = world.paths.path_of(LedgerId(0))
    watch = LedgerWatch(world.ledgers, created)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.testing.wait_all_tasks_blocked()
        other = world.metadata.connect()
        await other.set(path, b"junk", version=0)
        await trio.testing.wait_all_tasks_blocked()
        assert watch.latest is created
        good = encode_ledger_metadata(created.metadata.in_recovery())
        await other.set(path, good, version=1)
        assert (await watch.wait_newer(created)).version == 2
        nursery.cancel_scope.cancel()
