"""Copies of single entries: gathered for a bookie, answered one by one, ended together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
import trio

from ledger_client.connection import ALONE_MAX
from ledger_client.copies import BUNDLE_COPIES
from ledger_client.core.adds import Batch as CoreBatch
from ledger_client.core.commands import Outcome
from ledger_client.intake import NO_PAYLOADS, Batch
from ledger_client.requests import REQUEST_SECONDS
from runtime.memory_sockets import MemoryStream
from tests.ledger_client.pool_world import BOOKIE, KEY, LEDGER, Conversation, World, running, silent
from wire.build_v2 import add_answers, add_prefix
from wire.digest import digest_for
from wire.entry import encode_records
from wire.errors import Status
from wire.scan_v2 import AddMix, AddRun, RequestItem, add_key
from wire.types import NO_ENTRY, BookieId, DigestType, LedgerId

Told = list[tuple[int, int, Outcome]]


class Owner:
    """Somebody who sends entries of one ledger in copies, and hears of them."""

    def __init__(self, world: World, told: Told, ledger_id: LedgerId) -> None:
        self.id = ledger_id
        self._line = world.pool.line_to(BOOKIE)
        self._told = told

    def send(self, entry_id: int) -> None:
        frame = encode_records(
            (b"x" * 10,), ledger_id=self.id, first_entry_id=entry_id, lac=-1, length=0,
            digest=digest_for(DigestType.CRC32C), prefix=add_prefix(KEY),
        )  # fmt: skip
        batch = Batch(NO_ENTRY, NO_PAYLOADS)
        batch.copied(CoreBatch(entry_id, entry_id, 10, 0.0), frame, self)
        self._line.add_copy(add_key(self.id, entry_id), batch)

    def on_copy(self, entry: CoreBatch, bookie_id: BookieId) -> None:
        assert bookie_id == BOOKIE
        self._told.append((self.id, entry.first, Outcome.OK))

    def on_copy_failed(self, entry: CoreBatch, bookie_id: BookieId, outcome: Outcome) -> None:
        assert bookie_id == BOOKIE
        self._told.append((self.id, entry.first, outcome))


class Bookie:
    """Notes what it is asked; answers when told to, in any order."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.streams: list[MemoryStream] = []

    async def __call__(self, conversation: Conversation) -> None:
        self.streams.append(conversation.stream)
        with suppress(trio.ClosedResourceError):
            while items := await conversation.requests():
                for item in items:
                    self._note(item)

    def _note(self, item: RequestItem) -> None:
        if isinstance(item, AddRun):
            self.asked += ((item.ledger_id, entry_id) for entry_id in item.entry_ids)
        else:
            assert isinstance(item, AddMix)
            self.asked += zip(item.ledger_ids, item.entry_ids, strict=True)

    async def answer(self, ids: Sequence[tuple[int, int]], status: Status = Status.OK) -> None:
        frames = [add_answers(status, ledger_id, [entry_id]) for ledger_id, entry_id in ids]
        await self.streams[-1].send_all(b"".join(frames))


def owners(world: World, told: Told, count: int) -> list[Owner]:
    return [Owner(world, told, LedgerId(100 + i)) for i in range(count)]


async def test_copies_of_many_ledgers_leave_together_and_are_answered_one_by_one(
    calls: list[int],
) -> None:
    told: Told = []
    bookie = Bookie()
    async with running(World(takes_batches=True), bookie) as world:
        writers = owners(world, told, 100)
        for i in range(ALONE_MAX):
            writers[i].send(0)
            await world.settle()
        before = len(calls)
        for writer in writers[ALONE_MAX:]:
            writer.send(0)
        assert len(calls) == before
        await world.settle()
        assert len(calls) == before + 1
        ids = [(writer.id, 0) for writer in writers]
        assert bookie.asked == ids
        await bookie.answer(ids[::-1])
        await world.settle()
        assert told == [(*key, Outcome.OK) for key in ids[::-1]]
        assert world.pool.pending == {}


async def test_lone_copy_leaves_at_once() -> None:
    told: Told = []
    bookie = Bookie()
    async with running(World(takes_batches=True), bookie) as world:
        (writer,) = owners(world, told, 1)
        for entry_id in range(3):
            writer.send(entry_id)
            await world.settle()
            assert bookie.asked[-1] == (writer.id, entry_id)
            await bookie.answer([(writer.id, entry_id)])
            await world.settle()
            assert told[-1] == (writer.id, entry_id, Outcome.OK)


async def test_full_bundle_does_not_wait_for_the_end_of_the_moment() -> None:
    told: Told = []
    bookie = Bookie()
    async with running(World(takes_batches=True), bookie) as world:
        writers = owners(world, told, BUNDLE_COPIES + ALONE_MAX + 5)
        writers[0].send(0)
        await world.settle()  # until it is connected
        for writer in writers[1:]:
            writer.send(0)
        line = world.pool.line_to(BOOKIE)
        assert line.pending > ALONE_MAX  # the full one is among them, the rest is not sent yet
        await world.settle()
        assert len(bookie.asked) == len(writers)


