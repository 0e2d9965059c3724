"""Lists of entries over a connection: long ones come in steps, and one after the other."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.bookie_server.world import Client, World, running
from wire.availability import decode_availability
from wire.codec_v2 import encode_request
from wire.errors import Status
from wire.messages import ListEntriesRequest, ListEntriesResponse, ReadRequest, Response
from wire.types import LedgerId

LEDGER = LedgerId(1)
RUNS = 60


async def add_runs(world: World) -> None:
    """A ledger of many runs in the index, of one entry each."""
    client = await world.connect()
    for entry_id in range(0, 2 * RUNS, 2):
        await client.add_v2(LEDGER, entry_id)
        await client.answer_v2()
        world.store.engine.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
    assert world.store.engine.statistics().write_cache_bytes == 0


def check(response: Response) -> None:
    assert isinstance(response, ListEntriesResponse)
    assert response.status is Status.OK
    assert response.availability is not None
    listed = decode_availability(response.availability).runs(0, 2 * RUNS)
    assert list(listed) == [(entry_id, entry_id) for entry_id in range(0, 2 * RUNS, 2)]


@pytest.fixture
def _one_run_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.storage.listing._PAGE_RUNS", 1)


@pytest.mark.usefixtures("_one_run_per_step")
async def test_others_are_served_while_a_long_list_is_made() -> None:
    answered: list[str] = []
    async with running() as world:
        await add_runs(world)
        lister, reader = await world.connect(), await world.connect()

        async def take_list() -> None:
            _, response = await lister.answer_v3()
            answered.append("list")
            check(response)

        async def take_entry() -> None:
            assert (await reader.answer_v2()).status is Status.OK
            answered.append("entry")

        await reader.ask_v2(ReadRequest(ledger_id=LEDGER, entry_id=0))  # warm from now on
        await lister.send_v3(ListEntriesRequest(ledger_id=LEDGER))
        await reader.send(encode_request(ReadRequest(ledger_id=LEDGER, entry_id=0)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_list)
            nursery.start_soon(take_entry)
    assert answered == ["entry", "list"]


@pytest.mark.usefixtures("_one_run_per_step")
async def test_lists_that_are_asked_for_together_are_all_answered() -> None:
    async with running() as world:
        await add_runs(world)
        clients: list[Client] = [await world.connect() for _ in range(3)]
        for client in clients:
            await client.send_v3(ListEntriesRequest(ledger_id=LEDGER))
            await client.send_v3(ListEntriesRequest(ledger_id=LEDGER))
        for client in clients * 2:
            _, response = await client.answer_v3()
            check(response)


@pytest.mark.usefixtures("_one_run_per_step")
async def test_client_that_leaves_while_its_list_is_made_does_not_hold_up_the_next() -> None:
    async with running() as world:
        await add_runs(world)
        gone, next_one = await world.connect(), await world.connect()
        await gone.send_v3(ListEntriesRequest(ledger_id=LEDGER))
        gone.close()
        check(await next_one.ask_v3(ListEntriesRequest(ledger_id=LEDGER)))
