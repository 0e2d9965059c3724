"""What every metadata store does, whatever is behind it. Run by test_memory and test_zookeeper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    Change,
    Check,
    Create,
    Delete,
    EphemeralParentError,
    InvalidPathError,
    MetadataError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    SessionId,
    SetData,
    StoreClosedError,
    Watch,
    WatchEvent,
)
from tests.support.zookeeper import fresh_root

PATIENCE_SECONDS = 30.0  # for what must happen; nothing is ever that slow


async def fired(watch: Watch) -> WatchEvent:
    with trio.fail_after(PATIENCE_SECONDS):
        return await watch.wait()


class World(ABC):
    """A server and ways to treat it. Each connection is as if from another process."""

    @abstractmethod
    def connected(self) -> AbstractAsyncContextManager[MetadataStore]: ...

    @abstractmethod
    async def expire(self, store: MetadataStore) -> None:
        """End the session of `store` on the server."""


class StoreSuite(ABC):
    @abstractmethod
    def world(self) -> World: ...

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[MetadataStore, str]]:
        async with self.world().connected() as store:
            yield store, await fresh_root(store)

    # Nodes.

    async def test_a_created_node_has_its_data_and_version_zero(self) -> None:
        async with self.opened() as (store, root):
            assert await store.create(f"{root}/a", b"data") == f"{root}/a"
            node = await store.get(f"{root}/a")
            assert node.data == b"data"
            assert node.stat.version == 0
            assert node.stat.children_version == 0
            assert node.stat.children_count == 0
            assert node.stat.owner is None
            assert node.stat.created_ms == node.stat.modified_ms > 0

    async def test_data_may_be_empty_or_large(self) -> None:
        async with self.opened() as (store, root):
            await store.create(f"{root}/empty")
            await store.create(f"{root}/large", bytes(900_000))
            assert (await store.get(f"{root}/empty")).data == b""
            assert (await store.get(f"{root}/large")).data == bytes(900_000)

    async def test_names_may_hold_any_letters(self) -> None:
        async with self.opened() as (store, root):
            for name in ("bk1.example.com:3181", "größe", "帳簿", "a b"):
                assert await store.create(f"{root}/{name}") == f"{root}/{name}"
            names, _ = await store.children(root)
            assert names == sorted(["bk1.example.com:3181", "größe", "帳簿", "a b"])

    async def test_create_refuses_what_exists_and_what_has_no_parent(self) -> None:
        async with self.opened() as (store, root):
            await store.create(f"{root}/a", b"first")
            with pytest.raises(NodeExistsError, match=f"{root}/a"):
                await store.create(f"{root}/a", b"second")
            with pytest.raises(NoNodeError, match=f"{root}/b/c"):
                await store.create(f"{root}/b/c")
            assert (await store.get(f"{root}/a")).data == b"first"

    async def test_create_makes_missing_parents_persistent_and_empty(self) -> None:
        async with self.opened() as (store, root):
            session = await store.require_session()
            await store.create(f"{root}/a/b/c", b"leaf", parents=True, ephemeral=True)
            for parent in (f"{root}/a", f"{root}/a/b"):
                node = await store.get(parent)
                assert node.data == b""
                assert node.stat.owner is None
            leaf = await store.get(f"{root}/a/b/c")
            assert (leaf.data, leaf.stat.owner) == (b"leaf", session)
            await store.create(f"{root}/a/b/d", parents=True)
            with pytest.raises(NodeExistsError):
                await store.create(f"{root}/a/b/d", parents=True)

    async def test_many_creators_may_make_the_same_parents_at_once(self) -> None:
        async with self.opened() as (store, root), trio.open_nursery() as nursery:
            for number in range(20):
                create = partial(store.create, f"{root}/a/b/c/d/{number}", parents=True)
                nursery.start_soon(create)

    async def test_sequence_numbers_count_every_child_ever_created(self) -> None:
        async with self.opened() as (store, root):
            first = await store.create(f"{root}/ID-", sequential=True)
            assert first == f"{root}/ID-0000000000"
            await store.create(f"{root}/plain")
            await store.delete(first, version=ANY_VERSION)
            assert await store.create(f"{root}/V_", sequential=True) == f"{root}/V_0000000002"

    async def test_sequential_nodes_may_be_ephemeral(self) -> None:
        async with self.opened() as (store, root):
            path = await store.create(f"{root}/v/V_", sequential=True, ephemeral=True, parents=True)
            assert path == f"{root}/v/V_0000000000"
            assert (await store.get(path)).stat.owner == store.session

    async def test_an_ephemeral_node_has_no_children(self) -> None:
        async with self.opened() as (store, root):
            await store.create(f"{root}/e", ephemeral=True)
            with pytest.raises(EphemeralParentError):
                await store.create(f"{root}/e/child")

    async def test_set_needs_the_version_and_raises_it(self) -> None:
        async with self.opened() as (store, root):
            await store.create(f"{root}/a", b"0")
            stat = await store.set(f"{root}/a", b"1", version=0)
            assert stat.version == 1
            assert stat.modified_ms >= stat.created_ms
            with pytest.raises(BadVersionError, match=f"{root}/a"):
                await store.set(f"{root}/a", b"2", version=0)
            with pytest.raises(NoNodeError, match=f"{root}/b"):
                await store.set(f"{root}/b", b"2", version=0)
            assert (await store.set(f"{root}/a", b"3", version=ANY_VERSION)).version == 2
            assert (await store.get(f"{root}/a")).data == b"3"

    async def test_delete_needs_the_version_and_no_children(self) -> None:
        async with self.opened() as (store, root):
            await store.create(f"{root}/a/b", parents=True)
            with pytest.raises(NotEmptyError, match=f"{root}/a"):
                await store.delete(f"{root}/a", version=0)
            with pytest.raises(BadVersionError):
                await store.delete(f"{root}/a/b", version=1)
            await store.delete(f"{root}/a/b", version=0)
            await store.delete(f"{root}/a", version=ANY_VERSION)
            with pytest.raises(NoNodeError):
                await store.delete(f"{root}/a", version=0)

    async def test_exists_tells_the_stat_or_none(self) -> None:
        async with self.opened() as (store, root):
            assert await store.exists(f"{root}/a") is None
            await store.create(f"{root}/a", b"x")
            assert await store.exists(f"{root}/a") == (await store.get(f"{root}/a")).stat
            with pytest.raises(NoNodeError, match=f"{root}/b"):
                await store.get(f"{root}/b")

    async def test_children_come_sorted_with_the_version_of_their_list(self) -> None:
        async with self.opened() as (store, root):
            for name in ("c", "a", "b"):
                await store.create(f"{root}/{name}")
            names, stat = await store.children(root)
            assert names == ["a", "b", "c"]
            assert (stat.children_version, stat.children_count) == (3, 3)
            await store.delete(f"{root}/b", version=0)
            await store.set(f"{root}/a", b"x", version=0)
            names, stat = await store.children(root)
            assert names == ["a", "c"]
            assert (stat.children_version, stat.children_count) == (4, 2)
            with pytest.raises(NoNodeError):
                await store.children(f"{root}/b")

    async def test_other_connections_see_changes_after_sync(self) -> None:
        world = self.world()
        async with world.connected() as one, world.connected() as other:
            root = await fresh_root(one)
            await one.create(f"{root}/a", b"x")
            await other.sync(root)
            assert (await other.get(f"{root}/a")).data == b"x"

    @pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a/./b", "/..", "/a\0b"])
    async def test_a_crooked_path_is_refused(self, path: str) -> None:
        async with self.world().connected() as store:
            requests: list[Callable[[], Awaitable[object]]] = [
                lambda: store.get(path),
                lambda: store.exists_and_watch(path),
                lambda: store.children(path),
                lambda: store.sync(path),
                lambda: store.create(path, parents=True),
                lambda: store.set(path, b"", version=0),
                lambda: store.delete(path, version=0),
                lambda: store.transact([Create(path)]),
            ]
            for request in requests:
                with pytest.raises(InvalidPathError):
                    await request()

    async def test_data_beyond_what_a_server_takes_is_refused_here(self) -> None:
        async with self.opened() as (store, root):
            with pytest.raises(MetadataError, match="too many for a znode"):
                await store.create(f"{root}/a", bytes(1_100_000))
            with pytest.raises(MetadataError, match="too many for a znode"):
                await store.transact([SetData(root, bytes(1_100_000), ANY_VERSION)])
            assert (await store.children(root))[0] == []

    # Transactions.

    async def test_a_transaction_makes_all_its_changes(self) -> None:
        async with self.opened() as (store, root):
            await store.create(f"{root}/set")
            await store.create(f"{root}/gone")
            await store.transact(
                [
                    Check(root, 0),
                    Create(f"{root}/new", b"n"),
                    SetData(f"{root}/new", b"nn", 0),
                    Create(f"{root}/new/child"),
                    SetData(f"{root}/set", b"s", 0),
                    Delete(f"{root}/gone", 0),
                ]
            )
            assert (await store.children(root))[0] == ["new", "set"]
            assert (await store.get(f"{root}/new")).data == b"nn"
            assert (await store.get(f"{root}/set")).data == b"s"
            await store.transact([])

    @pytest.mark.parametrize(
        ("culprit", "error"),
        [
            (Check("a", 7), BadVersionError),
            (Check("missing", ANY_VERSION), NoNodeError),
            (Create("a"), NodeExistsError),
            (Create("missing/b"), NoNodeError),
            (SetData("a", b"", 7), BadVersionError),
            (SetData("missing", b"", ANY_VERSION), NoNodeError),
            (Delete("a", 7), BadVersionError),
            (Delete("full", 0), NotEmptyError),
            (Delete("missing", ANY_VERSION), NoNodeError),
        ],
    )
    async def test_a_transaction_does_nothing_but_raise_its_first_error(
        self, culprit: Change, error: type[MetadataError]
    ) -> None:
        async with self.opened() as (store, root):
            await store.create(f"{root}/a", b"a")
            await store.create(f"{root}/full/child", parents=True)
            watches = [
                (await store.get_and_watch(f"{root}/a"))[1],
                (await store.exists_and_watch(f"{root}/new"))[1],
                (await store.children_and_watch(root))[2],
            ]
            before = (await store.children(root), await store.get(f"{root}/a"))
            culprit = _under(root, culprit)
            with pytest.raises(error, match=culprit.path):
                await store.transact(
                    [
                        Create(f"{root}/new", b"x"),
                        SetData(f"{root}/a", b"changed", 0),
                        Delete(f"{root}/full/child", 0),
                        Create(f"{root}/full/child"),
                        culprit,
                        Create(f"{root}/new"),
                    ]
                )
            assert (await store.children(root), await store.get(f"{root}/a")) == before
            assert (await store.children(f"{root}/full"))[1].children_version == 1
            assert [watch.event for watch in watches] == [None, None, None]
            # The counter of sequence numbers is as it was, too.
            assert (await store.create(f"{root}/s", sequential=True)).endswith("0000000002")
            assert [watch.event for watch in watches[:2]] == [None, None]

    # Watches.

    async def test_a_data_watch_fires_on_a_change_of_the_data(self) -> None:
        async with self.opened() as (store, root):
            await store.create(f"{root}/a", b"0")
            node, watch = await store.get_and_watch(f"{root}/a")
            assert node == await store.get(f"{root}/a")
            await store.create(f"{root}/a/child")
            await store.set(f"{root}/a", b"1", version=0)
            assert await fired(watch) is WatchEvent.DATA_CHANGED

    async def test_a_data_watch_fires_on_deletion(self) -> None:
        async with self.opened() as (store, root):
            await store.create(f"{root}/a")
            _, watch = await store.get_and_watch(f"{root}/a")
            await store.delete(f"{root}/a", version=0)
            assert await fired(watch) is WatchEvent.DELETED

    async def test_a_watched_get_of_nothing_sets_no_watch(self) -> None:
        async with self.opened() as (store, root):
            with pytest.raises(NoNodeError):
                await store.get_and_watch(f"{root}/a")
            with pytest.raises(NoNodeError):
                await store.children_and_watch(f"{root}/a")

    async def test_an_exists_watch_fires_on_creation_change_and_deletion(self) -> None:
        async with self.opened() as (store, root):
            stat, created = await store.exists_and_watch(f"{root}/a")
            assert stat is None
            await store.create(f"{root}/a")
            assert await fired(created) is WatchEvent.CREATED
            stat, changed = await store.exists_and_watch(f"{root}/a")
            assert stat is not None
            assert stat.version == 0
            await store.set(f"{root}/a", b"1", version=0)
            assert await fired(changed) is WatchEvent.DATA_CHANGED
            _, deleted = await store.exists_and_watch(f"{root}/a")
            await store.delete(f"{root}/a", version=1)
            assert await fired(deleted) is WatchEvent.DELETED

    async def test_a_children_watch_fires_when_a_child_comes_or_goes(self) -> None:
        async with self.opened() as (store, root):
            names, stat, came = await store.children_and_watch(root)
            assert (names, stat.children_count) == ([], 0)
            await store.set(root, b"data", version=0)
            await store.create(f"{root}/a")
            assert await fired(came) is WatchEvent.CHILDREN_CHANGED
            _, _, went = await store.children_and_watch(root)
            await store.create(f"{root}/a/grandchild")
            await store.set(f"{root}/a", b"data", version=0)
            await store.delete(f"{root}/a/grandchild", version=0)
            assert went.event is None
            await store.delete(f"{root}/a", version=1)
            assert await fired(went) is WatchEvent.CHILDREN_CHANGED

    async def test_a_children_watch_fires_when_the_node_itself_goes(self) -> None:
        async with self.opened() as (store, root):
            _, _, watch = await store.children_and_watch(root)
            await store.delete(root, version=0)
            assert await fired(watch) is WatchEvent.DELETED

    async def test_a_watch_fires_once_for_all_who_wait_and_keeps_its_event(self) -> None:
        async with self.opened() as (store, root):
            _, watch = await store.get_and_watch(root)
            heard: list[WatchEvent] = []

            async def listen() -> None:
                heard.append(await watch.wait())

            with trio.fail_after(PATIENCE_SECONDS):
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(listen)
                    await store.set(root, b"1", version=0)
            await store.delete(root, version=1)
            assert await watch.wait() is WatchEvent.DATA_CHANGED
            assert heard == [WatchEvent.DATA_CHANGED] * 3
            assert watch.event is WatchEvent.DATA_CHANGED

    async def test_watches_on_one_path_all_fire_and_can_be_set_again(self) -> None:
        async with self.opened() as (store, root):
            for version in range(3):
                _, one = await store.get_and_watch(root)
                _, two = await store.get_and_watch(root)
                _, three = await store.exists_and_watch(root)
                await store.set(root, b"x", version=version)
                for watch in (one, two, three):
                    assert await fired(watch) is WatchEvent.DATA_CHANGED

    async def test_a_watch_hears_of_other_connections_and_of_transactions(self) -> None:
        world = self.world()
        async with world.connected() as one, world.connected() as other:
            root = await fresh_root(one)
            await other.sync(root)
            _, data = await other.get_and_watch(root)
            _, _, children = await other.children_and_watch(root)
            await one.transact([SetData(root, b"x", 0), Create(f"{root}/a")])
            assert await fired(data) is WatchEvent.DATA_CHANGED
            assert await fired(children) is WatchEvent.CHILDREN_CHANGED

    # Sessions.

    async def test_an_ephemeral_node_goes_when_its_connection_closes(self) -> None:
        world = self.world()
        async with world.connected() as stays:
            root = await fresh_root(stays)
            async with world.connected() as leaves:
                session = await leaves.require_session()
                await leaves.create(f"{root}/e", ephemeral=True, session=session)
                await stays.sync(root)
                stat, watch = await stays.exists_and_watch(f"{root}/e")
                assert stat is not None
                assert stat.owner == session != stays.session
            assert await fired(watch) is WatchEvent.DELETED

    async def test_an_expired_session_takes_its_ephemeral_nodes_and_watches_along(self) -> None:
        world = self.world()
        async with world.connected() as store, world.connected() as witness:
            root = await fresh_root(store)
            await store.create(f"{root}/a")
            session = await store.require_session()
            await store.create(f"{root}/e", ephemeral=True, session=session)
            watches = [
                (await store.get_and_watch(f"{root}/a"))[1],
                (await store.exists_and_watch(f"{root}/missing"))[1],
                (await store.children_and_watch(f"{root}/a"))[2],
            ]
            await world.expire(store)
            with trio.fail_after(PATIENCE_SECONDS):
                await store.wait_session_lost(session)
            for watch in watches:
                assert await fired(watch) is WatchEvent.SESSION_LOST
            await witness.sync(root)
            assert (await witness.children(root))[0] == ["a"]

    async def test_a_request_bound_to_an_expired_session_is_not_carried_out(self) -> None:
        world = self.world()
        async with world.connected() as store:
            root = await fresh_root(store)
            session = await store.require_session()
            await world.expire(store)
            with trio.fail_after(PATIENCE_SECONDS):
                await store.wait_session_lost(session)
            await self._check_bound_requests_are_refused(store, root, session)
            # Neither while there is no session, nor once there is another.
            assert await store.require_session() != session
            await self._check_bound_requests_are_refused(store, root, session)

    async def test_a_request_bound_to_the_session_of_another_is_refused(self) -> None:
        world = self.world()
        async with world.connected() as store, world.connected() as other:
            root = await fresh_root(store)
            session = await other.require_session()
            await self._check_bound_requests_are_refused(store, root, session)

    async def _check_bound_requests_are_refused(
        self, store: MetadataStore, root: str, session: SessionId
    ) -> None:
        requests: list[Callable[[], Awaitable[object]]] = [
            lambda: store.create(f"{root}/a", session=session),
            lambda: store.create(f"{root}/b/c", parents=True, session=session),
            lambda: store.set(root, b"late", version=0, session=session),
            lambda: store.delete(root, version=0, session=session),
            lambda: store.transact([Create(f"{root}/a")], session=session),
        ]
        for request in requests:
            with pytest.raises(SessionExpiredError, match=f"0x{session:x}"):
                await request()
        assert (await store.get(root)).stat.version == 0
        assert (await store.children(root))[0] == []

    async def test_a_request_bound_to_the_live_session_is_carried_out(self) -> None:
        async with self.opened() as (store, root):
            session = store.session
            assert session is not None
            await store.create(f"{root}/a", session=session)
            await store.set(f"{root}/a", b"x", version=0, session=session)
            await store.transact([Check(f"{root}/a", 1)], session=session)
            await store.delete(f"{root}/a", version=1, session=session)
            assert store.session == session

    async def test_a_store_lives_on_with_a_new_session_after_expiry(self) -> None:
        world = self.world()
        async with world.connected() as store:
            root = await fresh_root(store)
            before = await store.require_session()
            await world.expire(store)
            with trio.fail_after(PATIENCE_SECONDS):
                await store.wait_session_lost(before)
            await store.create(f"{root}/e", ephemeral=True)
            after = store.session
            assert after not in (None, before)
            stat, watch = await store.exists_and_watch(f"{root}/e")
            assert stat is not None
            assert stat.owner == after
            await store.delete(f"{root}/e", version=0)
            assert await fired(watch) is WatchEvent.DELETED

    async def test_waiting_for_the_loss_of_another_session_returns_at_once(self) -> None:
        async with self.opened() as (store, _):
            session = await store.require_session()
            await store.wait_session_lost(SessionId(session + 1))
            with trio.move_on_after(0.05) as waiting:
                await store.wait_session_lost(session)
            assert waiting.cancelled_caught

    async def test_close_may_be_repeated_and_ends_everything(self) -> None:
        async with self.opened() as (store, root):
            session = await store.require_session()
            _, watch = await store.get_and_watch(root)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.wait_session_lost, session)
                await trio.testing.wait_all_tasks_blocked()
                await store.close()
            await store.close()
            assert watch.event is WatchEvent.SESSION_LOST
            assert store.session is None
            requests: list[Callable[[], Awaitable[object]]] = [
                lambda: store.get(root),
                lambda: store.create(f"{root}/a"),
                lambda: store.sync(root),
                store.require_session,
            ]
            for request in requests:
                with pytest.raises(StoreClosedError):
                    await request()

    # Tasks.

    async def test_a_cancelled_request_leaves_the_store_usable(self) -> None:
        """A cancel may come before or after the request took effect; both are fine, once."""
        async with self.opened() as (store, root):
            for number in range(20):
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(store.create, f"{root}/{number}")
                        nursery.start_soon(store.get_and_watch, root)
                        await trio.testing.wait_all_tasks_blocked()
                        scope.cancel()
            await store.create(f"{root}/after")
            names, stat = await store.children(root)
            assert "after" in names
            assert stat.children_version == len(names)

    async def test_a_request_of_a_cancelled_task_is_not_sent(self) -> None:
        async with self.opened() as (store, root):
            with trio.CancelScope() as scope:
                scope.cancel()
                await store.create(f"{root}/a")
            assert scope.cancelled_caught
            assert (await store.children(root))[0] == []

    async def test_a_thousand_requests_may_be_under_way_at_once(self) -> None:
        async with self.opened() as (store, root):
            paths: list[str] = []

            async def create() -> None:
                paths.append(await store.create(f"{root}/ID-", sequential=True, ephemeral=True))

            async with trio.open_nursery() as nursery:
                for _ in range(1000):
                    nursery.start_soon(create)
            assert sorted(paths) == [f"{root}/ID-{number:010d}" for number in range(1000)]
            await store.transact([Delete(path, 0) for path in paths])
            assert (await store.children(root))[0] == []


def _under(root: str, change: Change) -> Change:
    path = f"{root}/{change.path}"
    match change:
        case Create(_, data):
            return Create(path, data)
        case SetData(_, data, version):
            return SetData(path, data, version)
        case Delete(_, version):
            return Delete(path, version)
        case Check(_, version):
            return Check(path, version)
