"""Who is there as of now, whatever the watches say."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from metadata.discovery import Bookies
from metadata.faults import Fault
from metadata.service_info import encode_service_info
from metadata.store import ANY_VERSION, StoreUnavailableError
from tests.metadata.places import until
from tests.metadata.test_discovery import ROOT, A, B, C, World, info_of


async def test_refreshing_waits_neither_for_late_watches_nor_for_a_server_that_lags() -> None:
    world = World()
    await world.add(A)
    async with world.watching() as watcher:
        world.store.lag()
        await world.remove(A)
        await world.add(B)
        await world.add(C, read_only=True)
        assert (await world.settled()).all == {A}
        found = await watcher.refresh()
        assert found == Bookies(frozenset({B}), frozenset({C}), {B: info_of(B), C: info_of(C)})
        assert watcher.bookies is found
        assert await world.settled() == found


async def test_bookie_that_becomes_writable_during_a_refresh_is_in_one_of_the_lists() -> None:
    world = World()
    await world.add(A, read_only=True)
    async with world.watching() as watcher:
        world.store.hold_watches()

        def switch() -> None:
            data = encode_service_info(info_of(A))
            world.metadata.tree.create(f"{ROOT}/available/{A}", data)
            world.metadata.tree.delete(f"{ROOT}/available/readonly/{A}", ANY_VERSION)

        world.script.add(
            Fault(meanwhile=switch), verb="children", path=f"{ROOT}/available/readonly"
        )
        assert (await watcher.refresh()).writable == {A}


async def test_refreshing_does_without_a_read_only_list_and_not_without_the_store() -> None:
    world = World(read_only_list=False)
    await world.add(A)
    async with world.watching() as watcher:
        world.store.hold_watches()
        await world.remove(A)
        assert await watcher.refresh() == Bookies()
        world.metadata.available = False
        with pytest.raises(StoreUnavailableError):
            await watcher.refresh()
        world.metadata.available = True


async def test_refreshing_does_not_wait_for_where_others_are_asking_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    async with world.watching() as watcher:
        world.script.add(Fault(request_seconds=1), verb="get", path=f"{ROOT}/available/{A}")
        await world.add(A)
        assert (await world.settled()).all == frozenset()
        assert (await watcher.refresh()).all == {A}
        await until(lambda: watcher.bookies.info == {A: info_of(A)})


async def test_a_bookie_found_by_a_refresh_that_was_cancelled_is_followed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    async with world.watching() as watcher:
        world.store.hold_watches()
        await world.add(A)
        world.script.add(Fault(request_seconds=1), verb="get", path=f"{ROOT}/available/{A}")
        with trio.move_on_after(0.1) as scope:
            await watcher.refresh()
        assert scope.cancelled_caught
        await until(lambda: watcher.bookies.info == {A: info_of(A)})
