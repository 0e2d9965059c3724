"""Where the services are tested: on the store of memory, and their core on a real ZooKeeper.

A test that asks for `place` runs on both. Each run has a root of its own.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from metadata.memory import MemoryMetadata
from metadata.store import MetadataStore, NoNodeError
from metadata.zookeeper_store import ZookeeperStore
from tests.support.zookeeper import expire, fresh_root_path, opened_store


@dataclass
class Place:
    """A tree that several sessions share. `memory` is None on a real ZooKeeper."""

    root: str
    memory: MemoryMetadata | None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[MetadataStore]:
        """A session of its own, as of another process."""
        if self.memory is None:
            async with opened_store() as store:
                yield store
        else:
            store_of_memory = self.memory.connect()
            try:
                yield store_of_memory
            finally:
                await store_of_memory.close()

    async def expire(self, store: MetadataStore) -> None:
        """End the session of `store` as the server would."""
        if isinstance(store, ZookeeperStore):
            await expire(store)
        else:
            assert self.memory is not None
            assert store.session is not None
            self.memory.expire(store.session)


@pytest.fixture(params=["memory", "zookeeper"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "memory":
        return Place("/ledgers", MemoryMetadata())
    return Place(fresh_root_path(), None)


@pytest.fixture
def chance() -> random.Random:
    return random.Random(20)


async def dump(store: MetadataStore, path: str) -> dict[str, bytes]:
    """Every node from `path` down, with its data."""
    try:
        found = {path: (await store.get(path)).data}
        names, _ = await store.children(path)
    except NoNodeError:
        return {}
    for name in names:
        found |= await dump(store, f"/{name}" if path == "/" else f"{path}/{name}")
    return found


def planted(metadata: MemoryMetadata, paths: Iterable[str], data: bytes = b"") -> None:
    """Put nodes, with all their parents, into a store of memory."""
    for path in paths:
        so_far = ""
        for name in path.split("/")[1:]:
            so_far += f"/{name}"
            if metadata.tree.find(so_far) is None:
                metadata.tree.create(so_far, data if so_far == path else b"")
    metadata.publish()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another task brings about."""
    for _ in range(20_000):
        if condition():
            return
        await trio.sleep(0.01)
    raise AssertionError("what was waited for did not happen")
