"""Watching bookies: lists, where they are, and what a bad network makes of both."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from metadata.discovery import Bookies, BookieWatcher, read_bookies
from metadata.faults import NEVER, Fault, Outcome, Script
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.registration import BookieMode, Registration
from metadata.service_info import (
    BookieServiceInfo,
    bookie_service_info,
    decode_service_info,
    encode_service_info,
)
from metadata.store import ANY_VERSION, NoNodeError, StoreUnavailableError
from tests.metadata.places import Place, place, planted, until
from wire.errors import BookieUnavailableError
from wire.types import BookieId

__all__ = ["place"]

ROOT = "/ledgers"
A, B, C = (BookieId(f"127.0.0.1:{port}") for port in (33811, 33812, 33813))
CAPTURED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "registration.json").read_text()
)


def info_of(bookie_id: BookieId) -> BookieServiceInfo:
    host, _, port = bookie_id.partition(":")
    return bookie_service_info(host=host, port=int(port))


class World:
    def __init__(self, *, read_only_list: bool = True) -> None:
        self.metadata = MemoryMetadata()
        planted(self.metadata, [f"{ROOT}/available" + "/readonly" * read_only_list])
        self.script = Script()
        self.store: MemoryStore = self.metadata.connect(self.script)
        self.watcher = BookieWatcher(self.store, ROOT)
        self.other = self.metadata.connect()

    async def add(self, bookie_id: BookieId, *, read_only: bool = False) -> None:
        path = f"{ROOT}/available{'/readonly' * read_only}/{bookie_id}"
        await self.other.create(path, encode_service_info(info_of(bookie_id)))

    async def remove(self, bookie_id: BookieId, *, read_only: bool = False) -> None:
        path = f"{ROOT}/available{'/readonly' * read_only}/{bookie_id}"
        await self.other.delete(path, version=ANY_VERSION)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[BookieWatcher]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.watcher.run)
            yield self.watcher
            nursery.cancel_scope.cancel()

    async def settled(self) -> Bookies:
        await trio.testing.wait_all_tasks_blocked()
        return self.watcher.bookies


async def test_a_watcher_follows_bookies_through_their_lives(place: Place) -> None:
    async with place.connected() as store, place.connected() as bookie_store:
        await store.create(f"{place.root}/available/readonly", parents=True)
        bookie = Registration(bookie_store, place.root, A, info_of(A), chance=random.Random(1))
        await bookie.register(BookieMode.WRITABLE)
        watcher = BookieWatcher(store, place.root)
        async with trio.open_nursery() as nursery:
            await nursery.start(watcher.run)
            assert watcher.bookies == Bookies(frozenset({A}), frozenset(), {A: info_of(A)})
            assert watcher.bookies.endpoint(A).port == 33811
            await bookie.switch(BookieMode.READ_ONLY)
            await until(lambda: watcher.bookies.read_only == {A})
            await until(lambda: watcher.bookies.writable == frozenset())
            await until(lambda: A in watcher.bookies.info)
            assert await read_bookies(store, place.root) == watcher.bookies
            await bookie.unregister()
            await until(lambda: watcher.bookies == Bookies())
            nursery.cancel_scope.cancel()


async def test_the_first_snapshot_is_complete() -> None:
    world = World()
    await world.add(A)
    await world.add(B, read_only=True)
    async with world.watching() as watcher:
        assert watcher.bookies == Bookies(
            frozenset({A}), frozenset({B}), {A: info_of(A), B: info_of(B)}
        )
        assert watcher.bookies.all == {A, B}
        assert "readonly" not in watcher.bookies.all


async def test_a_new_bookie_is_shown_together_with_where_it_is() -> None:
    world = World()
    async with world.watching() as watcher:
        before = watcher.bookies
        await world.add(A)
        after = await watcher.wait_changed(before)
        assert after == Bookies(frozenset({A}), frozenset(), {A: info_of(A)})


async def test_waiting_for_a_change_wakes_all_who_wait() -> None:
    world = World()
    woken: list[Bookies] = []

    async def wait() -> None:
        woken.append(await world.watcher.wait_changed(seen))

    async with world.watching() as watcher:
        seen = watcher.bookies
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not woken
            await world.add(A)
        assert woken == [watcher.bookies] * 2


async def test_snapshots_are_values() -> None:
    world = World()
    await world.add(A)
    async with world.watching() as watcher:
        before = watcher.bookies
        await world.add(B)
        after = await watcher.wait_changed(before)
        assert before == Bookies(frozenset({A}), frozenset(), {A: info_of(A)})
        assert after.writable == {A, B}
        with pytest.raises(TypeError):
            after.info[C] = info_of(C)  # type: ignore[index]


async def test_the_writable_list_must_be_there_at_first() -> None:
    metadata = MemoryMetadata()
    planted(metadata, [ROOT])
    with pytest.raises(NoNodeError):
        await BookieWatcher(metadata.connect(), ROOT).run()
    metadata.available = False
    with pytest.raises(StoreUnavailableError):
        await BookieWatcher(metadata.connect(), ROOT).run()


async def test_the_read_only_list_may_come_later() -> None:
    world = World(read_only_list=False)
    await world.add(A)
    async with world.watching() as watcher:
        assert watcher.bookies.read_only == frozenset()
        await world.other.create(f"{ROOT}/available/readonly")
        await world.settled()
        await world.add(B, read_only=True)
        assert (await world.settled()).read_only == {B}


async def test_a_read_only_list_that_cannot_be_read_is_no_obstacle(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.add(A)
    await world.add(B, read_only=True)
    world.script.add(
        Fault(outcome=Outcome.UNAVAILABLE), verb="children", path=f"{ROOT}/available/readonly"
    )
    async with world.watching() as watcher:
        assert watcher.bookies.all == {A}
        await until(lambda: watcher.bookies.all == {A, B})


async def test_a_switching_bookie_is_never_missing_and_always_reachable() -> None:
    world = World()
    await world.add(A)
    async with world.watching() as watcher:
        seen = [watcher.bookies]

        async def collect() -> None:
            while True:
                seen.append(await watcher.wait_changed(seen[-1]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect)
            await world.add(A, read_only=True)
            await world.settled()
            await world.remove(A)
            await world.settled()
            nursery.cancel_scope.cancel()
        assert seen[-1] == Bookies(frozenset(), frozenset({A}), {A: info_of(A)})
        assert all(A in snapshot.all and A in snapshot.info for snapshot in seen)


async def test_a_bookie_that_returns_elsewhere_is_found_there() -> None:
    """New endpoints come with a new node; the old announcement must not linger."""
    world = World()
    await world.add(A)
    async with world.watching() as watcher:
        await world.remove(A)
        moved = bookie_service_info(host="10.0.0.9", port=1)
        await world.other.create(f"{ROOT}/available/{A}", encode_service_info(moved))
        await world.settled()
        await until(lambda: watcher.bookies.info.get(A) == moved)


async def test_a_payload_that_changes_in_place_is_read_again() -> None:
    world = World()
    await world.add(A)
    async with world.watching() as watcher:
        moved = bookie_service_info(host="10.0.0.9", port=1)
        await world.other.set(
            f"{ROOT}/available/{A}", encode_service_info(moved), version=ANY_VERSION
        )
        assert (await world.settled()).info[A] == moved
        assert watcher.bookies.endpoint(A).host == "10.0.0.9"


# ---------------------------------------------------------------------- payloads


@pytest.mark.parametrize(
    "captured",
    [item for item in CAPTURED if item["kind"] == "node"],
    ids=lambda item: str(item["name"]),
)
async def test_announcements_of_java_are_understood(captured: dict[str, Any]) -> None:
    world = World()
    bookie_id = BookieId(captured["path"].rpartition("/")[2])
    data = bytes.fromhex(captured["data_hex"])
    await world.other.create(f"{ROOT}/available/{bookie_id}", data)
    async with world.watching() as watcher:
        assert watcher.bookies.info[bookie_id] == decode_service_info(data, bookie_id)
        expected = next(
            (e["host"], e["port"])
            for e in captured["fields"]["endpoints"]
            if e["protocol"] == "bookie-rpc"
        )
        endpoint = watcher.bookies.endpoint(bookie_id)
        assert (endpoint.host, endpoint.port) == expected


async def test_an_empty_announcement_means_that_the_id_is_the_address() -> None:
    world = World()
    await world.other.create(f"{ROOT}/available/{A}")
    await world.other.create(f"{ROOT}/available/bk-alpha")
    async with world.watching() as watcher:
        endpoint = watcher.bookies.endpoint(A)
        assert (endpoint.host, endpoint.port) == ("127.0.0.1", 33811)
        with pytest.raises(BookieUnavailableError, match="no bookie-rpc endpoint"):
            watcher.bookies.endpoint(BookieId("bk-alpha"))
        with pytest.raises(BookieUnavailableError, match="not registered"):
            watcher.bookies.endpoint(B)


async def test_an_unreadable_announcement_leaves_the_bookie_listed() -> None:
    world = World()
    await world.other.create(f"{ROOT}/available/{A}", b"\xff\xff\xff")
    async with world.watching() as watcher:
        assert watcher.bookies == Bookies(frozenset({A}))
        with pytest.raises(BookieUnavailableError, match="could not be read"):
            watcher.bookies.endpoint(A)
        assert await read_bookies(world.store, ROOT) == watcher.bookies


async def test_an_announcement_that_cannot_be_read_now_is_read_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.add(A)
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="get", times=3)
    async with world.watching() as watcher:
        assert watcher.bookies == Bookies(frozenset({A}))
        await until(lambda: A in watcher.bookies.info)


async def test_names_that_are_no_bookies_are_left_out() -> None:
    world = World()
    await world.add(A)
    planted(world.metadata, [f"{ROOT}/available/not a bookie"])
    async with world.watching() as watcher:
        assert watcher.bookies.all == {A}


# ---------------------------------------------------------------------- a bad network


async def test_the_last_snapshot_stays_up_while_the_store_is_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.add(A)
    async with world.watching() as watcher:
        before = watcher.bookies
        world.metadata.available = False
        assert world.store.session is not None
        world.metadata.expire(world.store.session)
        await trio.sleep(60)
        assert watcher.bookies == before
        world.metadata.available = True
        await world.add(B)
        await until(lambda: watcher.bookies.writable == {A, B})
        await until(lambda: B in watcher.bookies.info)


async def test_a_watcher_goes_on_in_the_next_session(place: Place) -> None:
    async with place.connected() as store, place.connected() as bookies:
        await store.create(f"{place.root}/available/readonly", parents=True)
        watcher = BookieWatcher(store, place.root)
        async with trio.open_nursery() as nursery:
            await nursery.start(watcher.run)
            await place.expire(store)
            bookie = Registration(bookies, place.root, A, info_of(A), chance=random.Random(1))
            await bookie.register(BookieMode.WRITABLE)
            expected = Bookies(frozenset({A}), frozenset(), {A: info_of(A)})
            await until(lambda: watcher.bookies == expected)
            nursery.cancel_scope.cancel()


async def test_a_change_during_a_lost_session_is_found(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.add(A)
    async with world.watching() as watcher:
        assert world.store.session is not None
        world.metadata.expire(world.store.session)
        await world.remove(A)
        await world.add(C, read_only=True)
        await until(lambda: watcher.bookies.all == {C})
        assert dict(watcher.bookies.info) == {C: info_of(C)}


async def test_an_older_list_is_not_taken_for_a_change(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After a lost session the next server lags: B was there already and stays."""
    world = World()
    await world.add(A)
    async with world.watching() as watcher:
        await world.add(B)
        assert (await world.settled()).writable == {A, B}
        version = watcher._writable.version
        watcher._writable.version = (version[0], version[1] + 5)  # as if seen elsewhere
        await world.remove(B)
        assert (await world.settled()).writable == {A, B}


