"""How a bookie is listed: from its start, through lost sessions and full disks, to its stop."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bookie.storage.disk_watch import Acceptance
from metadata.service_info import decode_service_info
from tests.bookie_server.service import BOOKIE_ID, Site
from wire.errors import Status
from wire.types import BookieId


async def new_site() -> Site:
    site = Site()
    await site.initialise()
    return site


async def test_bookie_is_listed_while_it_serves(autojump_clock: trio.testing.MockClock) -> None:
    site = await new_site()
    async with site.serving():
        assert await site.is_listed()
        assert not await site.is_listed(readonly=True)
        node = await site.metadata.connect().get(site.paths.registration(BOOKIE_ID, readonly=False))
        info = decode_service_info(node.data, BOOKIE_ID)
        assert info.takes_batches
        assert info.rpc is not None
        assert (info.rpc.host, info.rpc.port) == ("10.0.0.5", 3181)
    assert not await site.is_listed()


async def test_bookie_registers_again_after_its_session_expired(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Without a restart, and without losing a connection."""
    site = await new_site()
    async with site.serving():
        client = await site.connect()
        assert site.store is not None
        assert site.store.session is not None
        site.metadata.expire(site.store.session)
        assert not await site.is_listed()
        await trio.sleep(5)
        assert await site.is_listed()
        await client.add_v2(1, 0)
        assert (await client.answer_v2()).status is Status.OK


async def test_bookie_serves_while_the_metadata_is_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving():
        site.metadata.available = False
        client = await site.connect()
        await client.add_v2(1, 0)
        assert (await client.answer_v2()).status is Status.OK
        await trio.sleep(60)
        site.metadata.available = True
        await client.add_v2(1, 1)
        assert (await client.answer_v2()).status is Status.OK
        assert await site.is_listed()


async def test_forced_read_only_bookie_is_listed_so_and_refuses_adds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving(read_only=True):
        assert await site.is_listed(readonly=True)
        assert not await site.is_listed()
        client = await site.connect()
        await client.add_v2(1, 0)
        assert (await client.answer_v2()).status is Status.READ_ONLY


async def test_full_disk_moves_the_bookie_to_the_other_list_and_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving() as running:
        running.mode.on_acceptance(Acceptance(True, True, "disk is full"))
        await trio.sleep(1)
        assert await site.is_listed(readonly=True)
        assert not await site.is_listed()
        assert running.bookie.statistics().read_only
        client = await site.connect()
        await client.add_v2(1, 0)
        assert (await client.answer_v2()).status is Status.READ_ONLY
        running.mode.on_acceptance(Acceptance(False, True, ""))
        await trio.sleep(1)
        assert await site.is_listed()
        assert not await site.is_listed(readonly=True)
        await client.add_v2(1, 0)
        assert (await client.answer_v2()).status is Status.OK


async def test_room_on_the_disk_does_not_overrule_the_operator(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving() as running:
        running.mode.set_read_only(True)
        running.mode.on_acceptance(Acceptance(True, True, "disk is full"))
        running.mode.on_acceptance(Acceptance(False, True, ""))
        assert running.mode.read_only
        assert running.mode.reason == "set by the operator"
        await trio.sleep(1)
        assert await site.is_listed(readonly=True)


@pytest.mark.parametrize("persist", [True, False])
async def test_operators_read_only_outlives_a_restart_if_so_configured(
    persist: bool, autojump_clock: trio.testing.MockClock
) -> None:
    site = await new_site()
    async with site.serving(persist_status=persist) as running:
        running.mode.set_read_only(True)
    async with site.serving(persist_status=persist) as running:
        assert running.mode.read_only == persist
        assert await site.is_listed(readonly=persist)
        running.mode.set_read_only(False)
    async with site.serving(persist_status=persist) as running:
        assert not running.mode.read_only


async def test_bookie_with_a_name_of_its_own_and_any_port(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving(bookie_id="shelf-7", port=0, advertised_address="b.example") as running:
        assert running.port != 0
        mine = BookieId("shelf-7")
        node = await site.metadata.connect().get(site.paths.registration(mine, readonly=False))
        info = decode_service_info(node.data, mine)
        assert info.rpc is not None
        assert (info.rpc.host, info.rpc.port) == ("b.example", running.port)
        client = await site.connect()
        await client.add_v2(1, 0)
        assert (await client.answer_v2()).status is Status.OK


async def test_full_disk_ends_a_bookie_that_may_not_be_read_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving(read_only_allowed=False) as running:
        running.store.engine.upkeep.disks.note("/disk/ledgers", OSError("no room"))
        await trio.sleep(1)
    assert "readOnlyModeEnabled is false" in str(site.ended)
