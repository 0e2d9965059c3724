"""A whole bookie in memory: files, index, network and metadata that outlive it, restart after
restart."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import trio

from bookie.config import BookieConfig
from bookie.identity import Resolver
from bookie.lifetimes import BookieSettings, BookieShell
from bookie.server import Extension, Preparation, RunningBookie, run_bookie
from bookie.storage.memory_index import MemoryIndexes
from bookie.storage.start import Shell
from bookie.storage_config import StorageConfig, UpkeepConfig
from metadata.cluster import init_new_cluster
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.paths import ClusterPaths
from metadata.uri import parse_metadata_uri
from runtime.memory_files import MemoryFileSystem
from runtime.memory_sockets import MemoryNetwork
from runtime.service import Readiness
from runtime.workers import InlineWorkers
from tests.bookie_server.world import Client
from wire.types import BookieId

URI = parse_metadata_uri("zk://metadata/ledgers")
BOOKIE_ID = BookieId("10.0.0.5:3181")


class FixedResolver(Resolver):
    """A machine called `bookie`, at 10.0.0.5, whose memory network knows it by address."""

    def host_name(self) -> str:
        return "bookie.example"

    def address(self, host: str) -> str:
        return "127.0.0.1" if host == "localhost" else "10.0.0.5"


class Site:
    """What stays when a bookie stops: disks, the network, the metadata store."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.indexes = MemoryIndexes()
        self.network = MemoryNetwork()
        self.metadata = MemoryMetadata()
        self.chance = random.Random(3)
        self.paths = ClusterPaths(URI.root)
        self.store: MemoryStore | None = None  # of the running bookie
        self.running: RunningBookie | None = None
        self.stop = trio.Event()
        self.ended: Exception | None = None
        self.boot_id = ""
        self.ends_sessions = True  # when a bookie ends; a kill would not
        self.registration = self.paths.registration(BOOKIE_ID, readonly=False)

    async def initialise(self) -> None:
        await init_new_cluster(self.metadata.connect(), URI, chance=self.chance)

    def settings(self, **changes: object) -> BookieSettings:
        storage = StorageConfig(
            journal_directories=("/disk/journal",),
            ledger_directories=("/disk/ledgers",),
            journal_file_mib=1,
            write_cache_mib=8,
            read_cache_mib=4,
        )
        upkeep = UpkeepConfig(reserve_mib=0)
        return BookieSettings(
            bookie=BookieConfig(**changes),  # type: ignore[arg-type]
            storage=storage,
            upkeep=upkeep,
            metadata_uri=URI,
        )

    def shell(self) -> BookieShell:
        return BookieShell(
            storage=Shell(
                files=self.files,
                open_index=self.indexes.open,
                workers=InlineWorkers(),
                clock=trio.current_time,
                now_ms=lambda: int(trio.current_time() * 1000),
                sleep=lambda seconds: None,
                new_store_id=lambda: self.chance.randbytes(16),
                boot_id=self.boot_id,
            ),
            network=self.network.host("0.0.0.0"),
            open_metadata=self._open_metadata,
            chance=self.chance,
            resolver=FixedResolver(),
            in_thread=False,
        )

    @asynccontextmanager
    async def _open_metadata(self) -> AsyncIterator[MemoryStore]:
        self.store = self.metadata.connect()
        try:
            yield self.store
        finally:
            if self.ends_sessions:
                with trio.CancelScope(shield=True):
                    await self.store.close()

    @asynccontextmanager
    async def serving(
        self,
        *,
        extensions: Sequence[Extension] = (),
        prepare: Preparation | None = None,
        **changes: object,
    ) -> AsyncIterator[RunningBookie]:
        """A bookie that runs until the block ends, and then stops properly."""
        self.stop = trio.Event()
        ready = trio.Event()

        @asynccontextmanager
        async def keep(running: RunningBookie) -> AsyncIterator[None]:
            self.running = running
            yield

        async def run() -> None:
            try:
                await run_bookie(
                    self.settings(**changes),
                    self.shell(),
                    self.stop,
                    readiness=Readiness(callback=ready.set),
                    extensions=[keep, *extensions],
                    prepare=prepare,
                )
            except Exception as error:
                self.ended = error
                ready.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await ready.wait()
            if self.ended is not None:
                raise self.ended
            assert self.running is not None
            yield self.running
            self.stop.set()

    async def refusal(self, **changes: object) -> Exception:
        """Why a bookie with these settings does not start."""
        stop = trio.Event()
        stop.set()
        try:
            await run_bookie(self.settings(**changes), self.shell(), stop)
        except Exception as error:
            return error
        raise AssertionError("it did start")

    async def connect(self) -> Client:
        assert self.running is not None
        stream = await self.network.host("client").connect("0.0.0.0", self.running.port)
        return Client(stream)

    async def is_listed(self, *, readonly: bool = False, bookie_id: BookieId = BOOKIE_ID) -> bool:
        store = self.metadata.connect()
        with suppress(LookupError):
            return (
                await store.exists(self.paths.registration(bookie_id, readonly=readonly))
                is not None
            )
        return False
