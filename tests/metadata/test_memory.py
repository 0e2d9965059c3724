"""The store of memory: the suite, and every way in which it can be told to misbehave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from metadata.faults import NEVER, Fault, Outcome, Request, Script
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    ConnectionLostError,
    MetadataStore,
    NodeExistsError,
    SessionExpiredError,
    StoreUnavailableError,
    Watch,
    WatchEvent,
)
from tests.metadata.store_session_suite import StoreSuite
from tests.metadata.store_suite import World


class MemoryWorld(World):
    def __init__(self) -> None:
        self.metadata = MemoryMetadata()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[MetadataStore]:
        store = self.metadata.connect()
        yield store
        await store.close()

    async def expire(self, store: MetadataStore) -> None:
        assert store.session is not None
        self.metadata.expire(store.session)


class TestMemoryStore(StoreSuite):
    def world(self) -> World:
        return MemoryWorld()


def scripted() -> tuple[MemoryMetadata, Script, MemoryStore]:
    metadata, script = MemoryMetadata(), Script()
    return metadata, script, metadata.connect(script)


def event_of(watch: Watch) -> WatchEvent | None:
    return watch.event


async def test_a_lost_answer_hides_that_the_write_was_applied() -> None:
    _, script, store = scripted()
    await store.create("/a", b"0")
    script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="set", path="/a")
    with pytest.raises(ConnectionLostError):
        await store.set("/a", b"1", version=0)
    assert script.is_played_out
    assert (await store.get("/a")).data == b"1"
    with pytest.raises(BadVersionError):
        await store.set("/a", b"1", version=0)


async def test_a_lost_request_looks_the_same_and_was_not_applied() -> None:
    _, script, store = scripted()
    script.add(Fault(outcome=Outcome.REQUEST_LOST), verb="create")
    with pytest.raises(ConnectionLostError):
        await store.create("/a")
    assert await store.exists("/a") is None


@pytest.mark.parametrize("outcome", [Outcome.REQUEST_LOST, Outcome.ANSWER_LOST])
async def test_a_read_that_gets_lost_is_merely_unavailable(outcome: Outcome) -> None:
    _, script, store = scripted()
    script.add(Fault(outcome=outcome), verb="get")
    with pytest.raises(StoreUnavailableError) as caught:
        await store.get("/")
    assert not isinstance(caught.value, ConnectionLostError)


async def test_an_unavailable_store_does_nothing_until_it_is_back() -> None:
    metadata, script, store = scripted()
    script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="create", times=2)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError) as caught:
            await store.create("/a")
        assert not isinstance(caught.value, ConnectionLostError)
    metadata.available = False
    with pytest.raises(StoreUnavailableError):
        await store.get("/")
    metadata.available = True
    await store.create("/a")


async def test_a_conflict_comes_just_before_the_write_it_was_laid_for() -> None:
    metadata, script, store = scripted()
    await store.create("/a", b"mine")
    script.add(metadata.conflict("/a"), verb="set", skip=1)
    await store.set("/a", b"still mine", version=0)
    with pytest.raises(BadVersionError):
        await store.set("/a", b"not any more", version=1)
    node = await store.get("/a")
    assert (node.data, node.stat.version) == (b"still mine", 2)
    script.add(metadata.conflict("/a", b"theirs"), verb="delete")
    with pytest.raises(BadVersionError):
        await store.delete("/a", version=2)
    assert (await store.get("/a")).data == b"theirs"


async def test_anything_may_happen_in_the_meantime() -> None:
    metadata, script, store = scripted()

    def create() -> None:
        metadata.tree.create("/a", b"theirs")
        metadata.publish()

    script.add(Fault(meanwhile=create), verb="create")
    with pytest.raises(NodeExistsError):
        await store.create("/a", b"mine")
    assert (await store.get("/a")).data == b"theirs"


async def test_a_session_may_end_just_before_a_request() -> None:
    _, script, store = scripted()
    session = await store.require_session()
    await store.create("/e", ephemeral=True)
    script.add(Fault(expires="before"), verb="create", times=2)
    with pytest.raises(SessionExpiredError):
        await store.create("/a", session=session)
    assert await store.exists("/a") is None
    await store.create("/a")
    assert await store.exists("/e") is None


async def test_a_session_may_end_with_the_answer_under_way() -> None:
    _, script, store = scripted()
    session = await store.require_session()
    script.add(Fault(expires="after"), verb="create")
    with pytest.raises(ConnectionLostError):
        await store.create("/a", session=session)
    await store.wait_session_lost(session)
    assert await store.exists("/a") is not None


async def test_a_store_may_learn_late_that_its_session_is_over() -> None:
    metadata, _, store = scripted()
    witness = metadata.connect()
    session = await store.require_session()
    await store.create("/e", ephemeral=True, session=session)
    _, watch = await store.get_and_watch("/")
    metadata.expire(session, silently=True)
    assert await witness.exists("/e") is None
    assert store.session == session
    assert event_of(watch) is None
    with pytest.raises(SessionExpiredError):
        await store.set("/", b"", version=0, session=session)
    assert event_of(watch) is WatchEvent.SESSION_LOST
    assert store.session is None


async def test_closing_a_store_that_did_not_know_better_releases_its_waiters() -> None:
    metadata, _, store = scripted()
    session = await store.require_session()
    _, watch = await store.get_and_watch("/")
    metadata.expire(session, silently=True)
    await store.close()
    assert event_of(watch) is WatchEvent.SESSION_LOST


async def test_a_lagging_store_reads_the_past_until_it_syncs() -> None:
    metadata = MemoryMetadata()
    store, other = metadata.connect(), metadata.connect()
    await other.create("/a", b"0")
    _, early = await store.get_and_watch("/a")
    store.lag()
    await other.set("/a", b"1", version=0)
    node, late = await store.get_and_watch("/a")
    assert node.data == b"0"
    assert await store.exists("/b") is None
    _, _, children = await store.children_and_watch("/")
    await other.create("/b")
    assert (await store.children("/"))[0] == ["a"]
    assert (early.event, late.event, children.event) == (None, None, None)
    await store.sync("/")
    assert (await store.get("/a")).data == b"1"
    assert (early.event, late.event) == (WatchEvent.DATA_CHANGED, WatchEvent.DATA_CHANGED)
    assert event_of(children) is WatchEvent.CHILDREN_CHANGED


async def test_a_lagging_store_sees_its_own_writes() -> None:
    metadata = MemoryMetadata()
    store, other = metadata.connect(), metadata.connect()
    store.lag()
    await other.create("/a")
    await store.create("/b")
    assert (await store.children("/"))[0] == ["a", "b"]


async def test_held_watches_fire_when_released_or_with_the_session() -> None:
    metadata = MemoryMetadata()
    store = metadata.connect()
    await store.create("/a")
    _, released = await store.get_and_watch("/a")
    store.hold_watches()
    await store.set("/a", b"1", version=0)
    assert event_of(released) is None
    store.release_watches()
    assert event_of(released) is WatchEvent.DATA_CHANGED
    _, lost = await store.get_and_watch("/a")
    store.hold_watches()
    await store.set("/a", b"2", version=1)
    metadata.expire(await store.require_session())
    assert event_of(lost) is WatchEvent.SESSION_LOST


async def test_a_late_watch_fires_when_its_time_has_come(
    autojump_clock: trio.testing.MockClock,
) -> None:
    _, script, store = scripted()
    script.add(Fault(watch_seconds=5.0), verb="get")
    _, watch = await store.get_and_watch("/")
    began = trio.current_time()
    await store.set("/", b"1", version=0)
    assert event_of(watch) is None
    assert await watch.wait() is WatchEvent.DATA_CHANGED
    assert trio.current_time() - began == 5.0
    assert event_of(watch) is WatchEvent.DATA_CHANGED


@pytest.mark.parametrize("seconds", [5.0, NEVER])
async def test_a_late_watch_does_not_outlive_its_session(
    autojump_clock: trio.testing.MockClock, seconds: float
) -> None:
    metadata, script, store = scripted()
    script.add(Fault(watch_seconds=seconds), verb="exists")
    _, watch = await store.exists_and_watch("/a")
    await store.create("/a")
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.wait)
        await trio.testing.wait_all_tasks_blocked()
        metadata.expire(await store.require_session())
    assert trio.current_time() == began
    assert event_of(watch) is WatchEvent.SESSION_LOST


async def test_a_cancel_while_the_answer_is_under_way_leaves_the_write(
    autojump_clock: trio.testing.MockClock,
) -> None:
    _, script, store = scripted()
    script.add(Fault(request_seconds=5.0), verb="create", path="/a")
    script.add(Fault(answer_seconds=5.0), verb="create", path="/b")
    for path in ("/a", "/b"):
        with trio.move_on_after(1.0) as scope:
            await store.create(path)
        assert scope.cancelled_caught
    assert (await store.children("/"))[0] == ["b"]


async def test_sequence_numbers_wrap_as_those_of_a_java_int() -> None:
    metadata = MemoryMetadata()
    store = metadata.connect()
    metadata.set_child_counter("/", 2**31 - 1)
    assert await store.create("/ID-", sequential=True) == "/ID-2147483647"
    assert await store.create("/ID-", sequential=True) == "/ID--2147483648"


async def test_the_open_access_list_is_remembered() -> None:
    metadata = MemoryMetadata()
    store = metadata.connect()
    await store.create("/a/open", open_acl=True, parents=True)
    await store.create("/a/private")
    assert metadata.tree.get("/a").open_acl
    assert metadata.tree.get("/a/open").open_acl
    assert not metadata.tree.get("/a/private").open_acl


async def test_a_hook_is_asked_once_per_request_with_what_it_is() -> None:
    seen: list[Request] = []

    def hook(request: Request) -> None:
        seen.append(request)

    metadata = MemoryMetadata()
    store = metadata.connect(hook)
    await store.create("/a/b", parents=True)
    await store.get_and_watch("/a")
    await store.delete("/a/b", version=ANY_VERSION)
    assert seen == [
        Request("create", "/a/b"),
        Request("create", "/a"),
        Request("create", "/a/b"),
        Request("get", "/a", watched=True),
        Request("delete", "/a/b"),
    ]
    assert [request.writes for request in seen] == [True, True, True, False, True]


async def test_times_are_counted_unless_a_clock_is_given() -> None:
    counted = MemoryMetadata().connect()
    await counted.create("/a")
    await counted.create("/b")
    first, second = (await counted.get("/a")).stat, (await counted.get("/b")).stat
    assert second.created_ms == first.created_ms + 1
    timed = MemoryMetadata(now_ms=lambda: 1_750_000_000_000).connect()
    await timed.create("/a")
    assert (await timed.get("/a")).stat.created_ms == 1_750_000_000_000