async def test_a_list_that_was_made_again_counts_from_the_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Java's clients ignore it until its counter has passed the old one."""
    world = World()
    for bookie in (A, B, C):
        await world.add(bookie)
        await world.remove(bookie)
    async with world.watching() as watcher:
        await world.other.delete(f"{ROOT}/available/readonly", version=ANY_VERSION)
        await world.other.delete(f"{ROOT}/available", version=ANY_VERSION)
        await trio.sleep(5)
        await world.other.create(f"{ROOT}/available")
        await world.other.create(f"{ROOT}/available/readonly")
        await world.add(A)
        await until(lambda: watcher.bookies.writable == {A})


@pytest.mark.parametrize("verb", ["children", "get"])
async def test_a_watch_that_never_fires_is_made_up_for(
    verb: Any, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    await world.add(A)
    world.script.add(Fault(watch_seconds=NEVER), verb=verb, times=1, skip=int(verb == "children"))
    async with world.watching() as watcher:
        assert world.script.is_played_out
        if verb == "children":
            await world.add(B)
            await until(lambda: watcher.bookies.writable == {A, B})
        else:
            moved = bookie_service_info(host="10.0.0.9", port=1)
            path = f"{ROOT}/available/{A}"
            await world.other.set(path, encode_service_info(moved), version=ANY_VERSION)
            await until(lambda: watcher.bookies.info[A] == moved)


async def test_a_bookie_that_returns_while_it_is_looked_for_is_found(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It leaves; we find it in neither list, and before we know that it is back and listed."""
    world = World()
    await world.add(A)
    async with world.watching() as watcher:
        world.script.add(
            Fault(request_seconds=1), verb="get", path=f"{ROOT}/available/readonly/{A}"
        )
        await world.remove(A)
        await trio.sleep(0.5)
        await world.add(A)
        await trio.sleep(0.51)
        assert watcher.bookies == Bookies(frozenset({A})), "dropped, and about to be found"
        assert world.script.is_played_out
        await until(lambda: A in watcher.bookies.info)


async def test_a_bookie_that_flickers_is_followed_to_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Leaves and returns, in every interleaving that late watches make possible."""
    for seed in range(40):
        chance = random.Random(seed)
        world = World()
        late = world.metadata.connect(
            lambda _, chance=chance: Fault(  # type: ignore[misc]
                request_seconds=chance.random() / 10, watch_seconds=chance.random() / 5
            )
        )
        watcher = BookieWatcher(late, ROOT)
        async with trio.open_nursery() as nursery:
            await nursery.start(watcher.run)
            for _ in range(5):
                await world.add(A)
                await trio.sleep(chance.random() / 4)
                await world.remove(A)
                await trio.sleep(chance.random() / 4)
            await world.add(A)
            expected = Bookies(frozenset({A}), frozenset(), {A: info_of(A)})
            await until(lambda watcher=watcher, expected=expected: watcher.bookies == expected)  # type: ignore[misc]
            await world.remove(A)
            await until(lambda watcher=watcher: watcher.bookies == Bookies())  # type: ignore[misc]
            nursery.cancel_scope.cancel()
