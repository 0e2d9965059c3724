"""The store on a real ZooKeeper: the suite, and what only a real server can show."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from metadata.access import ZookeeperAccess
from metadata.store import (
    MetadataStore,
    NotAuthorizedError,
    StoreUnavailableError,
    WatchEvent,
)
from metadata.zookeeper_store import ZookeeperStore
from runtime.config import ConfigError
from tests.metadata.store_session_suite import StoreSuite
from tests.metadata.store_suite import World, fired
from tests.support.zookeeper import expire, fresh_root, opened_store, shared_zookeeper


class RealWorld(World):
    def connected(self) -> AbstractAsyncContextManager[MetadataStore]:
        return opened_store()

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, ZookeeperStore)
        await expire(store)


class TestZookeeperStore(StoreSuite):
    def world(self) -> World:
        return RealWorld()


async def test_private_nodes_are_for_one_user_except_the_open_ones() -> None:
    async with opened_store(credentials="quire:secret", private=True) as ours:
        root = await fresh_root(ours)
        await ours.create(f"{root}/private/child", b"x", parents=True)
        await ours.create(f"{root}/open", b"x", open_acl=True)
        async with opened_store(credentials="quire:secret") as same:
            assert (await same.get(f"{root}/private/child")).data == b"x"
        for credentials in (None, "quire:wrong"):
            async with opened_store(credentials=credentials) as other:
                assert (await other.get(f"{root}/open")).data == b"x"
                for path in (f"{root}/private", f"{root}/private/child"):
                    with pytest.raises(NotAuthorizedError, match="credentials"):
                        await other.get(path)
                with pytest.raises(NotAuthorizedError):
                    await other.create(f"{root}/private/a")


async def test_a_new_session_has_the_credentials_too() -> None:
    async with opened_store(credentials="quire:secret", private=True) as store:
        root = await fresh_root(store)
        await store.create(f"{root}/private", b"x")
        session = await store.require_session()
        await expire(store)
        await store.wait_session_lost(session)
        assert (await store.get(f"{root}/private")).data == b"x"


async def test_chance_in_a_session_is_not_drawn_from_the_generator_that_all_share() -> None:
    """Nobody may draw in the middle of an example of hypothesis: that makes it fail."""
    before = random.getstate()
    async with opened_store() as store:
        await store.exists("/")  # connecting and every wait for an answer draw once
    assert random.getstate() == before


async def test_private_nodes_need_credentials() -> None:
    async with opened_store(private=True) as store:
        root = await fresh_root(store)
        with pytest.raises(NotAuthorizedError, match="needs credentials"):
            await store.create(f"{root}/a")


def test_credentials_are_refused_unless_they_are_user_and_password() -> None:
    with pytest.raises(ConfigError, match="belong together"):
        ZookeeperAccess(scheme="digest", user="quire")


async def test_an_address_where_nobody_listens_is_named() -> None:
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1 within 0.5 s .*refused"):
        await ZookeeperStore.connect("127.0.0.1:1", timeout_seconds=0.5)


async def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(StoreUnavailableError, match=r"nowhere\.invalid:2181 .*resolved"):
        await ZookeeperStore.connect("nowhere.invalid:2181", timeout_seconds=0.5)


@asynccontextmanager
async def something_else(greeting: bytes) -> AsyncIterator[str]:
    """A server that takes connections, says its piece, and is no ZooKeeper."""

    async def serve(stream: trio.SocketStream) -> None:
        try:
            await stream.receive_some()
            await stream.send_all(greeting)
            await stream.receive_some()
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield "{}:{}".format(*listeners[0].socket.getsockname())
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0", b"x"])
async def test_a_server_that_is_no_zookeeper_is_named(
    greeting: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with something_else(greeting) as address:
        with pytest.raises(StoreUnavailableError, match=f"{address} takes connections, but"):
            await ZookeeperStore.connect(address, session_seconds=1.0, timeout_seconds=1.0)
    caplog.clear()


async def test_nothing_is_left_behind_after_close(caplog: pytest.LogCaptureFixture) -> None:
    shared_zookeeper()
    caplog.set_level(logging.INFO)
    before = set(threading.enumerate())
    async with opened_store() as store:
        session = await store.require_session()
        await expire(store)
        await store.wait_session_lost(session)
        await store.exists("/")
    assert {thread for thread in threading.enumerate() if "zookeeper" in thread.name} <= before
    said = [record for record in caplog.records if record.name.startswith("metadata.zookeeper")]
    assert [record.getMessage().split()[0] for record in said] == [
        *("connected", "lost", "ZooKeeper", "connected"),
    ]
    assert not [record for record in caplog.records if record.name.startswith("kazoo")]


async def test_a_watch_that_nobody_holds_is_forgotten() -> None:
    """Readers that look again every few seconds must not pile up watches on a quiet node."""
    async with opened_store() as store:
        root = await fresh_root(store)
        for _ in range(50):
            _, watch = await store.get_and_watch(root)
        session = store._session
        assert session is not None
        assert len(session._client._data_watchers[root]) == 1
        (watches,) = session._watches._watches.values()
        assert list(watches) == [watch]
        await store.set(root, b"x", version=0)
        assert await fired(watch) is WatchEvent.DATA_CHANGED
