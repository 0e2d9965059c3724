"""Full caches, full sockets, half frames: memory stays bounded, neighbours are served."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing

from bookie import answers
from bookie import bookie as bookie_module
from bookie.bookie import BookieOptions
from tests.bookie_server.world import KEY, Client, Full, World, entry_of, running
from wire.build_v2 import add_requests, read_requests
from wire.errors import Status
from wire.messages import AddResponse, ReadRequest, ReadResponse
from wire.types import LedgerId


async def test_adds_wait_for_room_and_are_then_taken() -> None:
    async with running() as world:
        full = Full(world)
        client = await world.connect()
        await client.add_v2(1, 0, 1, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert world.bookie.engine.statistics().entries_added == 0
        full.end()
        for entry_id in range(3):
            assert await client.answer_v2() == AddResponse(
                status=Status.OK, ledger_id=LedgerId(1), entry_id=entry_id
            )


async def test_adds_that_wait_too_long_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as world:
        Full(world)
        client = await world.connect()
        await client.add_v2(1, 0)
        assert (await client.answer_v2()).status is Status.TOO_MANY_REQUESTS
        assert trio.current_time() == pytest.approx(3.0)
        assert world.bookie.statistics().adds_refused == 1
        assert world.bookie.gate.waiting == 0


async def test_parked_add_is_judged_when_it_is_admitted() -> None:
    """A fence that comes while an add waits must count: the add was accepted by nobody yet."""
    async with running() as world:
        writer, recovery = await world.connect(), await world.connect()
        await writer.add_v2(1, 0)
        await writer.answer_v2()
        full = Full(world)
        await writer.add_v2(1, 1)
        await trio.testing.wait_all_tasks_blocked()
        fence = ReadRequest(ledger_id=LedgerId(1), entry_id=-1, fence=True, master_key=KEY)
        assert (await recovery.ask_v2(fence)).status is Status.OK
        full.end()
        assert (await writer.answer_v2()).status is Status.FENCED


async def test_readers_are_served_while_adds_wait() -> None:
    async with running() as world:
        writer, reader = await world.connect(), await world.connect()
        await writer.add_v2(1, 0)
        await writer.answer_v2()
        Full(world)
        await writer.add_v2(1, 1)
        found = await reader.ask_v2(ReadRequest(ledger_id=LedgerId(1), entry_id=0))
        assert found.status is Status.OK


async def test_those_who_wait_are_admitted_one_after_the_other() -> None:
    """One at a time: all at once would overshoot the limit by all of their buffers."""
    async with running() as world:
        room = 0

        def is_full() -> bool:
            return world.bookie.engine.statistics().entries_added >= room

        world.bookie.gate._is_full = is_full
        clients = [await world.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            await client.add_v2(number, 0)
            await trio.testing.wait_all_tasks_blocked()
        room = 2
        world.bookie.gate.admit_next()
        await trio.testing.wait_all_tasks_blocked()
        assert world.bookie.engine.statistics().entries_added == 2
        assert world.bookie.gate.waiting == 2
        assert [(await client.answer_v2()).status for client in clients[:2]] == [Status.OK] * 2


async def test_real_pressure_passes_and_everything_is_acknowledged() -> None:
    """A cache of 64 KiB and 400 KiB of entries: the gate closes again and again, and opens."""
    async with running() as world:
        client = await world.connect()
        entries = [entry_of(1, entry_id, b"x" * 1000) for entry_id in range(400)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, add_requests(entries, master_key=KEY))
            statuses = [(await client.answer_v2()).status for _ in entries]
        assert statuses == [Status.OK] * 400
        assert world.bookie.statistics().adds_refused == 0


async def filled(world: World, count: int) -> Client:
    """A client whose ledger 1 has entries of 1000 bytes."""
    client = await world.connect()
    for first in range(0, count, 50):
        entries = [entry_of(1, first + n, b"x" * 1000) for n in range(50)]
        await client.send(add_requests(entries, master_key=KEY))
        for _ in entries:
            await client.answer_v2()
    return client


async def test_client_that_does_not_read_its_answers_is_not_read_and_then_closed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(answers, "OUTBOX_BYTES_MAX", 100_000)
    monkeypatch.setattr(answers, "SEND_BYTES", 100_000)
    options = BookieOptions(send_seconds_max=20.0)
    async with running(options=options, buffer_bytes=20_000) as world:
        neighbour = await filled(world, 200)
        lazy = await world.connect()
        requests = read_requests(list(range(200)) * 50, ledger_id=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_what_fits, lazy, requests)
            with trio.move_on_after(10):
                while True:
                    await trio.sleep(1)
                    most = max(c.outbox.bytes for c in world.bookie.connections)
                    assert most < 300_000
            assert world.bookie.post.blocked == 1
            found = await neighbour.ask_v2(ReadRequest(ledger_id=LedgerId(1), entry_id=7))
            assert isinstance(found, ReadResponse)
            assert found.status is Status.OK
            await trio.sleep(30)
            assert len(world.bookie.connections) == 1
            assert world.bookie.post.blocked == 0


async def send_what_fits(client: Client, data: bytes) -> None:
    with suppress(OSError):  # closed by the bookie, as it should be
        await client.stream.send_all(data)


def test_share_of_a_connection_shrinks_with_the_room() -> None:
    """However many come and read nothing: together they hold little more than the limit."""
    post = answers.Post()
    assert post.share == 8 << 20
    for _ in range(1000):
        post.unsent += post.share
    assert post.share == 64 << 10
    assert post.is_tight
    assert post.unsent < (64 << 20) + 1000 * (64 << 10)


async def test_answers_to_a_slow_reader_all_arrive() -> None:
    async with running(buffer_bytes=5000) as world:
        client = await filled(world, 100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, read_requests(range(100), ledger_id=1))
            for entry_id in range(100):
                found = await client.answer_v2()
                assert isinstance(found, ReadResponse)
                assert (found.entry_id, len(found.body or b"")) == (entry_id, 1032)


async def test_frame_that_never_ends_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as world:
        client = await world.connect()
        await client.send(b"\x00\x00\x01\x00\x02\x01")
        await trio.sleep(119)
        world.bookie.sweep()
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.bookie.connections) == 1
        await trio.sleep(2)
        world.bookie.sweep()
        assert await client.is_closed()


async def test_incomplete_frames_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookie_module, "PARTIAL_BYTES_MAX", 500_000)
    begin = (2_000_000).to_bytes(4, "big") + b"\x02\x01" + bytes(200_000)
    async with running(buffer_bytes=1 << 20) as world:
        clients = [await world.connect() for _ in range(3)]
        for client in clients:
            await client.send(begin)
            await trio.testing.wait_all_tasks_blocked()
        assert await clients[0].is_closed()
        assert len(world.bookie.connections) == 2