async def test_error_answers_fail_their_copy_alone() -> None:
    told: Told = []
    bookie = Bookie()
    async with running(World(takes_batches=True), bookie) as world:
        writers = owners(world, told, 3)
        for writer in writers:
            writer.send(0)
        await world.settle()
        await bookie.answer([(100, 0)])
        await bookie.answer([(101, 0)], Status.FENCED)
        await bookie.answer([(102, 0)])
        await world.settle()
        assert told == [(100, 0, Outcome.OK), (101, 0, Outcome.FENCED), (102, 0, Outcome.OK)]
        assert world.pool.pending == {}


async def test_lost_connection_ends_what_has_no_answer_sent_or_not() -> None:
    told: Told = []
    bookie = Bookie()
    async with running(World(takes_batches=True), bookie) as world:
        writers = owners(world, told, 40)
        for writer in writers[:20]:
            writer.send(0)
        await world.settle()
        await bookie.answer([(100, 0)])
        await world.settle()
        for writer in writers[20:]:
            writer.send(0)
        bookie.streams[-1].close()
        await world.settle()
        assert told[0] == (100, 0, Outcome.OK)
        assert sorted(told[1:]) == [(101 + i, 0, Outcome.NOT_CONNECTED) for i in range(39)]
        assert world.pool.line_to(BOOKIE).has_room
        assert world.pool.pending == {}


async def test_copies_of_a_closed_client_end_with_it() -> None:
    told: Told = []
    async with running(World(takes_batches=True), silent) as world:
        writers = owners(world, told, 40)
        for writer in writers[:20]:
            writer.send(0)
        await world.settle()
        for writer in writers[20:]:
            writer.send(0)
        world.pool.close()
        assert sorted(told) == [(100 + i, 0, Outcome.CLIENT_CLOSED) for i in range(40)]
        writers[0].send(1)
        assert told[-1] == (100, 1, Outcome.CLIENT_CLOSED)


async def test_copy_that_was_given_up_keeps_its_place_before_the_same_entry_sent_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Answers name ledger and entry alone: the late one is the copy's, and means nothing."""
    told: Told = []
    bookie = Bookie()
    async with running(World(takes_batches=False), bookie) as world:
        writer = Owner(world, told, LEDGER)
        writer.send(0)
        await trio.sleep(REQUEST_SECONDS + 1)
        assert told == [(LEDGER, 0, Outcome.TIMEOUT)]
        world.add(1, 0)
        await world.settle()
        await bookie.answer([(LEDGER, 0)])
        await world.settle()
        assert world.ends == []
        await bookie.answer([(LEDGER, 0)])
        await world.settle()
        assert world.ends == [(1, Outcome.OK)]
        assert told == [(LEDGER, 0, Outcome.TIMEOUT)]


@pytest.mark.parametrize("is_connected", [False, True])
async def test_answer_to_an_add_sent_before_a_copy_of_the_same_entry_is_not_the_copys(
    is_connected: bool,
) -> None:
    """A recovery by the same client may have added the entry a moment before its writer does."""
    told: Told = []
    bookie = Bookie()
    async with running(World(takes_batches=False), bookie) as world:
        writer = Owner(world, told, LEDGER)
        if is_connected:
            writer.send(9)
            await world.settle()
            await bookie.answer([(LEDGER, 9)])
            await world.settle()
            told.clear()
            bookie.asked.clear()
        world.add(1, 0)
        writer.send(0)
        await world.settle()
        assert bookie.asked == [(LEDGER, 0), (LEDGER, 0)]
        await bookie.answer([(LEDGER, 0)])
        await world.settle()
        assert (world.ends, told) == ([(1, Outcome.OK)], [])
        await bookie.answer([(LEDGER, 0)], Status.FENCED)
        await world.settle()
        assert told == [(LEDGER, 0, Outcome.FENCED)]


async def test_copy_leaves_before_what_is_asked_later_for_its_ledger() -> None:
    told: Told = []
    bookie = Bookie()
    async with running(World(takes_batches=False), bookie) as world:
        others = owners(world, told, ALONE_MAX + 1)
        writer = Owner(world, told, LEDGER)
        for other in others:
            other.send(0)
        await world.settle()
        writer.send(0)  # waits for the end of the moment
        world.add(1, 0)
        await world.settle()
        await bookie.answer([(LEDGER, 0)])
        await world.settle()
        assert (told, world.ends) == ([(LEDGER, 0, Outcome.OK)], [])
        await bookie.answer([(LEDGER, 0)], Status.FENCED)
        await world.settle()
        assert world.ends == [(1, Outcome.FENCED)]
