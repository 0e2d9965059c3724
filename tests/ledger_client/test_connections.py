"""Moves, silence, bounds and protocols: what a connection makes of a bookie that changes."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence

import pytest
import trio
import trio.lowlevel
import trio.testing

from ledger_client.connection import HELD_ADDS_MAX, HELD_BYTES_MAX, SILENCE_SECONDS
from ledger_client.core.commands import Outcome
from ledger_client.pool import Pool
from ledger_client.requests import REQUEST_SECONDS, Adds, Answer, FoundEntries, Question
from metadata.update import Backoff
from runtime.sockets import ByteStream, Listener, WaitingStream
from runtime.tls_stream import TlsBrokenError
from tests.ledger_client.pool_world import (
    BOOKIE,
    KEY,
    LEDGER,
    Conversation,
    World,
    entry_of,
    running,
    serve,
    silent,
)
from wire.batch import join_records
from wire.build_v2 import add_answers, read_answers
from wire.build_v3 import add_answers as add_answers_v3
from wire.codec_v2 import RequestFrame, encode_response
from wire.codec_v3 import decode_request
from wire.codec_v3 import encode_response as encode_v3
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceRequest,
    ForceResponse,
)
from wire.scan_v2 import ReadRun, RequestItem
from wire.types import BookieId, Flag


async def acknowledging(conversation: Conversation) -> None:
    while items := await conversation.requests():
        for item in items:
            assert not isinstance(item, RequestFrame)
            await conversation.stream.send_all(
                add_answers(Status.OK, LEDGER, item.entry_ids)  # type: ignore[union-attr]
            )


# ---------------------------------------------------------------------- moves


async def test_bookie_that_moved_is_found_at_its_new_address(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The old address swallows everything in silence, as that of a dead pod does."""
    async with (
        running(World(takes_batches=False), silent) as world,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve, world, acknowledging, "elsewhere")
        world.add(1, 0)
        await trio.sleep(1)
        world.register("elsewhere")
        await world.settle()
        assert world.ends == [(1, Outcome.NOT_CONNECTED)], "at once, not after a timeout"
        world.add(2, 1)
        await world.settle()
        assert world.ends[1:] == [(2, Outcome.OK)]
        nursery.cancel_scope.cancel()


async def test_bookie_that_registers_the_same_address_keeps_its_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(World(takes_batches=False), acknowledging) as world:
        world.add(1, 0)
        await trio.sleep(1)
        world.register(None)
        world.register("bookie")
        world.add(2, 1)
        await trio.sleep(1)
        assert world.ends == [(1, Outcome.OK), (2, Outcome.OK)]


async def test_bookie_that_registers_anew_is_tried_without_a_pause(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(World(takes_batches=False), None) as world:
        for number in range(20):  # each failure makes the pause longer
            world.add(number, number)
            await trio.sleep(10)
        world.add(100, 100)
        await world.settle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, world, acknowledging)
            await trio.lowlevel.checkpoint()
            world.register(None)
            world.register("bookie")
            assert BOOKIE not in world.pool.health.failed_at
            world.add(101, 101)
            await world.settle()
            assert world.ends[-1] == (101, Outcome.OK)
            nursery.cancel_scope.cancel()


