"""The session of a killed life: ended by the next life of the same directories, by nobody else."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bookie.last_session import SESSION_NAME, LastSession
from metadata.memory import MemoryMetadata, MemoryStore
from runtime.memory_files import MemoryFileSystem
from tests.bookie_server.service import Site

DIRECTORY = "/disk/ledgers"
NODE = "/available"


class Machine:
    """A disk and a metadata store that outlive a bookie."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        for path in (DIRECTORY, "/disk/copy"):
            self.files.make_directories(f"{path}/current")
        self.metadata = MemoryMetadata()

    def last(self, directory: str = DIRECTORY, boot_id: str = "boot-1") -> LastSession:
        return LastSession(self.files, directory, boot_id)

    async def killed_bookie(self) -> MemoryStore:
        """Its node is there, and nothing but its session can take it away."""
        store = self.metadata.connect()
        await store.create(NODE, ephemeral=True)
        self.last().write(store.ticket)
        return store

    async def is_listed(self) -> bool:
        return await self.metadata.connect().exists(NODE) is not None


async def test_next_life_ends_the_session_of_the_killed_one() -> None:
    machine = Machine()
    await machine.killed_bookie()
    await machine.last().end(machine.metadata.connect())
    assert not await machine.is_listed()


@pytest.mark.parametrize(
    ("directory", "boot_id"),
    [(DIRECTORY, "boot-2"), (DIRECTORY, ""), ("/disk/copy", "boot-1")],
    ids=["after a boot", "boot unknown", "copied directory"],
)
async def test_session_is_left_alone_where_its_owner_may_live(directory: str, boot_id: str) -> None:
    machine = Machine()
    store = await machine.killed_bookie()
    machine.last("/disk/copy").write(store.ticket)
    copied = machine.files.open(f"{DIRECTORY}/current/{SESSION_NAME}", read_only=True).read(999, 0)
    file = machine.files.open(f"/disk/copy/current/{SESSION_NAME}")
    file.truncate(0)
    file.write(copied, 0)
    await machine.last(directory, boot_id).end(machine.metadata.connect())
    assert await machine.is_listed()


async def test_session_that_cannot_be_ended_does_not_stop_the_start() -> None:
    machine = Machine()
    await machine.killed_bookie()
    store = machine.metadata.connect()
    machine.metadata.available = False
    await machine.last().end(store)
    machine.metadata.available = True
    assert await machine.is_listed()


async def test_file_that_is_missing_or_torn_means_nothing() -> None:
    machine = Machine()
    store = machine.metadata.connect()
    await machine.last().end(store)
    for text in (b"", b"boot-1", b"boot-1 /disk/ledgers ", b"\xff\xfe"):
        file = machine.files.open(
            f"{DIRECTORY}/current/{SESSION_NAME}",
            create=not machine.files.exists(f"{DIRECTORY}/current/{SESSION_NAME}"),
        )
        file.truncate(0)
        file.write(text, 0)
        await machine.last().end(store)
    assert store.session is not None


async def test_file_follows_the_session(autojump_clock: trio.testing.MockClock) -> None:
    """After an expiry it names the new session, which is the one that a kill would leave."""
    site = Site()
    site.boot_id = "boot-1"
    await site.initialise()
    async with site.serving():
        assert site.store is not None
        first = site.store.session
        assert first is not None
        site.metadata.expire(first)
        await trio.sleep(5)
        assert site.store.session not in (None, first)
        heir = site.metadata.connect()
        await LastSession(site.files, DIRECTORY, "boot-1").end(heir)
        assert not await site.is_listed()
        await trio.sleep(5)
        assert await site.is_listed(), "a bookie that lives on takes its place again"


async def test_start_waits_for_nobody_when_the_last_life_was_killed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = Site()
    site.boot_id = "boot-1"
    site.ends_sessions = False  # as a kill does
    await site.initialise()
    async with site.serving():
        pass
    before = trio.current_time()
    store = site.store
    assert store is not None
    await store.create(site.registration, ephemeral=True)
    async with site.serving():
        assert await site.is_listed()
        assert trio.current_time() == before
