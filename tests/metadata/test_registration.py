"""A bookie in the lists: entering, switching, and coming back after its session expired."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from metadata.faults import NEVER, Fault, Outcome, Request, Script
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.registration import BookieIdInUseError, BookieMode, Registration
from metadata.service_info import bookie_service_info, decode_service_info
from metadata.store import MetadataStore, NoNodeError, StoreUnavailableError
from metadata.update import Backoff
from tests.metadata.places import Place, place, planted, until
from wire.types import BookieId

__all__ = ["place"]

ROOT = "/ledgers"
BK = BookieId("127.0.0.1:33811")
INFO = bookie_service_info(host="127.0.0.1", port=33811)
WRITABLE, READ_ONLY = BookieMode.WRITABLE, BookieMode.READ_ONLY
CAPTURED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "registration.json").read_text()
)


def registration_of(
    store: MetadataStore, root: str = ROOT, bookie_id: BookieId = BK, **kwargs: Any
) -> Registration:
    return Registration(store, root, bookie_id, INFO, chance=random.Random(2), **kwargs)


class World:
    """A cluster of memory, one bookie in it, and a record of what it wrote."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        planted(self.metadata, [f"{ROOT}/available/readonly"])
        self.script = Script()
        self.writes: list[tuple[str, str]] = []
        self.store: MemoryStore = self.metadata.connect(self._faults)
        self.registration = registration_of(self.store)

    def _faults(self, request: Request) -> Fault | None:
        if request.writes:
            self.writes.append((request.verb, request.path.removeprefix(ROOT)))
        return self.script(request)

    @property
    def lists(self) -> tuple[bool, bool]:
        return (
            self.metadata.tree.find(f"{ROOT}/available/{BK}") is not None,
            self.metadata.tree.find(f"{ROOT}/available/readonly/{BK}") is not None,
        )

    def expire(self, *, silently: bool = False) -> None:
        assert self.store.session is not None
        self.metadata.expire(self.store.session, silently=silently)


def captured_writes(name: str) -> list[tuple[str, str]]:
    """What Java wrote below `available`, failed deletes included."""
    sequence = next(
        item for item in CAPTURED if item["kind"] == "sequence" and item["name"] == name
    )
    writes = []
    for op in sequence["ops"]:
        if op["op"] in ("create", "delete") and "/available/" in op["path"]:
            writes.append((op["op"], "/" + op["path"].split("/", 2)[2]))
        elif op["op"] == "error":
            writes.append(("delete", f"/available/{BK}"))  # NoNode: it was not writable before
    return writes


async def test_a_bookie_enters_the_list_of_its_mode(place: Place) -> None:
    async with place.connected() as store:
        await store.create(f"{place.root}/available/readonly", parents=True)
        registration = registration_of(store, place.root)
        await registration.register(WRITABLE)
        assert registration.is_registered
        node = await store.get(f"{place.root}/available/{BK}")
        assert node.stat.owner == store.session
        assert decode_service_info(node.data, BK) == INFO

        await registration.switch(READ_ONLY)
        assert (await store.children(f"{place.root}/available"))[0] == ["readonly"]
        node = await store.get(f"{place.root}/available/readonly/{BK}")
        assert node.stat.owner == store.session
        assert decode_service_info(node.data, BK) == INFO

        await registration.switch(WRITABLE)
        assert (await store.children(f"{place.root}/available"))[0] == [BK, "readonly"]
        assert (await store.children(f"{place.root}/available/readonly"))[0] == []

        await registration.unregister()
        assert (await store.children(f"{place.root}/available"))[0] == ["readonly"]


async def test_the_node_goes_with_the_session(place: Place) -> None:
    async with place.connected() as other:
        await other.create(f"{place.root}/available/readonly", parents=True)
        async with place.connected() as store:
            await registration_of(store, place.root).register(WRITABLE)
            assert await other.exists(f"{place.root}/available/{BK}") is not None
        assert await other.exists(f"{place.root}/available/{BK}") is None


