"""Limbo of a real bookie, as the integrity check moves it."""

from __future__ import annotations

import trio.testing

from quire.limbo import RunningLimbo
from tests.bookie_server.service import Site
from tests.bookie_server.world import KEY, entry_of
from wire.build_v2 import add_requests
from wire.errors import Status
from wire.messages import ReadRequest, ReadResponse
from wire.types import LedgerId

Clock = trio.testing.MockClock


async def test_limbo_is_entered_listed_and_ended_on_a_real_bookie(autojump_clock: Clock) -> None:
    site = Site()
    await site.initialise()
    async with site.serving() as running:
        local = RunningLimbo(running, started_ms=0)
        assert local.bookie_id == running.identity.bookie_id
        assert not local.needs_check
        client = await site.connect()
        await client.send(add_requests([entry_of(7, 0, b"here", -1)], master_key=KEY))
        await client.answer_v2()

        async def status(entry_id: int) -> Status:
            answer = await client.ask_v2(ReadRequest(ledger_id=LedgerId(7), entry_id=entry_id))
            assert isinstance(answer, ReadResponse)
            return answer.status

        assert await status(3) is Status.NO_ENTRY
        await local.put_in_limbo(LedgerId(7))
        assert await status(3) is not Status.NO_ENTRY, "absence is not known any more"
        assert await status(0) is Status.OK
        assert await local.ledgers_in_limbo() == {7}, "also before it is in the index"
        running.store.engine.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert await local.ledgers_in_limbo() == {7}
        await local.end_limbo(LedgerId(7))
        assert await local.ledgers_in_limbo() == set()
        assert await status(3) is Status.NO_ENTRY
        await local.end_check()
        client.close()


async def test_the_life_of_a_bookie_is_dated_by_the_clock_that_dates_ledgers(
    autojump_clock: Clock,
) -> None:
    """F61: by a clock that is ahead, ledgers made since would count as lost, and be fenced."""
    site = Site()
    await site.initialise()
    async with site.serving() as running:
        local = await RunningLimbo.of(running)
        registration = f"{running.cluster.root}/available/{local.bookie_id}"
        stat = await running.metadata.exists(registration)
        assert stat is not None
        assert local.started_ms == stat.created_ms
