"""Cookies in the store: conditional, certain about absence, and Java's bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from metadata.cookie import Cookie, InvalidCookieError, decode_cookie
from metadata.cookies import CookieChangedError, CookieExistsError, Cookies, NoCookieError
from metadata.faults import Fault, Outcome, Script
from metadata.memory import MemoryMetadata
from metadata.store import ANY_VERSION, ConnectionLostError, NoNodeError
from tests.metadata.places import Place, place, planted
from wire.types import BookieId

__all__ = ["place"]

ROOT = "/ledgers"
BK1, BK2 = BookieId("bk1:3181"), BookieId("bk2:3181")
COOKIE = Cookie.of(
    bookie_id=BK1, journal_dirs=["/j"], ledger_dirs=["/l1", "/l2"], instance_id="some-cluster"
)
WIDER = Cookie.of(
    bookie_id=BK1,
    journal_dirs=["/j"],
    ledger_dirs=["/l1", "/l2", "/l3"],
    instance_id="some-cluster",
)
CAPTURED: list[dict[str, Any]] = [
    item
    for item in json.loads((Path(__file__).parent.parent / "vectors" / "cookies.json").read_text())
    if item["kind"] == "cookie"
]


class World:
    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        planted(self.metadata, [ROOT])
        self.script = Script()
        self.store = self.metadata.connect(self.script)
        self.cookies = Cookies(self.store, ROOT)
        self.other = Cookies(self.metadata.connect(), ROOT)


async def test_a_cookie_is_created_read_changed_and_forgotten(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        cookies = Cookies(store, place.root)
        assert await cookies.bookies() == []
        assert await cookies.find(BK1) is None
        with pytest.raises(NoCookieError, match="bk1:3181"):
            await cookies.read(BK1)

        created = await cookies.create(COOKIE)
        assert created == await cookies.read(BK1) == await cookies.find(BK1)
        assert created.version == 0
        await cookies.create(replace(COOKIE, bookie_id=BK2))
        assert await cookies.bookies() == [BK1, BK2]

        changed = await cookies.update(WIDER, version=0)
        assert (changed.version, changed.cookie) == (1, WIDER)
        with pytest.raises(CookieChangedError):
            await cookies.update(COOKIE, version=0)
        with pytest.raises(CookieChangedError):
            await cookies.delete(BK1, version=0)
        await cookies.delete(BK1, version=1)
        assert await cookies.bookies() == [BK2]
        with pytest.raises(NoCookieError):
            await cookies.delete(BK1, version=ANY_VERSION)
        with pytest.raises(NoCookieError):
            await cookies.update(COOKIE, version=0)


async def test_a_cookie_that_exists_is_not_overwritten() -> None:
    world = World()
    await world.other.create(COOKIE)
    with pytest.raises(CookieExistsError, match="another bookie"):
        await world.cookies.create(WIDER)
    assert (await world.cookies.read(BK1)).cookie == COOKIE


@pytest.mark.parametrize("captured", CAPTURED, ids=lambda item: str(item["name"]))
async def test_a_cookie_is_stored_where_java_stores_it(captured: dict[str, Any]) -> None:
    """Cookies of this version come out to the byte, with the `cookies` node made on demand."""
    path: str = captured["path"]
    data = bytes.fromhex(captured["data_hex"])
    root = path.rpartition("/cookies/")[0]
    metadata = MemoryMetadata()
    planted(metadata, [root])
    cookie = decode_cookie(data, source=path)
    await Cookies(metadata.connect(), root).create(cookie)
    assert metadata.tree.get(path).data == data
    assert metadata.tree.get(f"{root}/cookies").data == b""


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_a_create_whose_answer_was_lost_is_ours(outcome: Outcome) -> None:
    world = World()
    planted(world.metadata, [f"{ROOT}/cookies"])
    world.script.add(Fault(outcome=outcome), verb="create")
    created = await world.cookies.create(COOKIE)
    assert world.script.is_played_out
    assert created == await world.other.read(BK1)


async def test_a_create_that_was_lost_to_another_bookie_is_not_ours() -> None:
    world = World()
    planted(world.metadata, [f"{ROOT}/cookies"])
    await world.other.create(WIDER)
    world.script.add(Fault(outcome=Outcome.REQUEST_LOST), verb="create")
    with pytest.raises(CookieExistsError):
        await world.cookies.create(COOKIE)


async def test_an_update_whose_answer_was_lost_is_ours() -> None:
    world = World()
    await world.cookies.create(COOKIE)
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="set")
    assert (await world.cookies.update(WIDER, version=0)).version == 1
    world.script.add(Fault(outcome=Outcome.REQUEST_LOST), verb="set")
    with pytest.raises(ConnectionLostError):
        await world.cookies.update(COOKIE, version=1)


async def test_a_delete_whose_answer_was_lost_is_settled_by_looking() -> None:
    world = World()
    await world.cookies.create(COOKIE)
    world.script.add(Fault(outcome=Outcome.REQUEST_LOST), verb="delete")
    with pytest.raises(ConnectionLostError):
        await world.cookies.delete(BK1, version=0)
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="delete")
    await world.cookies.delete(BK1, version=0)
    assert world.script.is_played_out
    assert await world.other.find(BK1) is None


async def test_absence_is_asked_past_a_lagging_follower() -> None:
    """A bookie that takes itself for new stamps its directories: it had better be right."""
    world = World()
    world.store.lag()
    await world.other.create(COOKIE)
    found = await world.cookies.find(BK1)
    assert found is not None
    assert found.cookie == COOKIE


async def test_an_unreadable_cookie_is_not_a_missing_one() -> None:
    world = World()
    planted(world.metadata, [f"{ROOT}/cookies/{BK1}"], b"what is this")
    with pytest.raises(InvalidCookieError):
        await world.cookies.find(BK1)


async def test_names_that_are_no_bookies_are_ignored(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    planted(world.metadata, [f"{ROOT}/cookies/{BK1}", f"{ROOT}/cookies/a b"])
    assert await world.cookies.bookies() == [BK1]
    assert "a b" in caplog.text


async def test_a_cookie_is_not_written_without_a_cluster() -> None:
    metadata = MemoryMetadata()
    with pytest.raises(NoNodeError):
        await Cookies(metadata.connect(), ROOT).create(COOKIE)
    assert metadata.tree.find(ROOT) is None
