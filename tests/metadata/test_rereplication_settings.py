"""The switch, the delay and the check times: bytes of Java, and meaning of every write."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from metadata.faults import NEVER, Fault, Outcome, Request, Script
from metadata.memory import MemoryMetadata
from metadata.paths import ClusterPaths
from metadata.records import decode_check_time
from metadata.rereplication_settings import (
    AlreadyDisabledError,
    AlreadyEnabledError,
    Delay,
    PeriodicCheck,
    RereplicationSettings,
)
from metadata.store import ANY_VERSION, MetadataStore
from tests.metadata.places import Place, place, planted, until
from wire.errors import LedgerError

__all__ = ["place"]

ROOT = "/ledgers"
PATHS = ClusterPaths(ROOT)
CAPTURED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "underreplication.json").read_text()
)


def settings_of(store: MetadataStore, root: str = ROOT) -> RereplicationSettings:
    return RereplicationSettings(store, root, chance=random.Random(1))


class World:
    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        planted(self.metadata, [PATHS.underreplication])
        self.script = Script()
        self.store = self.metadata.connect(self.script)
        self.settings = settings_of(self.store)
        self.other = settings_of(self.metadata.connect())

    def expire(self) -> None:
        assert self.store.session is not None
        self.metadata.expire(self.store.session)


# ---------------------------------------------------------------------- pause


async def test_re_replication_is_disabled_and_enabled(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        settings = settings_of(store, place.root)
        assert await settings.is_enabled()
        await settings.wait_enabled()
        with pytest.raises(AlreadyEnabledError):
            await settings.enable()
        await settings.disable()
        assert not await settings.is_enabled()
        node = await store.get(f"{place.root}/underreplication/disable")
        assert (node.data, node.stat.owner) == (b"", None)
        with pytest.raises(AlreadyDisabledError):
            await settings.disable()
        await settings.enable()
        assert await settings.is_enabled()


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_the_switch_knows_its_own_lost_answer(
    outcome: Outcome, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    world.script.add(Fault(outcome=outcome), verb="create")
    await world.settings.disable()
    assert not await world.other.is_enabled()
    world.script.add(Fault(outcome=outcome), verb="delete")
    await world.settings.enable()
    assert world.script.is_played_out
    assert await world.other.is_enabled()


async def test_waiting_ends_with_the_pause(place: Place) -> None:
    async with place.connected() as one, place.connected() as two:
        await one.create(place.root)
        await settings_of(one, place.root).disable()
        with trio.move_on_after(0.3) as waited:
            await settings_of(one, place.root).wait_enabled()
        assert waited.cancelled_caught
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(settings_of(one, place.root).wait_enabled)
                await settings_of(two, place.root).enable()


@pytest.mark.parametrize("trouble", ["lost session", "lost watch", "away"])
async def test_waiting_outlasts_trouble(
    trouble: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    await world.other.disable()
    if trouble == "lost watch":
        world.script.add(Fault(watch_seconds=NEVER), verb="exists", skip=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.settings.wait_enabled)
        await trio.testing.wait_all_tasks_blocked()
        if trouble == "lost session":
            world.expire()
        if trouble == "away":
            world.metadata.available = False
            world.expire()
            await trio.sleep(30)
            world.metadata.available = True
        await trio.sleep(30)
        assert nursery.child_tasks, "still paused"
        await world.other.enable()


async def test_asking_leaves_no_watch_behind() -> None:
    watched = []

    def record(request: Request) -> None:
        watched.append(request.watched)

    world = World()
    await settings_of(world.metadata.connect(record)).wait_enabled()
    assert watched == [False]


# ---------------------------------------------------------------------- delay


async def test_the_delay_is_made_by_the_first_auditor(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        settings = settings_of(store, place.root)
        assert await settings.delay() is None
        first = await settings.ensure_delay(15)
        assert first.seconds == 15
        assert await settings.ensure_delay(0) == first, "the cluster's value counts"
        await settings.set_delay(30)
        found = await settings.delay()
        assert found is not None
        assert found.seconds == 30
        node = await store.get(f"{place.root}/underreplication/lostBookieRecoveryDelay")
        assert (node.data, node.stat.version) == (b"30", 1)


async def test_the_delay_is_open_to_everybody() -> None:
    for name in ("ensure_delay", "set_delay"):
        world = World()
        await getattr(world.settings, name)(0)
        znode = world.metadata.tree.get(PATHS.lost_bookie_recovery_delay)
        assert znode.data == b"0"
        assert znode.open_acl


async def test_the_delay_is_written_as_java_writes_it() -> None:
    """`lostbookierecoverydelay -s 15`, then `triggeraudit`: two writes with the same bytes."""
    sequence = next(s for s in CAPTURED["sequences"] if s["name"].startswith("lostbookie"))
    expected = [
        op["data_hex"]
        for op in sequence["ops"]
        if op["op"] == "set" and op["path"].endswith("lostBookieRecoveryDelay")
    ]
    assert len(expected) >= 2
    world = World()
    await world.settings.ensure_delay(0)
    written = []
    await world.settings.set_delay(15)
    written.append(world.metadata.tree.get(PATHS.lost_bookie_recovery_delay).data.hex())
    await world.settings.trigger_audit()
    written.append(world.metadata.tree.get(PATHS.lost_bookie_recovery_delay).data.hex())
    assert written == expected[:2]
    assert world.metadata.tree.get(PATHS.lost_bookie_recovery_delay).version == 2


def test_a_write_asks_for_an_audit_by_its_value() -> None:
    before = Delay(15, (1, 0))
    assert Delay(15, (1, 1)).asks_for_audit(before), "the same value again"
    assert Delay(0, (1, 1)).asks_for_audit(before), "no delay any more"
    assert not Delay(20, (1, 1)).asks_for_audit(before)
    assert not before.asks_for_audit(before), "not a write at all"


async def test_an_auditor_hears_of_every_write(place: Place) -> None:
    async with place.connected() as one, place.connected() as two:
        await one.create(place.root)
        mine, theirs = settings_of(one, place.root), settings_of(two, place.root)
        seen = await mine.ensure_delay(15)
        heard: list[Delay] = []

        async def listen() -> None:
            last = seen
            while len(heard) < 2:
                last = await mine.wait_delay_written(last)
                heard.append(last)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                await theirs.set_delay(40)
                await until(lambda: len(heard) == 1)
                await theirs.trigger_audit()
        assert [delay.seconds for delay in heard] == [40, 40]
        assert not heard[0].asks_for_audit(seen)
        assert heard[1].asks_for_audit(heard[0])


@pytest.mark.parametrize("trouble", ["lost session", "lost watch", "removed", "junk"])
async def test_an_auditor_hears_of_a_write_in_spite_of_trouble(
    trouble: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    seen = await world.settings.ensure_delay(15)
    heard: list[Delay] = []

    async def listen() -> None:
        heard.append(await world.settings.wait_delay_written(seen))

    if trouble == "lost watch":
        world.script.add(Fault(watch_seconds=NEVER), verb="exists")
    path = PATHS.lost_bookie_recovery_delay
    other = world.metadata.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        if trouble == "lost session":
            world.metadata.available = False
            world.expire()
            await trio.sleep(10)
            world.metadata.available = True
        elif trouble == "removed":
            await other.delete(path, version=ANY_VERSION)
        elif trouble == "junk":
            await other.set(path, b"soon", version=ANY_VERSION)
        await trio.testing.wait_all_tasks_blocked()
        assert not heard
        await world.other.set_delay(15)
        await until(lambda: bool(heard))
    assert heard[0].seconds == 15
    assert heard[0].asks_for_audit(seen)


@pytest.mark.parametrize("seconds", [-1, 2**31])
async def test_an_impossible_delay_is_refused(seconds: int) -> None:
    world = World()
    with pytest.raises(LedgerError):
        await world.settings.set_delay(seconds)


async def test_settings_survive_lost_answers(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create")
    assert (await world.settings.ensure_delay(7)).seconds == 7
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="set")
    await world.settings.set_delay(8)
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create")
    await world.settings.set_last_check_ms(PeriodicCheck.REPLICAS, 9)
    assert world.script.is_played_out
    delay = await world.other.delay()
    assert delay is not None
    assert delay.seconds == 8
    assert await world.other.last_check_ms(PeriodicCheck.REPLICAS) == 9


# ---------------------------------------------------------------------- periodic checks


async def test_check_times_have_the_bytes_and_places_of_java(place: Place) -> None:
    nodes = [node for node in CAPTURED["nodes"] if node["kind"] == "CTime"]
    assert nodes
    async with place.connected() as store:
        await store.create(place.root)
        settings = settings_of(store, place.root)
        by_name = {
            "checkallledgersctime": PeriodicCheck.ALL_LEDGERS,
            "placementpolicycheckctime": PeriodicCheck.PLACEMENT_POLICY,
            "replicascheckctime": PeriodicCheck.REPLICAS,
        }
        for node in nodes:
            name = node["path"].rpartition("/")[2]
            time_ms = decode_check_time(bytes.fromhex(node["data_hex"]))
            assert time_ms is not None
            await settings.set_last_check_ms(by_name[name], time_ms)
            found = await store.get(f"{place.root}/underreplication/{name}")
            assert found.data.hex() == node["data_hex"]
            assert await settings.last_check_ms(by_name[name]) == time_ms


async def test_a_check_that_never_ran_has_no_time() -> None:
    world = World()
    for check in PeriodicCheck:
        assert await world.settings.last_check_ms(check) is None
