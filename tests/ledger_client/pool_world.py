"""A pool of connections and one bookie that answers as a test tells it to, all in memory."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from ledger_client.core.commands import Outcome
from ledger_client.pool import Pool
from ledger_client.requests import Adds, Answer, FenceReads, Reads
from metadata.discovery import Bookies
from metadata.service_info import ADD_BATCH_PROPERTY, bookie_service_info
from runtime.memory_sockets import MemoryNetwork, MemoryStream
from wire.batch import join_records
from wire.digest import digest_for, master_key
from wire.entry import encode_entry
from wire.framing import FrameBuffer
from wire.scan_v2 import RequestItem, scan_requests
from wire.types import BookieId, DigestType, LedgerId

BOOKIE = BookieId("b1")
PORT = 3181
LEDGER = LedgerId(7)
KEY = master_key(b"")


def entry_of(entry_id: int, size: int = 10) -> bytes:
    digest = digest_for(DigestType.CRC32C)
    return encode_entry(
        b"x" * size, ledger_id=LEDGER, entry_id=entry_id, lac=-1, length=size, digest=digest
    )


class World:
    """A pool, one bookie, and everything that came of the requests."""

    def __init__(self, *, takes_batches: bool) -> None:
        self.network = MemoryNetwork()
        self.answers: list[Answer] = []
        self.calls = 0
        self._properties = {ADD_BATCH_PROPERTY: "1"} if takes_batches else {}
        self.bookies = self._registered_at("bookie")
        self.pool = Pool(
            lambda: self.bookies, network=self.network.host("client"), chance=random.Random(1)
        )

    def _registered_at(self, host: str) -> Bookies:
        info = bookie_service_info(host=host, port=PORT, properties=self._properties)
        return Bookies(frozenset({BOOKIE}), frozenset(), {BOOKIE: info})

    def register(self, host: str | None) -> None:
        """The bookie is at this host from now on; None: it is not registered any more."""
        before = self.bookies
        self.bookies = Bookies() if host is None else self._registered_at(host)
        self.pool.on_bookies(before, self.bookies)

    def take(self, answers: list[Answer]) -> None:
        self.calls += 1
        self.answers += answers

    def add(
        self,
        request_id: int,
        *entry_ids: int,
        size: int = 10,
        flags: int = 0,
        can_wait: bool = False,
    ) -> None:
        records = join_records([entry_of(entry_id, size) for entry_id in entry_ids])
        request = Adds(
            request_id=request_id, sink=self.take, ledger_id=LEDGER, entry_ids=entry_ids,
            records=records, master_key=KEY, flags=flags, can_wait=can_wait,
        )  # fmt: skip
        self.pool.ask(BOOKIE, request)

    def read(self, request_id: int, entry_ids: range) -> None:
        request = Reads(
            request_id=request_id, sink=self.take, ledger_id=LEDGER, entry_ids=entry_ids,
            bytes_max=1 << 20,
        )  # fmt: skip
        self.pool.ask(BOOKIE, request)

    def fence(self, request_id: int, entry_ids: Sequence[int]) -> None:
        request = FenceReads(
            request_id=request_id, sink=self.take, ledger_id=LEDGER, entry_ids=entry_ids,
            master_key=KEY,
        )  # fmt: skip
        self.pool.ask(BOOKIE, request)

    @property
    def ends(self) -> list[tuple[int, Outcome]]:
        return [(answer.request_id, answer.outcome) for answer in self.answers]

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()


class Conversation:
    """The bookie's end of one connection."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self._frames = FrameBuffer()

    async def requests(self) -> list[RequestItem]:
        """What has arrived, at least one request."""
        while True:
            found = list(scan_requests(self._frames))
            if found:
                return found
            data = await self.stream.receive_some(1 << 20)
            if not data:
                return []
            self._frames.feed(data)


Bookie = Callable[[Conversation], Awaitable[None]]


@asynccontextmanager
async def running(world: World, bookie: Bookie | None) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        await nursery.start(world.pool.run)
        if bookie is not None:
            nursery.start_soon(serve, world, bookie)
        await world.settle()
        yield world
        nursery.cancel_scope.cancel()


async def serve(world: World, bookie: Bookie, host: str = "bookie") -> None:
    listener = await world.network.host(host).listen(host, PORT)
    while True:
        await bookie(Conversation(await listener.accept()))


async def silent(conversation: Conversation) -> None:
    while await conversation.requests():
        pass


async def closing(conversation: Conversation) -> None:
    await conversation.requests()
    conversation.stream.close()
