"""Connections against a bookie that answers as the test tells it to, on a network in memory."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ledger_client.connection import STALL_SECONDS, UNSENT_BYTES_MAX
from ledger_client.core.commands import Outcome
from ledger_client.requests import REQUEST_SECONDS, FoundEntries, Question
from tests.ledger_client.pool_world import (
    BOOKIE,
    KEY,
    LEDGER,
    Conversation,
    World,
    closing,
    entry_of,
    running,
    serve,
    silent,
)
from wire.build_v2 import add_answers, read_answers
from wire.codec_v2 import RequestFrame, encode_response
from wire.codec_v3 import decode_request
from wire.codec_v3 import encode_response as encode_v3
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.messages import (
    AddBatchResponse,
    ForceRequest,
    ForceResponse,
    ReadRequest,
    ReadResponse,
)
from wire.scan_v2 import AddBatch, AddMix, AddRun, ReadRun
from wire.types import BookieId


async def test_ordinary_acknowledgements_are_handed_over_by_the_buffer() -> None:
    async def bookie(conversation: Conversation) -> None:
        await conversation.requests()
        await conversation.stream.send_all(add_answers(Status.OK, LEDGER, [2, 0, 3, 1]))
        await trio.sleep_forever()

    async with running(World(takes_batches=False), bookie) as world:
        world.add(1, 0, 1, 2)
        world.add(2, 3)
        await world.settle()
        assert world.ends == [(1, Outcome.OK), (2, Outcome.OK)]
        assert [list(answer.content) for answer in world.answers] == [[0, 1, 2], [3]]  # type: ignore[call-overload]
        assert world.calls == 1


async def test_batch_is_answered_by_its_number() -> None:
    async def bookie(conversation: Conversation) -> None:
        (item,) = await conversation.requests()
        assert isinstance(item, AddBatch)
        assert list(item.walk.entry_ids) == [0, 1, 2]
        answer = AddBatchResponse(
            status=Status.FENCED, request_id=item.request.request_id, ledger_id=LEDGER,
            first_entry_id=0, last_entry_id=2,
        )  # fmt: skip
        await conversation.stream.send_all(encode_response(answer))
        await trio.sleep_forever()

    async with running(World(takes_batches=True), bookie) as world:
        world.add(41, 0, 1, 2)
        await world.settle()
        assert world.ends == [(41, Outcome.FENCED)]


async def test_read_waits_for_all_its_entries_and_stops_at_the_first_missing() -> None:
    async def bookie(conversation: Conversation) -> None:
        (item,) = await conversation.requests()
        assert isinstance(item, ReadRun)
        assert item.entry_ids == [0, 3, 6]
        missing = add_answers(Status.NO_ENTRY, LEDGER, [6])
        missing = missing[:5] + b"\x02" + missing[6:]  # an answer to a read
        found = read_answers(LEDGER, [3, 0], [entry_of(3), entry_of(0)])
        await conversation.stream.send_all(missing + found)
        await trio.sleep_forever()

    async with running(World(takes_batches=True), bookie) as world:
        world.read(5, range(0, 9, 3))
        await world.settle()
        assert world.ends == [(5, Outcome.NO_SUCH_ENTRY)]
        found = world.answers[0].content
        assert isinstance(found, FoundEntries)
        assert found.data == entry_of(0) + entry_of(3)
        assert found.entries == 2


@pytest.mark.parametrize(
    ("status", "outcome", "end"),
    [
        (Status.NO_ENTRY, Outcome.NO_SUCH_ENTRY, Outcome.OK),
        (Status.IO_ERROR, Outcome.IO_ERROR, Outcome.IO_ERROR),
    ],
)
async def test_every_read_of_a_fence_fences_and_is_answered_for_itself(
    status: Status, outcome: Outcome, end: Outcome
) -> None:
    async def bookie(conversation: Conversation) -> None:
        asked = await conversation.requests()
        expected = [
            ReadRequest(
                ledger_id=LEDGER, entry_id=entry_id, fence=True, master_key=KEY, high_priority=True
            )
            for entry_id in (4, 5, 7)
        ]
        assert [item.request for item in asked if isinstance(item, RequestFrame)] == expected
        other = encode_response(ReadResponse(status=status, ledger_id=LEDGER, entry_id=4))
        found = read_answers(LEDGER, [7, 5], [entry_of(7), entry_of(5)])
        await conversation.stream.send_all(found + other)
        await trio.sleep_forever()

    async with running(World(takes_batches=True), bookie) as world:
        world.fence(5, [4, 5, 7])
        await world.settle()
        assert world.ends == [(5, end)]
        assert world.answers[0].content == {
            4: (outcome, b""),
            5: (Outcome.OK, entry_of(5)),
            7: (Outcome.OK, entry_of(7)),
        }


async def test_request_without_an_answer_ends_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(World(takes_batches=False), silent) as world:
        world.add(1, 0, 1)
        world.read(2, range(1))
        await trio.sleep(REQUEST_SECONDS * 3)
        assert world.ends == [(1, Outcome.TIMEOUT), (2, Outcome.TIMEOUT)]


async def test_late_answer_is_not_taken_for_that_of_a_later_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def bookie(conversation: Conversation) -> None:
        await conversation.requests()
        await conversation.requests()
        await conversation.stream.send_all(add_answers(Status.IO_ERROR, LEDGER, [0]))
        await trio.sleep(1)
        await conversation.stream.send_all(add_answers(Status.OK, LEDGER, [0]))
        await trio.sleep_forever()

    async with running(World(takes_batches=False), bookie) as world:
        world.add(1, 0)
        await trio.sleep(REQUEST_SECONDS + 1)
        world.add(2, 0)
        await trio.sleep(2)
        assert world.ends == [(1, Outcome.TIMEOUT), (2, Outcome.OK)]


async def test_connection_that_is_lost_ends_everything_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(World(takes_batches=False), closing) as world:
        world.add(1, 0, 1)
        world.read(2, range(3))
        await trio.sleep(REQUEST_SECONDS * 3)
        assert world.ends == [(1, Outcome.NOT_CONNECTED), (2, Outcome.NOT_CONNECTED)]


async def test_bookie_that_is_away_is_tried_again_after_a_pause(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def bookie(conversation: Conversation) -> None:
        await conversation.requests()
        await conversation.stream.send_all(add_answers(Status.OK, LEDGER, [2]))
        await trio.sleep_forever()

    async with running(World(takes_batches=False), None) as world:
        world.add(1, 0)
        await world.settle()
        assert world.ends == [(1, Outcome.NOT_CONNECTED)]
        assert BOOKIE in world.pool.health.failed_at
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, world, bookie)
            await trio.lowlevel.checkpoint()
            world.add(2, 1)  # too soon: nobody is asked
            assert world.ends[1:] == [(2, Outcome.NOT_CONNECTED)]
            await trio.sleep(1)
            world.add(3, 2)
            await world.settle()
            nursery.cancel_scope.cancel()
        assert world.ends[2:] == [(3, Outcome.OK)]
        assert BOOKIE not in world.pool.health.failed_at


async def test_bookie_that_chokes_on_a_batch_gets_the_entries_one_by_one() -> None:
    seen: list[type] = []

    async def bookie(conversation: Conversation) -> None:
        (item,) = await conversation.requests()
        seen.append(type(item))
        if isinstance(item, AddBatch):
            conversation.stream.close()
            return
        assert isinstance(item, AddRun | AddMix)
        await conversation.stream.send_all(add_answers(Status.OK, LEDGER, item.entry_ids))
        await trio.sleep_forever()

    async with running(World(takes_batches=True), bookie) as world:
        world.add(1, 0, 1)
        await world.settle()
        assert seen == [AddBatch, AddRun]
        assert world.ends == [(1, Outcome.OK)]


async def test_full_connection_says_so_and_drops_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    may_read = trio.Event()
    received: list[int] = []

    async def bookie(conversation: Conversation) -> None:
        await may_read.wait()
        while items := await conversation.requests():
            for item in items:
                assert not isinstance(item, RequestFrame | AddMix | AddBatch)
                received.extend(item.entry_ids)

    async with running(World(takes_batches=False), bookie) as world:
        size = 1 << 20
        count = UNSENT_BYTES_MAX // size + 2
        world.add(0, 0, size=size)
        await world.settle()
        for i in range(1, count):
            world.add(i, i, size=size)
        assert not world.pool.has_room([BOOKIE])
        assert world.ends == []
        may_read.set()
        await world.pool.wait_room([BOOKIE])
        await trio.sleep(1)
        assert received == list(range(count))


async def test_peer_that_takes_no_bytes_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def bookie(conversation: Conversation) -> None:
        await trio.sleep_forever()

    async with running(World(takes_batches=False), bookie) as world:
        world.add(1, 0, size=1 << 20)
        await trio.sleep(STALL_SECONDS - 1)
        assert world.ends == []
        await trio.sleep(2)
        assert world.ends == [(1, Outcome.NOT_CONNECTED)]


async def test_questions_are_matched_by_transaction(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def bookie(conversation: Conversation) -> None:
        frames = FrameBuffer()
        numbers: list[int] = []
        while len(numbers) < 2:
            frames.feed(await conversation.stream.receive_some(1 << 16))
            while (payload := frames.next_frame()) is not None:
                numbers.append(decode_request(payload)[0].transaction_id)
        for number, status in zip(reversed(numbers), (Status.OK, Status.IO_ERROR), strict=True):
            response = ForceResponse(status=status, ledger_id=LEDGER)
            await conversation.stream.send_all(encode_v3(response, transaction_id=number))
        await trio.sleep_forever()

    async with running(World(takes_batches=False), bookie) as world:
        for number in (1, 2):
            message = ForceRequest(ledger_id=LEDGER)
            question = Question(request_id=number, sink=world.take, message=message)
            world.pool.ask(BOOKIE, question)
        await trio.sleep(1)
        assert dict(world.ends) == {1: Outcome.IO_ERROR, 2: Outcome.OK}


async def test_closed_pool_ends_what_it_has_and_what_still_comes() -> None:
    async with running(World(takes_batches=False), silent) as world:
        world.add(1, 0)
        await world.settle()
        world.pool.close()
        world.add(2, 1)
        world.pool.ask(
            BookieId("other"),
            Question(request_id=3, sink=world.take, message=ForceRequest(ledger_id=LEDGER)),
        )
        assert world.ends == [(n, Outcome.CLIENT_CLOSED) for n in (1, 2, 3)]
