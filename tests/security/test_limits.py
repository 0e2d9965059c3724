"""Clients that take what is not theirs, one kind at a time, and a client that behaves beside them.

A crowd of a thousand (idle, deaf, slow, unfinished) is in tests/bookie_server/test_live_faults.py,
frames that promise more than they bring are in tests/wire/test_hostile_v2.py, HTTP in tests/http.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from tests.bookie_server.live import bookie_process
from tests.bookie_server.live_clients import HANGS_SECONDS, LiveClient, connected, one_round
from tests.bookie_server.live_site import Site, memory_mib, stop
from tests.support.zookeeper import opened_store, shared_zookeeper
from wire import codec_v3
from wire.messages import ReadRequest
from wire.types import LedgerId

ADDRESS_MAX = 40
ATTACKERS = 200
MEMORY_MIB_MAX = 220  # what a bookie with default caches may have at all


@asynccontextmanager
async def attacked(folder: Path, **changes: object) -> AsyncIterator[tuple[Site, LiveClient]]:
    """A bookie with limits, and a neighbour whose every add and read must go on; checked after."""
    site = Site(folder, shared_zookeeper().address, changes=changes)
    async with opened_store() as store:
        await site.initialise(store)
    with bookie_process(site.conf) as bookie:
        async with connected(site.port) as neighbour:
            await one_round(neighbour, 0)
            yield site, neighbour
            await one_round(neighbour, 1)
        assert memory_mib(bookie.pid) < MEMORY_MIB_MAX
        assert await stop(bookie) == 0
        assert "Traceback" not in bookie.log.read_text()


async def count_thrown_out(
    port: int, greeting: bytes, wanted: int, meanwhile: Callable[[], Awaitable[None]]
) -> int:
    """Connect many times and stay; how many the bookie has thrown out, once it is `wanted`."""
    thrown_out = 0
    enough = trio.Event()

    async def stay() -> None:
        nonlocal thrown_out
        with suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(greeting)
                while await stream.receive_some(1 << 16):
                    pass
        thrown_out += 1
        if thrown_out == wanted:
            enough.set()

    with trio.fail_after(HANGS_SECONDS):
        async with trio.open_nursery() as nursery:
            for _ in range(ATTACKERS):
                nursery.start_soon(stay)
            await meanwhile()
            await enough.wait()
            nursery.cancel_scope.cancel()
    return thrown_out


async def test_one_address_gets_no_more_connections_than_it_may(tmp_path: Path) -> None:
    async with attacked(tmp_path, quire_connectionsPerAddressMax=ADDRESS_MAX) as (site, neighbour):
        wanted = ATTACKERS - (ADDRESS_MAX - 1)  # the neighbour has one of them

        async def meanwhile() -> None:
            for number in range(10, 30):
                await one_round(neighbour, number)

        assert await count_thrown_out(site.port, b"", wanted, meanwhile) == wanted


async def test_request_that_is_begun_and_never_finished_ends_its_connection(
    tmp_path: Path,
) -> None:
    async with attacked(tmp_path, quire_frameTimeoutSec=1) as (site, neighbour):

        async def meanwhile() -> None:
            for number in range(10, 30):
                await one_round(neighbour, number)

        thrown_out = await count_thrown_out(site.port, b"\0\0\1", ATTACKERS, meanwhile)
        assert thrown_out == ATTACKERS


async def test_client_that_only_waits_holds_back_nobody_else(tmp_path: Path) -> None:
    """A connection is not read any further while ten thousand of its answers are outstanding."""
    poll = codec_v3.encode_request(
        ReadRequest(ledger_id=LedgerId(2), entry_id=-1, previous_lac=1 << 40, timeout_ms=60_000),
        transaction_id=1,
    )
    async with attacked(tmp_path) as (site, neighbour), trio.open_nursery() as nursery:

        async def flood() -> None:
            async with await trio.open_tcp_stream("127.0.0.1", site.port) as stream:
                for _ in range(100):
                    await stream.send_all(poll * 1000)

        for _ in range(2):
            nursery.start_soon(flood)
        for number in range(10, 20):
            await one_round(neighbour, number)
        nursery.cancel_scope.cancel()
