"""Small requests share calls of the kernel; a request that is alone waits for nobody."""

from __future__ import annotations

import pytest

from ledger_client.connection import ALONE_MAX
from ledger_client.core.commands import Outcome
from tests.ledger_client.pool_world import LEDGER, Conversation, World, running, silent
from wire.build_v2 import add_answers
from wire.errors import Status
from wire.scan_v2 import AddRun


async def test_request_is_sent_at_once_while_few_are_on_their_way(calls: list[int]) -> None:
    async with running(World(takes_batches=False), silent) as world:
        world.add(0, 0)
        await world.settle()  # until it is connected
        for number in range(1, ALONE_MAX):
            world.add(number, number)
            assert len(calls) == number + 1


async def test_requests_are_gathered_while_many_are_on_their_way(calls: list[int]) -> None:
    async with running(World(takes_batches=False), silent) as world:
        for number in range(ALONE_MAX):
            world.add(number, number)
            await world.settle()
        before = len(calls)
        for number in range(ALONE_MAX, ALONE_MAX + 100):
            world.add(number, number)
        assert len(calls) == before
        await world.settle()
        assert len(calls) == before + 1
        assert calls[-1] == 100 * calls[0]


@pytest.mark.parametrize("size", [10, 100_000])  # the second does not fit into a pipe at once
async def test_gathered_requests_arrive_whole_and_in_order(size: int) -> None:
    seen: list[int] = []

    async def bookie(conversation: Conversation) -> None:
        while items := await conversation.requests():
            for item in items:
                assert isinstance(item, AddRun)
                seen.extend(item.entry_ids)
            if len(seen) == 300:
                await conversation.stream.send_all(add_answers(Status.OK, LEDGER, range(300)))

    async with running(World(takes_batches=False), bookie) as world:
        for number in range(300):
            world.add(number, number, size=size)
        await world.settle()
        assert seen == list(range(300))
        assert world.ends == [(number, Outcome.OK) for number in range(300)]


async def test_request_that_can_wait_leaves_with_others_at_the_end_of_the_moment(
    calls: list[int],
) -> None:
    async with running(World(takes_batches=False), silent) as world:
        world.add(0, 0)
        await world.settle()
        before = len(calls)
        for number in (1, 2, 3):
            world.add(number, number, can_wait=True)
        assert len(calls) == before
        await world.settle()
        assert len(calls) == before + 1
        assert calls[-1] == 3 * calls[0]
