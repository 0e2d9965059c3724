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
    SetData,
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


class SuiteBase(ABC):
    @abstractmethod
    def world(self) -> World: ...

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[MetadataStore, str]]:
        async with self.world().connected() as store:
            yield store, await fresh_root(store)


class NodeSuite(SuiteBase):
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

    async def test_an_ephemeral_node_of_a_transaction_belongs_to_the_session(self) -> None:
        async with self.opened() as (store, root):
            session = await store.require_session()
            await store.transact([Create(f"{root}/a", ephemeral=True), Create(f"{root}/b")])
            first, second = await store.get_many([f"{root}/a", f"{root}/b"])
            assert first is not None
            assert second is not None
            assert (first.stat.owner, second.stat.owner) == (session, None)

    async def test_many_nodes_are_read_in_the_order_asked_for(self) -> None:
        async with self.opened() as (store, root):
            for name in ("a", "b"):
                await store.create(f"{root}/{name}", name.encode())
            paths = [f"{root}/{name}" for name in ("b", "missing", "a", "b", "none")]
            found = await store.get_many(paths)
            assert [node and node.data for node in found] == [b"b", None, b"a", b"b", None]
            assert found[0] == await store.get(paths[0])
            assert await store.get_many([]) == []

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