async def test_payload_bytes_are_those_of_java() -> None:
    world = World()
    await world.registration.register(WRITABLE)
    plain = next(item for item in CAPTURED if item["name"] == "plain")
    assert world.metadata.tree.get(f"{ROOT}/available/{BK}").data.hex() == plain["data_hex"]


async def test_a_start_in_read_only_mode_writes_what_java_writes() -> None:
    world = World()
    await world.registration.register(READ_ONLY)
    assert world.writes == captured_writes("force-readonly")


async def test_switching_writes_what_java_writes_in_that_order() -> None:
    """Into the new list first: never in neither, or a bookie would look lost."""
    world = World()
    await world.registration.register(WRITABLE)
    world.writes.clear()
    await world.registration.switch(READ_ONLY)
    assert world.writes == captured_writes("http-to-readonly")
    world.writes.clear()
    await world.registration.switch(WRITABLE)
    assert world.writes == captured_writes("http-to-writable")
    world.writes.clear()
    await world.registration.switch(WRITABLE)
    assert world.writes == []


async def test_a_node_of_our_own_session_is_left_with_its_payload() -> None:
    world = World()
    path = f"{ROOT}/available/{BK}"
    await world.store.create(path, b"older", ephemeral=True)
    await world.registration.register(WRITABLE)
    assert world.metadata.tree.get(path).data == b"older"


async def test_the_read_only_list_is_made_if_it_is_missing() -> None:
    metadata = MemoryMetadata()
    planted(metadata, [f"{ROOT}/available"])
    await registration_of(metadata.connect()).register(READ_ONLY)
    assert metadata.tree.get(f"{ROOT}/available/readonly").data == b""


async def test_no_bookie_registers_without_a_cluster() -> None:
    metadata = MemoryMetadata()
    with pytest.raises(NoNodeError, match="not initialised"):
        await registration_of(metadata.connect()).register(WRITABLE)
    assert metadata.tree.find(ROOT) is None


# ---------------------------------------------------------------------- another owner


