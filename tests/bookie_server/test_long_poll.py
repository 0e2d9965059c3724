"""Reads that wait for a ledger to grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from bookie import long_polls
from tests.bookie.machine import entry_of
from tests.bookie_server.world import KEY, Client, World, running
from wire.errors import Status
from wire.messages import AddRequest, ReadRequest, ReadResponse, Response, WriteLacRequest
from wire.types import LedgerId

LEDGER = LedgerId(8)
POLL = ReadRequest(
    ledger_id=LEDGER, entry_id=-1, previous_lac=-1, timeout_ms=50_000, piggyback=True
)
FENCE = ReadRequest(ledger_id=LEDGER, entry_id=-1, fence=True, master_key=KEY)


def add(entry_id: int, lac: int) -> AddRequest:
    body = entry_of(LEDGER, entry_id, b"payload", lac)
    return AddRequest(ledger_id=LEDGER, entry_id=entry_id, master_key=KEY, body=body)


async def begun(world: World) -> tuple[Client, Client]:
    """A writer that has added entry 0, and somebody who waits for it to be confirmed."""
    writer, reader = await world.connect(), await world.connect()
    assert (await writer.ask_v3(add(0, -1))).status is Status.OK
    return writer, reader


async def parked(world: World, reader: Client, poll: ReadRequest = POLL) -> None:
    await reader.send_v3(poll)
    await trio.testing.wait_all_tasks_blocked()
    assert world.bookie.polls.waiting == 1


async def answer(client: Client) -> ReadResponse:
    _, response = await client.answer_v3()
    assert isinstance(response, ReadResponse)
    return response


async def test_poll_delivers_the_entry_when_the_lac_rises() -> None:
    async with running() as world:
        writer, reader = await begun(world)
        await parked(world, reader)
        await writer.ask_v3(add(1, 0))
        found = await answer(reader)
        assert (found.status, found.entry_id, found.max_lac) == (Status.OK, 0, 0)
        assert found.body is not None
        assert bytes(found.body) == entry_of(LEDGER, 0, b"payload")
        assert found.lac_update_ms is not None
        assert world.bookie.polls.waiting == 0
        assert world.bookie.engine.ledger(LEDGER).waiters == 0


async def test_poll_without_piggyback_delivers_the_entry_it_names() -> None:
    async with running() as world:
        writer, reader = await begun(world)
        await parked(world, reader, replace(POLL, piggyback=False, entry_id=0))
        await writer.ask_v3(add(1, 0))
        found = await answer(reader)
        assert (found.status, found.entry_id, found.max_lac) == (Status.OK, 0, 0)


async def test_poll_ends_without_news_when_its_time_is_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as world:
        _, reader = await begun(world)
        begin = trio.current_time()
        found = await reader.ask_v3(replace(POLL, timeout_ms=2000))
        assert found == ReadResponse(status=Status.OK, ledger_id=LEDGER, entry_id=-1, max_lac=-1)
        assert trio.current_time() - begin == pytest.approx(2.0)


async def test_shorter_poll_ends_before_a_longer_one_that_came_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as world:
        _, reader = await begun(world)
        await reader.send_v3(replace(POLL, timeout_ms=5000))
        shorter = await reader.send_v3(replace(POLL, timeout_ms=300))
        header, _ = await reader.answer_v3()
        assert header.transaction_id == shorter
        assert trio.current_time() < 1


async def test_add_that_does_not_raise_the_lac_wakes_nobody() -> None:
    async with running() as world:
        writer, reader = await begun(world)
        await parked(world, reader)
        await writer.ask_v3(add(1, -1))
        await trio.testing.wait_all_tasks_blocked()
        assert world.bookie.polls.waiting == 1


async def test_explicit_lac_wakes_the_poll() -> None:
    async with running() as world:
        writer, reader = await begun(world)
        await parked(world, reader)
        body = LEDGER.to_bytes(8, "big") + (0).to_bytes(8, "big") + bytes(4)
        request = WriteLacRequest(ledger_id=LEDGER, lac=0, master_key=KEY, body=body)
        assert (await writer.ask_v3(request)).status is Status.OK
        assert (await answer(reader)).entry_id == 0


async def test_fence_wakes_the_poll_but_only_as_it_happens() -> None:
    async with running() as world:
        writer, reader = await begun(world)
        await parked(world, reader)
        assert (await writer.ask_v3(FENCE)).status is Status.OK
        found = await answer(reader)
        assert (found.status, found.entry_id, found.body) == (Status.OK, -1, None)
        await parked(world, reader)
        await writer.ask_v3(FENCE)
        await trio.testing.wait_all_tasks_blocked()
        assert world.bookie.polls.waiting == 1


async def test_dropped_ledger_wakes_the_poll() -> None:
    async with running() as world:
        _, reader = await begun(world)
        await parked(world, reader)
        world.bookie.engine.drop([LEDGER], now_ms=1)
        assert (await answer(reader)).status is Status.NO_LEDGER


@pytest.mark.parametrize(
    ("poll", "status"),
    [
        (replace(POLL, ledger_id=LedgerId(99)), Status.NO_LEDGER),
        (replace(POLL, ledger_id=LedgerId(-3)), Status.NO_LEDGER),
        (replace(POLL, entry_id=0), Status.BAD_REQUEST),
        (replace(POLL, timeout_ms=0), Status.OK),
    ],
)
async def test_poll_that_cannot_wait_is_answered_at_once(poll: ReadRequest, status: Status) -> None:
    async with running() as world:
        _, reader = await begun(world)
        response: Response = await reader.ask_v3(poll)
        assert response.status is status


async def test_too_many_polls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as world:
        monkeypatch.setattr(world.bookie.polls, "_polls_max", 1)
        _, reader = await begun(world)
        await parked(world, reader)
        assert (await reader.ask_v3(POLL)).status is Status.TOO_MANY_REQUESTS


async def test_no_poll_waits_for_days(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as world:
        _, reader = await begun(world)
        await reader.send_v3(replace(POLL, timeout_ms=2**62))
        await trio.sleep(long_polls.WAIT_SECONDS_MAX - 1)
        assert world.bookie.polls.waiting == 1
        await trio.sleep(2)
        assert world.bookie.polls.waiting == 0


async def test_polls_of_a_lost_connection_are_forgotten() -> None:
    async with running() as world:
        _, reader = await begun(world)
        await parked(world, reader)
        reader.close()
        await trio.testing.wait_all_tasks_blocked()
        assert world.bookie.polls.waiting == 0
        assert world.bookie.engine.ledger(LEDGER).waiters == 0
