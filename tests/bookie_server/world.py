"""A bookie on memory files and a memory network, and clients that speak raw frames to it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from bookie.authentication import BookieSecurity, NewAuthenticator
from bookie.bookie import Bookie, BookieOptions
from bookie.storage.engine_values import EngineCallbacks
from bookie.storage.memory_index import MemoryIndexes
from bookie.storage.start import Shell, Store, StoreOptions, open_store
from runtime.files import DiskSpace
from runtime.memory_files import MemoryFileSystem
from runtime.memory_sockets import MemoryHost, MemoryListener, MemoryNetwork, MemoryStream
from runtime.metrics import Registry
from runtime.service import serving
from runtime.workers import InlineWorkers
from tests.bookie.machine import KEY, entry_of, small_options
from wire import codec_v2, codec_v3
from wire.build_v2 import add_requests
from wire.framing import FrameBuffer
from wire.messages import Request, Response

__all__ = ["KEY", "Client", "World", "entry_of", "running"]

PATIENCE_SECONDS = 10.0


class Client:
    """One connection, frame by frame."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self._frames = FrameBuffer()
        self._transaction = 100

    async def send(self, *frames: bytes) -> None:
        for frame in frames:
            await self.stream.send_all(frame)

    async def receive(self) -> bytes | None:
        """The next frame's payload; None if the bookie closed the connection."""
        while (payload := self._frames.next_frame()) is None:
            try:
                with trio.fail_after(PATIENCE_SECONDS):
                    data = await self.stream.receive_some(1 << 16)
            except OSError:
                return None
            if not data:
                return None
            self._frames.feed(data)
        return payload

    async def is_closed(self) -> bool:
        return await self.receive() is None

    async def ask_v2(self, request: Request, *, version: int = 2) -> Response:
        await self.send(codec_v2.encode_request(request, version=version))
        return await self.answer_v2()

    async def answer_v2(self) -> Response:
        payload = await self.receive()
        assert payload is not None, "the bookie closed the connection"
        return codec_v2.decode_response(payload)

    async def send_v3(self, request: Request) -> int:
        self._transaction += 1
        await self.send(codec_v3.encode_request(request, transaction_id=self._transaction))
        return self._transaction

    async def ask_v3(self, request: Request) -> Response:
        transaction = await self.send_v3(request)
        header, response = await self.answer_v3()
        assert header.transaction_id == transaction
        return response

    async def answer_v3(self) -> tuple[codec_v3.Header, Response]:
        payload = await self.receive()
        assert payload is not None, "the bookie closed the connection"
        return codec_v3.decode_response(payload)

    async def add_v2(self, ledger_id: int, *entry_ids: int, lac: int = -1, flags: int = 0) -> None:
        """Send adds; their answers are left to be read."""
        entries = [entry_of(ledger_id, entry_id, b"payload", lac) for entry_id in entry_ids]
        await self.send(add_requests(entries, master_key=KEY, flags=flags))

    def close(self) -> None:
        self.stream.close()


class World:
    def __init__(
        self,
        host: MemoryHost,
        bookie: Bookie,
        store: Store,
        workers: InlineWorkers,
        registry: Registry,
    ) -> None:
        self.host = host
        self.registry = registry
        self.bookie = bookie
        self.store = store
        self.workers = workers
        self.port = 0

    async def connect(self) -> Client:
        stream = await self.host.connect("bookie", self.port)
        return Client(stream)


class Full:
    """Makes the engine say that it is full, for as long as a test wants."""

    def __init__(self, world: World) -> None:
        self.is_full = True
        self._world = world
        world.bookie.gate._is_full = lambda: self.is_full

    def end(self) -> None:
        self.is_full = False
        self._world.bookie.gate.admit_next()


@asynccontextmanager
async def running(
    *,
    options: BookieOptions | None = None,
    store_options: StoreOptions | None = None,
    buffer_bytes: int = 64 * 1024,
    new_authenticator: NewAuthenticator = None,
    security: BookieSecurity | None = None,
    run_workers: bool = True,
) -> AsyncIterator[World]:
    """A bookie that serves, without metadata, until the block ends."""
    chance = random.Random(7)
    workers = InlineWorkers()
    shell = Shell(
        files=MemoryFileSystem(),
        open_index=MemoryIndexes().open,
        workers=workers,
        clock=trio.current_time,
        sleep=lambda seconds: None,
        new_store_id=lambda: chance.randbytes(16),
    )
    registry = Registry()
    bookie = Bookie(
        options or BookieOptions(),
        registry,
        spaces=lambda: {"/disk/ledgers": DiskSpace(1 << 40, 1 << 39)},
        clock=trio.current_time,
        security=security or BookieSecurity(new_authenticator=new_authenticator),
    )
    store = open_store(
        ["/disk/journal"],
        ["/disk/ledgers"],
        shell,
        store_options or small_options(),
        EngineCallbacks(
            on_durable=bookie.on_durable,
            on_news=bookie.on_news,
            on_journal_write=bookie.metrics.journal_wrote,
            on_checkpoint=bookie.on_checkpoint,
        ),
        on_journal_failure=_fail,
    )
    bookie.open(store.engine)
    network = MemoryNetwork(buffer_bytes=buffer_bytes)
    listener: MemoryListener = await network.host("bookie").listen("bookie", 0)
    world = World(network.host("client"), bookie, store, workers, registry)
    world.port = listener.port
    async with trio.open_nursery() as nursery:
        if run_workers:
            nursery.start_soon(workers.run)
        nursery.start_soon(bookie.polls.run)
        async with serving(bookie.serve, listener, grace_seconds=0):
            yield world
            bookie.stop_serving()
        nursery.cancel_scope.cancel()


def _fail(error: Exception) -> None:
    raise error