async def test_silent_connection_is_given_up_and_made_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A peer whose host was cut off answers nothing and closes nothing."""
    seen: list[int] = []

    async def silent_at_first(conversation: Conversation) -> None:
        seen.append(len(seen))
        await (silent if len(seen) == 1 else acknowledging)(conversation)

    async with running(World(takes_batches=False), silent_at_first) as world:
        world.add(1, 0)
        await trio.sleep(REQUEST_SECONDS + 1)
        world.add(2, 1)
        await trio.sleep(SILENCE_SECONDS)
        assert world.ends == [(1, Outcome.TIMEOUT), (2, Outcome.NOT_CONNECTED)]
        world.add(3, 2)
        await trio.sleep(1)
        assert world.ends[2:] == [(3, Outcome.OK)]


class _ClosedBehindARefusal(WaitingStream):
    """Nothing can be sent, and what the bookie said before it closed is still to be read."""

    peer = "bookie:3181"

    def __init__(self) -> None:
        self._closed = trio.Event()

    def receive_now(self, size: int) -> bytes | None:
        if self._closed.is_set():
            raise trio.ClosedResourceError
        raise TlsBrokenError("it requires a certificate of ours")

    async def wait_readable(self) -> None:
        await self._closed.wait()

    def send_now(self, data: bytes | memoryview) -> int:
        raise BrokenPipeError

    def send_pieces_now(self, pieces: Sequence[bytes | memoryview]) -> int:
        raise BrokenPipeError

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def end_sending(self) -> None:
        raise BrokenPipeError

    def close(self, *, reset: bool = False) -> None:
        self._closed.set()


class _RefusingNetwork:
    async def connect(self, host: str, port: int) -> ByteStream:
        return _ClosedBehindARefusal()

    async def listen(self, host: str, port: int) -> Listener:
        raise AssertionError("clients listen nowhere")


@pytest.mark.parametrize("can_wait", [False, True], ids=["sent at once", "sent by the writer"])
async def test_what_a_bookie_said_before_it_closed_is_heard_though_sending_fails_first(
    can_wait: bool,
) -> None:
    world = World(takes_batches=False)
    world.pool = Pool(lambda: world.bookies, network=_RefusingNetwork(), chance=random.Random(1))
    async with running(world, None):
        world.add(1, 0, can_wait=can_wait)
        await world.settle()
        assert world.ends == [(1, Outcome.NOT_CONNECTED)]
        assert world.pool.known.refusals == {BOOKIE: "it requires a certificate of ours"}


def test_pauses_between_connects_grow_to_a_bound_and_differ_between_clients() -> None:
    backoff = Backoff(first_seconds=0.1, seconds_max=10.0)
    pauses = [
        [backoff.seconds(n, chance) for n in range(1, 20)]
        for chance in map(random.Random, range(2))
    ]
    assert pauses[0] != pauses[1]
    for row in pauses:
        assert all(0.05 <= pause <= 10.0 for pause in row)
        assert row[8] > row[0]


# ---------------------------------------------------------------------- bounds


async def test_bytes_without_an_answer_are_bounded_over_all_ledgers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A bookie that takes everything and answers nothing does not fill our memory."""
    may_answer = trio.Event()

    async def bookie(conversation: Conversation) -> None:
        received: list[int] = []

        async def answer() -> None:
            await may_answer.wait()
            await conversation.stream.send_all(add_answers(Status.OK, LEDGER, received))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            while items := await conversation.requests():
                for item in items:
                    received.extend(item.entry_ids)  # type: ignore[union-attr]

    async with running(World(takes_batches=False), bookie) as world:
        sent = 0
        while world.pool.has_room([BOOKIE]):
            world.add(sent, sent, size=4 << 20)
            sent += 1
            await world.settle()
        assert sent == HELD_BYTES_MAX // (4 << 20)
        may_answer.set()
        with trio.fail_after(60):
            await world.pool.wait_room([BOOKIE])
        await world.settle()
        assert len(world.ends) == sent


@pytest.mark.parametrize("takes_batches", [False, True])
async def test_adds_without_an_answer_are_bounded_where_each_is_a_request(
    takes_batches: bool,
) -> None:
    """Apache's bookies have a queue of 10,000 adds; the rest would be refused, or forgotten."""

    may_answer = trio.Event()

    async def bookie(conversation: Conversation) -> None:
        while items := await conversation.requests():
            await may_answer.wait()
            for item in items:
                await conversation.stream.send_all(
                    add_answers(Status.OK, LEDGER, item.entry_ids)  # type: ignore[union-attr]
                )

    async with running(World(takes_batches=takes_batches), bookie) as world:
        for first in range(0, HELD_ADDS_MAX, 500):
            assert world.pool.has_room([BOOKIE])
            world.add(first, *range(first, first + 500), size=1)
            await world.settle()
        assert world.pool.has_room([BOOKIE]) is takes_batches
        if not takes_batches:
            may_answer.set()
            with trio.fail_after(60):
                await world.pool.wait_room([BOOKIE])


# ---------------------------------------------------------------------- batch reads


def batch_read_in(items: list[RequestItem]) -> BatchReadRequest | None:
    (item,) = items
    if isinstance(item, RequestFrame) and isinstance(item.request, BatchReadRequest):
        return item.request
    return None


async def test_batch_read_is_tried_on_a_bookie_that_announces_nothing() -> None:
    async def bookie(conversation: Conversation) -> None:
        request = batch_read_in(await conversation.requests())
        assert request is not None
        assert (request.first_entry_id, request.count_max) == (0, 3)
        answer = BatchReadResponse(
            status=Status.OK, request_id=request.request_id, ledger_id=LEDGER, first_entry_id=0,
            entries=(entry_of(0), entry_of(1)),
        )  # fmt: skip
        await conversation.stream.send_all(encode_response(answer))
        await trio.sleep_forever()

    async with running(World(takes_batches=False), bookie) as world:
        world.read(5, range(3))
        await world.settle()
        (answer,) = world.answers
        assert isinstance(answer.content, FoundEntries)
        assert (answer.outcome, answer.content.entries) == (Outcome.OK, 2)