async def test_the_node_of_an_earlier_session_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A restart is faster than the expiry of the old session."""
    world = World()
    earlier = world.metadata.connect()
    await registration_of(earlier).register(WRITABLE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registration.register, WRITABLE)
        await trio.sleep(7)
        assert world.writes == []
        await earlier.close()
    assert world.registration.is_registered
    assert world.metadata.tree.get(f"{ROOT}/available/{BK}").owner == world.store.session


async def test_another_owner_that_stays_is_named(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    other = world.metadata.connect()
    await registration_of(other).register(WRITABLE)
    started = trio.current_time()
    with pytest.raises(BookieIdInUseError, match=f"0x{other.session:x}"):
        await world.registration.register(WRITABLE)
    assert 10 <= trio.current_time() - started < 11
    assert not world.registration.is_registered


async def test_a_node_that_nobody_owns_is_in_the_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    planted(world.metadata, [f"{ROOT}/available/{BK}"])
    with pytest.raises(BookieIdInUseError, match="not ephemeral"):
        await world.registration.register(WRITABLE)


async def test_a_lost_watch_on_the_earlier_node_does_not_end_the_bookie(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    earlier = world.metadata.connect()
    await registration_of(earlier).register(WRITABLE)
    world.script.add(Fault(watch_seconds=NEVER), verb="exists")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registration.register, WRITABLE)
        await trio.sleep(3)
        await earlier.close()
    assert world.registration.is_registered


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_a_create_whose_answer_was_lost_is_looked_up(
    outcome: Outcome, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    world.script.add(Fault(outcome=outcome), verb="create")
    await world.registration.register(WRITABLE)
    assert world.script.is_played_out
    assert world.registration.is_registered
    assert world.metadata.tree.get(f"{ROOT}/available/{BK}").owner == world.store.session


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_session_that_ends_during_registration_is_replaced(
    moment: Any, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    world.script.add(Fault(expires=moment), verb="create")
    await world.registration.register(WRITABLE)
    assert world.script.is_played_out
    assert world.metadata.tree.get(f"{ROOT}/available/{BK}").owner == world.store.session


async def test_a_bookie_that_cannot_leave_the_writable_list_says_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.registration.register(WRITABLE)
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="delete", times=1000)
    with pytest.raises(StoreUnavailableError):
        await world.registration.switch(READ_ONLY)
    assert world.lists == (True, True)


async def test_a_bookie_that_cannot_leave_the_read_only_list_goes_on(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    await world.registration.register(READ_ONLY)
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="delete", times=1000)
    await world.registration.switch(WRITABLE)
    assert world.lists == (True, True)
    assert "read-only list" in caplog.text


async def test_a_switch_that_failed_can_be_tried_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.registration.register(WRITABLE)
    world.metadata.available = False
    with pytest.raises(StoreUnavailableError):
        await world.registration.switch(READ_ONLY)
    world.metadata.available = True
    assert world.lists == (True, False)
    await world.registration.switch(READ_ONLY)
    assert world.lists == (False, True)


# ---------------------------------------------------------------------- expiry


async def test_a_bookie_comes_back_after_its_session_expired(place: Place) -> None:
    async with place.connected() as store, place.connected() as other:
        await store.create(f"{place.root}/available/readonly", parents=True)
        registration = registration_of(store, place.root)
        await registration.register(READ_ONLY)
        before = store.session
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registration.keep)
            await place.expire(store)
            await until(lambda: registration.is_registered and store.session != before)
            stat = await other.exists(f"{place.root}/available/readonly/{BK}")
            assert stat is not None
            assert stat.owner == store.session
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mode", list(BookieMode))
async def test_a_bookie_registers_again_in_its_mode(
    mode: BookieMode, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    await world.registration.register(WRITABLE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registration.keep)
        await world.registration.switch(mode)
        expected = (mode is WRITABLE, mode is READ_ONLY)
        for _ in range(3):
            world.expire()
            assert world.lists == (False, False)
            await until(lambda: world.registration.is_registered)
            assert world.lists == expected
        nursery.cancel_scope.cancel()


async def test_a_bookie_registers_again_however_long_the_store_is_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.registration.register(WRITABLE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registration.keep)
        world.metadata.available = False
        world.expire()
        await trio.sleep(3600)
        assert not world.registration.is_registered
        world.metadata.available = True
        await until(lambda: world.registration.is_registered)
        assert world.lists == (True, False)
        nursery.cancel_scope.cancel()


async def test_a_connection_that_is_down_changes_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.registration.register(WRITABLE)
    world.writes.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registration.keep)
        world.metadata.available = False
        await trio.sleep(3600)
        world.metadata.available = True
        await trio.sleep(3600)
        nursery.cancel_scope.cancel()
    assert world.writes == []
    assert world.lists == (True, False)


async def test_a_mode_changed_while_away_is_the_one_registered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The disk fills up while there is no session: the bookie must come back read-only."""
    world = World()
    fast = Backoff(attempts_max=2, first_seconds=0.01)
    registration = registration_of(world.store, backoff=fast)
    await registration.register(WRITABLE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registration.keep)
        world.metadata.available = False
        world.expire()
        await trio.sleep(1)
        with pytest.raises(StoreUnavailableError):
            await registration.switch(READ_ONLY)
        world.metadata.available = True
        await until(lambda: registration.is_registered)
        assert registration.mode is READ_ONLY
        assert world.lists == (False, True)
        nursery.cancel_scope.cancel()


async def test_an_id_taken_while_away_ends_the_bookie(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.registration.register(WRITABLE)
    world.expire()
    await registration_of(world.metadata.connect()).register(WRITABLE)
    with pytest.raises(BookieIdInUseError):
        await world.registration.keep()


async def test_a_bookie_that_left_does_not_come_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.registration.register(WRITABLE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registration.keep)
        await world.registration.unregister()
        assert world.lists == (False, False)
        world.expire()
        await trio.sleep(60)
    assert world.lists == (False, False)


async def test_leaving_spares_the_node_of_whoever_came_after_us(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    await world.registration.register(WRITABLE)
    world.expire(silently=True)
    await registration_of(world.metadata.connect()).register(WRITABLE)
    await world.registration.unregister()
    assert world.lists == (True, False)
