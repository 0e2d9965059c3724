"""The store on ZooKeeper when servers die or hang, wires break and answers get lost.

Servers here are processes of our own, killed, stopped and started for real. Where the moment
matters, a proxy stands between: a cut wire is at a known place in the conversation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from metadata.store import (
    ConnectionLostError,
    Create,
    MetadataStore,
    SessionExpiredError,
    StoreClosedError,
    StoreUnavailableError,
    WatchEvent,
)
from metadata.zookeeper_store import ZookeeperStore
from runtime.local_zookeeper import LocalZookeeper
from tests.metadata.store_suite import PATIENCE_SECONDS, fired
from tests.support.proxy import Proxy, proxied
from tests.support.zookeeper import expire, fresh_root, opened_store, shared_zookeeper

SESSION_SECONDS = 3.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZookeeper]:
    """One to be mistreated. Each test leaves it running."""
    folder: Path = tmp_path_factory.mktemp("zookeeper")
    with LocalZookeeper(folder, durable=False) as server:
        yield server


@asynccontextmanager
async def behind_a_proxy(
    timeout_seconds: float = PATIENCE_SECONDS,
) -> AsyncIterator[tuple[ZookeeperStore, Proxy, str]]:
    async with (
        proxied(shared_zookeeper().address) as proxy,
        opened_store(
            proxy.address, session_seconds=SESSION_SECONDS, timeout_seconds=timeout_seconds
        ) as store,
    ):
        yield store, proxy, await fresh_root(store)


async def started(server: LocalZookeeper) -> None:
    await trio.to_thread.run_sync(server.start)


async def until_suspended(store: ZookeeperStore) -> None:
    session = store._session
    assert session is not None
    with trio.fail_after(PATIENCE_SECONDS):
        while session.is_usable:
            await store._changed.wait()


async def until_gone(store: MetadataStore, path: str) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            stat, watch = await store.exists_and_watch(path)
            if stat is None:
                return
            await watch.wait()


async def test_a_killed_server_comes_back_to_the_same_session_and_watches(
    server: LocalZookeeper,
) -> None:
    """kill -9 and restart: what was written is there, sessions and their watches go on."""
    async with opened_store(
        server.address, session_seconds=20.0, timeout_seconds=PATIENCE_SECONDS
    ) as store:
        root = await fresh_root(store)
        session = await store.require_session()
        await store.create(f"{root}/e", b"x", ephemeral=True)
        _, data = await store.get_and_watch(root)
        _, _, children = await store.children_and_watch(root)
        _, missing = await store.exists_and_watch(f"{root}/missing")
        await trio.to_thread.run_sync(server.kill)
        await until_suspended(store)
        assert store.session == session
        async with trio.open_nursery() as nursery:
            nursery.start_soon(started, server)
            assert (await store.get(f"{root}/e")).stat.owner == session
        assert (data.event, children.event, missing.event) == (None, None, None)
        await store.set(root, b"1", version=0, session=session)
        await store.create(f"{root}/missing", session=session)
        assert await fired(data) is WatchEvent.DATA_CHANGED
        assert await fired(children) is WatchEvent.CHILDREN_CHANGED
        assert await fired(missing) is WatchEvent.CREATED


async def test_without_a_server_nothing_is_done_and_that_is_said(server: LocalZookeeper) -> None:
    async with opened_store(server.address, session_seconds=20.0, timeout_seconds=0.3) as store:
        root = await fresh_root(store)
        session = await store.require_session()
        await trio.to_thread.run_sync(server.kill)
        await until_suspended(store)
        for bound in (None, session):
            with pytest.raises(StoreUnavailableError, match="no connection") as caught:
                await store.create(f"{root}/a", session=bound)
            assert type(caught.value) is StoreUnavailableError
        with pytest.raises(StoreUnavailableError, match="no connection"):
            await store.get(root)
        await started(server)
        store._timeout = PATIENCE_SECONDS
        assert (await store.children(root))[0] == []


async def test_a_server_that_hangs_beyond_the_session_ends_it(server: LocalZookeeper) -> None:
    """SIGSTOP, longer than the session; SIGCONT; the session and all that hung on it is gone.

    The wire stays closed until the server has seen the expiry: otherwise the client's return and
    the expiry would race inside the server, and either may win.
    """
    async with (
        proxied(server.address) as proxy,
        opened_store(proxy.address, session_seconds=1.0, timeout_seconds=PATIENCE_SECONDS) as store,
    ):
        root = await fresh_root(store)
        session = await store.require_session()
        await store.create(f"{root}/e", ephemeral=True, session=session)
        _, watch = await store.get_and_watch(root)
        server.pause()
        proxy.accepts = False
        proxy.cut()
        await until_suspended(store)
        await trio.sleep(2.0)
        server.resume()
        async with opened_store(server.address, timeout_seconds=PATIENCE_SECONDS) as witness:
            await until_gone(witness, f"{root}/e")
        # Nobody has told us yet: a bound request waits, and is not carried out by a successor.
        assert store.session == session
        async with trio.open_nursery() as nursery:
            refused = trio.Event()

            async def write_late() -> None:
                with pytest.raises(SessionExpiredError):
                    await store.set(root, b"late", version=0, session=session)
                refused.set()

            nursery.start_soon(write_late)
            await trio.testing.wait_all_tasks_blocked()
            assert not refused.is_set()
            proxy.accepts = True
            with trio.fail_after(PATIENCE_SECONDS):
                await store.wait_session_lost(session)
                await refused.wait()
        assert await fired(watch) is WatchEvent.SESSION_LOST
        assert (await store.get(root)).stat.version == 0
        assert store.session not in (None, session)


async def test_a_silent_server_leaves_a_write_unknown_and_a_read_undone(
    server: LocalZookeeper,
) -> None:
    """SIGSTOP: the connection stands, nobody answers. Once it goes on, the store does too."""
    async with opened_store(server.address, session_seconds=20.0, timeout_seconds=0.5) as store:
        root = await fresh_root(store)
        server.pause()
        try:
            with pytest.raises(ConnectionLostError, match="unknown"):
                await store.create(f"{root}/a")
            with pytest.raises(StoreUnavailableError) as caught:
                await store.get(root)
            assert not isinstance(caught.value, ConnectionLostError)
        finally:
            server.resume()
        store._timeout = PATIENCE_SECONDS
        assert (await store.children(root))[0] in ([], ["a"])


@pytest.mark.parametrize("verb", ["create", "set", "delete", "transact"])
async def test_a_write_whose_answer_is_lost_is_unknown_and_was_made(verb: str) -> None:
    async with behind_a_proxy() as (store, proxy, root), opened_store() as witness:
        requests: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: store.create(f"{root}/b"),
            "set": lambda: store.set(f"{root}/a", b"1", version=0),
            "delete": lambda: store.delete(f"{root}/a", version=0),
            "transact": lambda: store.transact([Create(f"{root}/b")]),
        }
        await store.create(f"{root}/a", b"0")
        await witness.sync(root)
        _, data = await witness.exists_and_watch(f"{root}/a")
        _, _, children = await witness.children_and_watch(root)
        proxy.loses_answers = True
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                with pytest.raises(ConnectionLostError, match="unknown"):
                    await requests[verb]()

            nursery.start_soon(write)
            await fired(data if verb in ("set", "delete") else children)
            proxy.loses_answers = False
            proxy.cut()
        # It is told from a read: the write is there, once.
        names, _ = await store.children(root)
        assert names == {"set": ["a"], "delete": []}.get(verb, ["a", "b"])


async def test_a_read_is_repeated_over_a_broken_wire() -> None:
    async with behind_a_proxy() as (store, proxy, root):
        await store.create(f"{root}/a", b"x")
        proxy.loses_answers = True
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                assert (await store.get(f"{root}/a")).data == b"x"
                assert (await store.children(root))[0] == ["a"]

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            proxy.cut()
            await until_suspended(store)
            proxy.loses_answers = False
            proxy.cut()


async def test_a_watch_tells_after_a_reconnect_what_it_missed() -> None:
    """While the wire is cut others change things; each watch fires with what it would have seen."""
    async with behind_a_proxy() as (store, proxy, root), opened_store() as other:
        for name in ("set", "gone", "again", "parent", "quiet", "left"):
            await store.create(f"{root}/{name}")
        session = await store.require_session()
        watches = {
            "set": (await store.get_and_watch(f"{root}/set"))[1],
            "gone": (await store.get_and_watch(f"{root}/gone"))[1],
            "again": (await store.get_and_watch(f"{root}/again"))[1],
            "new": (await store.exists_and_watch(f"{root}/new"))[1],
            "parent": (await store.children_and_watch(f"{root}/parent"))[2],
            "left": (await store.children_and_watch(f"{root}/left"))[2],
            "quiet data": (await store.get_and_watch(f"{root}/quiet"))[1],
            "quiet children": (await store.children_and_watch(f"{root}/quiet"))[2],
            "still missing": (await store.exists_and_watch(f"{root}/missing"))[1],
        }
        proxy.accepts = False
        proxy.cut()
        await until_suspended(store)
        await other.set(f"{root}/set", b"x", version=0)
        await other.delete(f"{root}/gone", version=0)
        await other.delete(f"{root}/again", version=0)
        await other.create(f"{root}/again")
        await other.create(f"{root}/new")
        await other.create(f"{root}/parent/child")
        await other.delete(f"{root}/left", version=0)
        proxy.accepts = True
        assert await fired(watches["set"]) is WatchEvent.DATA_CHANGED
        assert await fired(watches["gone"]) is WatchEvent.DELETED
        assert await fired(watches["again"]) is WatchEvent.DELETED
        assert await fired(watches["new"]) is WatchEvent.CREATED
        assert await fired(watches["parent"]) is WatchEvent.CHILDREN_CHANGED
        assert await fired(watches["left"]) is WatchEvent.DELETED
        assert store.session == session
        # The quiet ones went on waiting, and hear of what comes now.
        quiet = [watches[name] for name in ("quiet data", "quiet children", "still missing")]
        await store.sync(root)
        assert [watch.event for watch in quiet] == [None, None, None]
        await other.set(f"{root}/quiet", b"x", version=0)
        await other.create(f"{root}/quiet/child")
        await other.create(f"{root}/missing")
        assert [await fired(watch) for watch in quiet] == [
            *(WatchEvent.DATA_CHANGED, WatchEvent.CHILDREN_CHANGED, WatchEvent.CREATED)
        ]


async def test_a_server_that_does_not_greet_costs_an_attempt_and_not_the_session() -> None:
    """As a server does that is just starting: it takes the connection and never says a word."""
    async with behind_a_proxy() as (store, proxy, root):
        session = await store.require_session()
        assert store._session is not None
        store._session._handler._greeting_seconds = 0.2  # kazoo's own bound is the session
        proxy.silent_connections = 2
        proxy.cut()
        await until_suspended(store)
        assert (await store.get(root)).stat.version == 0
        assert proxy.silent_connections == 0
        assert store.session == session


async def test_requests_made_while_disconnected_wait_for_the_connection() -> None:
    async with behind_a_proxy() as (store, proxy, root):
        session = await store.require_session()
        proxy.accepts = False
        proxy.cut()
        await until_suspended(store)
        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon(store.create, f"{root}/{number}")
            await trio.testing.wait_all_tasks_blocked()
            proxy.accepts = True
        assert (await store.children(root))[1].children_count == 500
        assert store.session == session


async def test_an_expiry_with_many_requests_waiting_sends_none_of_the_bound_ones() -> None:
    """The session ends on the server while requests wait for the wire.

    The bound ones are refused, each of them; the free ones are carried out by the next session.
    """
    async with behind_a_proxy() as (store, proxy, root), opened_store() as witness:
        session = await store.require_session()
        await store.create(f"{root}/e", ephemeral=True)
        proxy.accepts = False
        proxy.cut()
        await until_suspended(store)
        refused = 0

        async def write_bound(number: int) -> None:
            nonlocal refused
            with pytest.raises(SessionExpiredError):
                await store.create(f"{root}/bound-{number}", session=session)
            refused += 1

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(write_bound, number)
                nursery.start_soon(store.create, f"{root}/free-{number:02d}")
            await until_gone(witness, f"{root}/e")
            proxy.accepts = True
        assert refused == 100
        names, _ = await store.children(root)
        assert names == [f"free-{number:02d}" for number in range(100)]


async def test_no_connection_is_made_for_a_session_that_is_over() -> None:
    """kazoo itself would go on with a new session on the same client; that door is shut."""
    async with opened_store() as store:
        first = store._session
        assert first is not None
        await expire(store)
        with trio.fail_after(PATIENCE_SECONDS):
            await first.lost.wait()
        assert not first._client.connected
        address = ("127.0.0.1", shared_zookeeper().port)
        with pytest.raises(Exception, match="the session is over"):
            first._handler.create_connection(address, timeout=5.0)
        # What slips into kazoo's queue all the same gets an error, not another session.
        with pytest.raises(StoreUnavailableError):
            await first.create("/slipped", b"", trio.current_time() + PATIENCE_SECONDS)
        assert await store.exists("/slipped") is None


async def test_close_ends_requests_that_wait_and_is_bounded_without_a_server(
    server: LocalZookeeper,
) -> None:
    async with opened_store(
        server.address, session_seconds=20.0, timeout_seconds=PATIENCE_SECONDS
    ) as store:
        await trio.to_thread.run_sync(server.kill)
        await until_suspended(store)
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                with pytest.raises(StoreClosedError):
                    await store.get("/")

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(PATIENCE_SECONDS):
                await store.close()
    await started(server)


async def test_close_does_not_wait_for_a_server_that_hangs(
    server: LocalZookeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.zookeeper_store._CLOSE_SECONDS", 0.3)
    store = await ZookeeperStore.connect(server.address, session_seconds=20.0)
    server.pause()
    try:
        session = store._session
        assert session is not None
        with trio.fail_after(PATIENCE_SECONDS):
            await store.close()
        assert session.retire().is_set()
    finally:
        server.resume()


async def test_a_close_that_is_cancelled_still_ends_the_session() -> None:
    async with opened_store() as witness:
        root = await fresh_root(witness)
        store = await ZookeeperStore.connect(shared_zookeeper().address, session_seconds=20.0)
        await store.create(f"{root}/e", ephemeral=True)
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.close()
        await until_gone(witness, f"{root}/e")