async def test_bookie_that_chokes_on_a_batch_read_is_asked_entry_by_entry() -> None:
    """What else was on its way goes again, too: it is not the bookie that failed."""
    connections = 0

    async def bookie(conversation: Conversation) -> None:
        nonlocal connections
        connections += 1
        while items := await conversation.requests():
            for item in items:
                if isinstance(item, RequestFrame):
                    conversation.stream.close()
                    return
                entry_ids = item.entry_ids  # type: ignore[union-attr]
                answers = add_answers(Status.OK, LEDGER, entry_ids)
                if isinstance(item, ReadRun):
                    answers = read_answers(LEDGER, entry_ids, [entry_of(e) for e in entry_ids])
                await conversation.stream.send_all(answers)

    async with running(World(takes_batches=False), bookie) as world:
        world.read(1, range(3))
        await world.settle()
        assert (connections, world.ends) == (2, [(1, Outcome.OK)])
        world.read(2, range(3, 6))
        world.add(3, 9)
        await world.settle()
        assert (connections, world.ends[1:]) == (2, [(2, Outcome.OK), (3, Outcome.OK)])


# ---------------------------------------------------------------------- v3


class Lost:
    def __init__(self) -> None:
        self.bookies: list[BookieId] = []

    def on_connection_lost(self, bookie_id: BookieId) -> None:
        self.bookies.append(bookie_id)


async def test_unsynced_entries_and_their_force_share_a_connection() -> None:
    """They are answered by the entry, and the loss of the connection is told before its ends."""
    seen: list[object] = []
    may_close = trio.Event()

    async def bookie(conversation: Conversation) -> None:
        frames = FrameBuffer()
        while len(seen) < 4:
            frames.feed(await conversation.stream.receive_some(1 << 16))
            while (payload := frames.next_frame()) is not None:
                header, request = decode_request(payload)
                seen.append(request)
                number = header.transaction_id
                if isinstance(request, AddRequest):
                    assert request.deferred_sync
                    data = add_answers_v3([(number, LEDGER, request.entry_id)])
                    if request.entry_id == 2:
                        refusal = AddResponse(status=Status.IO_ERROR, ledger_id=LEDGER, entry_id=2)
                        data = encode_v3(refusal, transaction_id=number)
                    await conversation.stream.send_all(data)
                else:
                    response = ForceResponse(status=Status.OK, ledger_id=LEDGER)
                    await conversation.stream.send_all(encode_v3(response, transaction_id=number))
        await may_close.wait()
        conversation.stream.close()
        await trio.sleep_forever()

    async with running(World(takes_batches=True), bookie) as world:
        lost = Lost()
        world.pool.listen(lost)
        world.add(1, 0, 1, flags=Flag.DEFERRED_SYNC)
        await world.settle()
        world.add(2, 2, flags=Flag.DEFERRED_SYNC)
        await world.settle()
        force = ForceRequest(ledger_id=LEDGER)
        world.pool.ask(BOOKIE, Question(request_id=3, sink=world.take, message=force))
        await world.settle()
        acknowledged = [a.content for a in world.answers if a.request_id == 1]
        assert [e for part in acknowledged for e in part] == [0, 1]  # type: ignore[attr-defined]
        assert world.ends[-2:] == [(2, Outcome.IO_ERROR), (3, Outcome.OK)]
        assert lost.bookies == []
        may_close.set()
        await world.settle()
        assert lost.bookies == [BOOKIE]


# ---------------------------------------------------------------------- quarantine


async def test_bookie_with_too_many_errors_is_quarantined_until_it_restarts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def failing(conversation: Conversation) -> None:
        while items := await conversation.requests():
            for item in items:
                answers = add_answers(Status.IO_ERROR, LEDGER, item.entry_ids)  # type: ignore[union-attr]
                await conversation.stream.send_all(answers)

    async with running(World(takes_batches=False), failing) as world:
        for number in range(100):
            now = trio.current_time()
            assert BOOKIE not in world.pool.known.quarantined(now)
            world.add(number, number)
            await world.settle()
        assert BOOKIE in world.pool.known.quarantined(trio.current_time())
        world.register(None)
        world.register("bookie")
        assert BOOKIE not in world.pool.known.quarantined(trio.current_time())


async def test_answered_requests_are_not_kept_by_the_connection_that_they_waited_for() -> None:
    class Owner:
        answers = 0

        def take(self, answers: list[Answer]) -> None:
            self.answers += len(answers)

    async with running(World(takes_batches=False), acknowledging) as world:
        owner = Owner()
        request = Adds(
            request_id=1, sink=owner.take, ledger_id=LEDGER, entry_ids=[0],
            records=join_records([entry_of(0)]), master_key=KEY,
        )  # fmt: skip
        world.pool.ask(BOOKIE, request)
        await world.settle()
        assert owner.answers == 1
        seen = weakref.ref(owner)
        del owner, request
        gc.collect()
        assert seen() is None
