"""What every metadata store does: watches, sessions, cancellation. The other half of the suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    NoNodeError,
    SessionExpiredError,
    SessionId,
    SetData,
    StoreClosedError,
    WatchEvent,
)
from tests.metadata.store_suite import PATIENCE_SECONDS, NodeSuite, SuiteBase, fired
from tests.support.zookeeper import fresh_root


class SessionSuite(SuiteBase):
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

    async def test_a_session_left_behind_is_ended_by_whoever_has_its_ticket(self) -> None:
        world = self.world()
        async with world.connected() as store, world.connected() as heir:
            root = await fresh_root(store)
            session = await store.require_session()
            await store.create(f"{root}/e", ephemeral=True, session=session)
            ticket = store.ticket
            assert ticket is not None
            assert await heir.end_session(ticket)
            with trio.fail_after(PATIENCE_SECONDS):
                await store.wait_session_lost(session)
            assert await heir.exists(f"{root}/e") is None
            assert not await heir.end_session(ticket), "it is over already"
            assert await store.require_session() != session
            assert store.ticket != ticket
            assert heir.session is not None, "its own session is another"

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


class StoreSuite(NodeSuite, SessionSuite):
    """Everything."""
