"""How a bookie ends: properly, by an error of its journal, or by being cut off."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from bookie.server import RunningBookie
from bookie.storage.journal_format import JournalError
from tests.bookie_server.service import Site
from tests.bookie_server.world import KEY, Client, entry_of
from wire.build_v2 import add_requests
from wire.errors import Status
from wire.messages import ReadRequest, ReadResponse
from wire.types import LedgerId


async def new_site() -> Site:
    site = Site()
    await site.initialise()
    return site


async def test_adds_under_way_are_answered_before_the_connection_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    entries = [entry_of(1, entry_id, b"x" * 100) for entry_id in range(200)]
    async with site.serving():
        client = await site.connect()
        await client.send(add_requests(entries, master_key=KEY))
        # Taken from the socket, not yet durable.
        while not site.running.bookie.engine.statistics().entries_added:  # type: ignore[union-attr]
            await trio.lowlevel.checkpoint()
        site.stop.set()
        statuses = []
        while (payload := await client.receive()) is not None:
            statuses.append(int.from_bytes(payload[4:8], "big"))
        assert statuses
        assert set(statuses) == {Status.OK.v2}
    async with site.serving() as running:
        assert running.store.replayed.entries == 0, "a clean stop leaves nothing to replay"
        client = await site.connect()
        for entry_id in range(len(statuses)):
            found = await client.ask_v2(ReadRequest(ledger_id=LedgerId(1), entry_id=entry_id))
            assert found.status is Status.OK


async def test_stopping_bookie_takes_no_connections_and_leaves_the_list_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving():
        client = await site.connect()
        site.stop.set()
        assert await client.is_closed()
        assert not await site.is_listed()
        with pytest.raises(OSError, match="nobody listens"):
            await site.connect()


async def test_waiting_reads_are_answered_when_the_bookie_stops(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    async with site.serving():
        client = await site.connect()
        await client.add_v2(1, 0)
        await client.answer_v2()
        reader = await site.connect()
        poll = ReadRequest(
            ledger_id=LedgerId(1), entry_id=-1, previous_lac=-1, timeout_ms=9000, piggyback=True
        )
        await reader.send_v3(poll)
        await trio.sleep(0.5)
        site.stop.set()
        _, found = await reader.answer_v3()
        assert isinstance(found, ReadResponse)
        assert (found.status, found.max_lac) == (Status.OK, -1)
        assert trio.current_time() < 5


async def test_error_of_the_journal_ends_the_bookie_and_nothing_is_acknowledged(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await new_site()
    async with site.serving() as running:
        client = await site.connect()
        journal = running.store.engine.journals[0]

        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(journal, "_write_block", fail)
        await client.add_v2(1, 0)
        assert await client.receive() is None
    assert isinstance(site.ended, JournalError)
    assert "Input/output error" in str(site.ended)
    assert not await site.is_listed()


async def test_extension_lives_while_the_bookie_serves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    story: list[str] = []

    @asynccontextmanager
    async def extension(running: RunningBookie) -> AsyncIterator[None]:
        story.append(f"in: listed {await site.is_listed()}")
        yield
        story.append(f"out: listed {await site.is_listed()}")

    async with site.serving(extensions=[extension]):
        pass
    assert story == ["in: listed True", "out: listed True"]


async def test_cancelled_bookie_loses_nothing_that_it_acknowledged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = await new_site()
    with trio.CancelScope() as scope:
        async with site.serving():
            client = await site.connect()
            await client.add_v2(1, *range(50))
            for _ in range(50):
                assert (await client.answer_v2()).status is Status.OK
            scope.cancel()
    assert scope.cancelled_caught
    async with site.serving() as running:
        assert running.store.replayed.entries == 50
        client = await site.connect()
        found = await client.ask_v2(ReadRequest(ledger_id=LedgerId(1), entry_id=49))
        assert found.status is Status.OK


@asynccontextmanager
async def journal_just_failed() -> AsyncIterator[tuple[RunningBookie, Client]]:
    """The journal's thread knows, the loop does not yet; the block is to end the connection."""
    site = await new_site()
    async with site.serving() as running:
        client = await site.connect()
        await client.add_v2(1, 0)
        assert (await client.answer_v2()).status is Status.OK
        [journal] = running.store.engine.journals
        journal.failure = JournalError("the disk is gone")
        yield running, client
        with pytest.raises(AssertionError, match="the bookie closed the connection"):
            await client.answer_v2()
        journal.failure = None


async def test_add_that_comes_when_the_journal_has_just_failed_is_not_answered(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Simulation, outer ring, seed 1522."""
    async with journal_just_failed() as (_, client):
        await client.add_v2(1, 1)
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_add_that_fails_when_the_journal_has_just_failed_ends_its_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with journal_just_failed() as (running, _):
        engine, [connection] = running.store.engine, running.bookie.connections
        assert engine.add_entry(1, 1, 0, KEY, entry_of(1, 1, b"payload"), 0) is Status.OK
        assert connection.stumble(OSError("a log cannot be written")) is Status.IO_ERROR
