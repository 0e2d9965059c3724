"""v3 adds and reads by the receive buffer: each gets its own answer, whatever others get."""

from __future__ import annotations

import pytest
import trio.testing

from tests.bookie_server.world import KEY, Client, Full, entry_of, running
from wire.build_v3 import add_requests, read_requests
from wire.errors import Status
from wire.messages import AddResponse, ReadRequest, ReadResponse
from wire.types import Flag, LedgerId

Adds = list[tuple[int, int, int]]  # transaction id, ledger id, entry id


def frames(adds: Adds, *, key: bytes = KEY, flags: int = 0, size: int = 50) -> bytes:
    return b"".join(
        b"".join(
            add_requests(
                [(txn, entry_id, entry_of(ledger_id, entry_id, b"y" * size))],
                ledger_id=ledger_id,
                master_key=key,
                flags=flags,
            )
        )
        for txn, ledger_id, entry_id in adds
    )


async def statuses(client: Client, count: int) -> dict[tuple[int, int, int], Status]:
    """By transaction, ledger and entry: all three must come back as they went."""
    found: dict[tuple[int, int, int], Status] = {}
    for _ in range(count):
        header, response = await client.answer_v3()
        assert isinstance(response, AddResponse)
        key = header.transaction_id, response.ledger_id, response.entry_id
        assert key not in found
        found[key] = response.status
    return found


async def read_back(client: Client, adds: Adds, size: int = 50) -> None:
    for _, ledger_id, entry_id in adds:
        read = ReadRequest(ledger_id=LedgerId(ledger_id), entry_id=entry_id)
        found = await client.ask_v2(read)
        assert isinstance(found, ReadResponse)
        assert found.body == entry_of(ledger_id, entry_id, b"y" * size), (ledger_id, entry_id)


async def test_run_is_answered_add_by_add_and_journaled_whole() -> None:
    async with running() as world:
        client, reader = await world.connect(), await world.connect()
        adds = [(100 + n, 1, n) for n in range(300)]
        await client.send(frames(adds))
        assert await statuses(client, 300) == dict.fromkeys(adds, Status.OK)
        await read_back(reader, adds)
        journaled = world.bookie.engine.journals[0].statistics().records
        assert journaled == 300


async def test_each_ledger_of_a_mix_gets_its_own_answer() -> None:
    async with running() as world:
        client, reader = await world.connect(), await world.connect()
        fence = ReadRequest(ledger_id=LedgerId(3), entry_id=-1, fence=True, master_key=KEY)
        assert (await reader.ask_v2(fence)).status is Status.NO_ENTRY
        await client.send(frames([(1, 5, 0)], key=bytes(20)))  # ledger 5 has another key
        await statuses(client, 1)
        adds = [(10 + n, n % 8, n) for n in range(80)]
        await client.send(frames(adds))
        expected = {
            add: {3: Status.FENCED, 5: Status.UNAUTHORIZED}.get(add[1], Status.OK) for add in adds
        }
        assert await statuses(client, 80) == expected
        await read_back(reader, [add for add in adds if expected[add] is Status.OK])
        assert world.bookie.statistics().adds_refused == 20


async def test_flagged_adds_among_plain_ones_are_judged_by_their_flags() -> None:
    async with running() as world:
        client, reader = await world.connect(), await world.connect()
        fence = ReadRequest(ledger_id=LedgerId(1), entry_id=-1, fence=True, master_key=KEY)
        await reader.ask_v2(fence)
        plain, repair = [(1, 1, 0), (3, 1, 2)], [(2, 1, 1), (4, 1, 3)]
        recovery = int(Flag.RECOVERY_ADD)
        await client.send(
            frames(plain[:1]) + frames(repair[:1], flags=recovery)
            + frames(plain[1:]) + frames(repair[1:], flags=recovery)
        )  # fmt: skip
        expected = dict.fromkeys(plain, Status.FENCED) | dict.fromkeys(repair, Status.OK)
        assert await statuses(client, 4) == expected


@pytest.mark.parametrize("ledgers", [1, 7])
async def test_adds_that_wait_too_long_are_each_refused(
    ledgers: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with running() as world:
        Full(world)
        client = await world.connect()
        adds = [(10 + n, n % ledgers, n) for n in range(21)]
        await client.send(frames(adds))
        assert await statuses(client, 21) == dict.fromkeys(adds, Status.TOO_MANY_REQUESTS)
        assert world.bookie.statistics().adds_refused == 21


async def test_reads_found_and_not_found_are_each_answered_in_turn() -> None:
    async with running() as world:
        client = await world.connect()
        adds = [(n, 1, n) for n in range(100) if n % 10 != 3]
        for size, chosen in ((50, adds[:40]), (51, adds[40:])):
            await client.send(frames(chosen, size=size))
            await statuses(client, len(chosen))
        asked = [(1000 + n, n) for n in range(100)]
        await client.send(*read_requests(asked, ledger_id=1))
        for txn, entry_id in asked:
            header, found = await client.answer_v3()
            assert header.transaction_id == txn
            assert isinstance(found, ReadResponse)
            assert found.entry_id == entry_id
            if entry_id % 10 == 3:
                assert found.status is Status.NO_ENTRY
                continue
            size = 50 if entry_id <= adds[39][2] else 51
            assert found.body == entry_of(1, entry_id, b"y" * size)
            assert found.max_lac == -1
