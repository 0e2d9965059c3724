"""Ledgers in the tree: creating, deleting, following one, and the walk over all of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from metadata.codec import encode_ledger_metadata
from metadata.faults import NEVER, Fault, Outcome, Script
from metadata.ledger_ids import DrawnId
from metadata.ledger_walk import LedgerRange
from metadata.ledgers import LedgerExistsError, Ledgers, LedgerWatch
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.model import InvalidMetadataError, new_ledger
from metadata.paths import LayoutType, LedgerPaths
from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    MetadataStore,
    NoNodeError,
    Stat,
    StoreUnavailableError,
)
from metadata.update import Close, FinishRecovery, LedgerGoneError, StartRecovery
from tests.metadata.places import Place, chance, dump, place, planted
from wire.types import BookieId, DigestType, LedgerId

__all__ = ["chance", "place"]

ROOT = "/ledgers"
VECTORS = Path(__file__).parent.parent / "vectors"
TEMPLATE = new_ledger(
    ledger_id=LedgerId(0),
    ensemble=[BookieId("bk1:3181")],
    write_quorum=1,
    ack_quorum=1,
    digest_type=DigestType.CRC32C,
    password=b"pw",
)


def ledgers_of(
    store: MetadataStore, layout: LayoutType = LayoutType.HIERARCHICAL, root: str = ROOT
) -> Ledgers:
    return Ledgers(store, root, layout, chance=random.Random(5))


class World:
    def __init__(self, layout: LayoutType = LayoutType.HIERARCHICAL) -> None:
        self.metadata = MemoryMetadata()
        planted(self.metadata, [ROOT])
        self.script = Script()
        self.store: MemoryStore = self.metadata.connect(self.script)
        self.paths = LedgerPaths(ROOT, layout)
        self.ledgers = ledgers_of(self.store, layout)

    def plant(self, *ids: int) -> None:
        planted(self.metadata, (self.paths.path_of(LedgerId(number)) for number in ids))

    def has(self, path: str) -> bool:
        return self.metadata.tree.find(path) is not None


async def walk(ledgers: Ledgers) -> list[tuple[LedgerId, ...]]:
    return [found.ids async for found in ledgers.ranges()]


# ---------------------------------------------------------------------- against Java's trees


@pytest.mark.parametrize(
    ("moment", "layout"),
    [
        ("layout-long", LayoutType.LONG_HIERARCHICAL),
        ("layout-flat", LayoutType.FLAT),
        ("layout-legacy", LayoutType.LEGACY_HIERARCHICAL),
        ("layout-null", LayoutType.HIERARCHICAL),
    ],
)
async def test_ledgers_lie_where_java_put_them(
    moment: str, layout: LayoutType, place: Place
) -> None:
    """Two drawn ids, then chosen ones, then two deletes: the same nodes as in the captured run.

    Ids that two of the layouts cannot tell apart are refused by us and left out here.
    """
    moments = json.loads((VECTORS / "metadata-tree.json").read_text())["moments"]
    captured = next(item for item in moments if item["moment"] == moment)
    old_root = captured["uri"].rpartition("2181")[2]
    paths = LedgerPaths(place.root, layout)

    def is_known(path: str) -> bool:
        name = path.rpartition("/")[2]
        if not (name[0] == "L" and name[1:].isdigit()):
            return False
        try:
            ledger_id = paths.id_of(place.root + path.removeprefix(old_root))
        except InvalidMetadataError:
            return False
        return ledger_id <= paths.id_max

    everything = {node["path"] for node in captured["nodes"]}
    known = {path for path in everything if is_known(path)}
    special = {p for p in everything if not p.removeprefix(old_root)[1:2].isdigit()} - {
        p for p in everything if p.rpartition("/")[2][1:].isdigit()
    }
    remaining = {p for p in captured["paths_after_deleting_12345_and_4294967296"] if is_known(p)}

    async with place.connected() as store:
        for path in sorted(special - {f"{old_root}/idgen"}):
            await store.create(place.root + path.removeprefix(old_root))
        ledgers = ledgers_of(store, layout, place.root)
        first = await ledgers.create(TEMPLATE)
        second = await ledgers.create(TEMPLATE)
        drawn = {first.metadata.ledger_id, second.metadata.ledger_id}
        all_ids = {paths.id_of(place.root + path.removeprefix(old_root)) for path in known}
        assert drawn == set(sorted(all_ids)[:2])
        for ledger_id in sorted(all_ids - drawn):
            await ledgers.create(TEMPLATE, ledger_id=ledger_id)

        def below_root(tree: dict[str, bytes]) -> set[str]:
            return {old_root + path.removeprefix(place.root) for path in tree}

        found = below_root(await dump(store, place.root))
        assert {path for path in found if is_known(path)} == known
        parents = {p for p in found - special if p.rpartition("/")[2].isdigit()}
        assert parents == {p for path in known for p in _parents(path, old_root)}

        for ledger_id in map(LedgerId, (12345, 4294967296)):
            if ledger_id <= paths.id_max:
                await ledgers.delete(ledger_id)
        found = below_root(await dump(store, place.root))
        assert {path for path in found if is_known(path)} == remaining
        kept = known if layout is LayoutType.LEGACY_HIERARCHICAL else remaining
        parents = {p for p in found - special if p.rpartition("/")[2].isdigit()}
        assert parents == {p for path in kept for p in _parents(path, old_root)}


def _parents(path: str, root: str) -> list[str]:
    parts = path.removeprefix(root + "/").split("/")[:-1]
    return [root + "/" + "/".join(parts[: i + 1]) for i in range(len(parts))]


# ---------------------------------------------------------------------- create


async def test_create_stores_the_record_with_a_fresh_token(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        ledgers = ledgers_of(store, root=place.root)
        created = await ledgers.create(TEMPLATE)
        assert created.version == 0
        assert created.metadata.ledger_id == 0
        assert 0 < created.metadata.creator_token < 2**63 - 1
        found = await ledgers.read(LedgerId(0))
        assert found.metadata == created.metadata
        assert found.created_ms is not None
        again = await ledgers.create(TEMPLATE)
        assert again.metadata.creator_token != created.metadata.creator_token


async def test_create_with_a_chosen_id_that_is_taken_is_an_error() -> None:
    world = World()
    await world.ledgers.create(TEMPLATE, ledger_id=LedgerId(77))
    with pytest.raises(LedgerExistsError, match="ledger 77"):
        await world.ledgers.create(TEMPLATE, ledger_id=LedgerId(77))


async def test_create_draws_again_while_ids_are_taken() -> None:
    """The counter was reset, or other clients chose these ids themselves."""
    world = World()
    world.plant(0, 1, 2)
    created = await world.ledgers.create(TEMPLATE)
    assert created.metadata.ledger_id == 3
    assert not world.metadata.tree.get(f"{ROOT}/idgen").children


async def test_create_stops_drawing_at_some_point() -> None:
    class Stuck:
        async def draw(self) -> DrawnId:
            return DrawnId(LedgerId(1), f"{ROOT}/idgen/ID-0000000001")

        async def discard(self, drawn: DrawnId) -> None:
            pass

    world = World()
    world.plant(1)
    ledgers = Ledgers(
        world.store, ROOT, LayoutType.HIERARCHICAL, chance=random.Random(1), ids=Stuck()
    )
    with pytest.raises(LedgerExistsError, match="in a row"):
        await ledgers.create(TEMPLATE)


@pytest.mark.parametrize("chosen", [None, LedgerId(9)])
@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_create_recognises_its_own_token_after_a_lost_answer(
    chosen: LedgerId | None, outcome: Outcome, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    world.plant(8)  # so that the parents exist and the fault meets the ledger itself
    path = world.paths.path_of(chosen or LedgerId(0))
    world.script.add(Fault(outcome=outcome), verb="create", path=path)
    created = await world.ledgers.create(TEMPLATE, ledger_id=chosen)
    assert world.script.is_played_out
    assert created.metadata.ledger_id == (chosen or 0)
    assert created.version == 0
    assert world.metadata.tree.get(path).data == encode_ledger_metadata(created.metadata)


async def test_create_after_a_lost_request_finds_the_ledger_of_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    path = world.paths.path_of(LedgerId(9))
    other = encode_ledger_metadata(replace(TEMPLATE, ledger_id=LedgerId(9), creator_token=5))
    world.script.add(Fault(outcome=Outcome.REQUEST_LOST), verb="create", path=path)
    world.script.add(
        Fault(meanwhile=lambda: planted(world.metadata, [path], other)), verb="create", path=path
    )
    with pytest.raises(LedgerExistsError):
        await world.ledgers.create(TEMPLATE, ledger_id=LedgerId(9))
    assert world.script.is_played_out


async def test_create_in_an_older_format_cannot_claim_what_it_finds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Without a token our own lost create looks like anybody's: take the next id."""
    world = World()
    world.plant(8)
    path = world.paths.path_of(LedgerId(0))
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create", path=path)
    created = await world.ledgers.create(replace(TEMPLATE, format_version=2))
    assert created.metadata.ledger_id == 1
    assert created.metadata.creator_token == 0


async def test_create_makes_parents_again_when_they_vanish() -> None:
    """Another client deletes the last ledger below, and with it the directories we just made."""
    world = World()
    path = world.paths.path_of(LedgerId(9))
    directory = path.rpartition("/")[0]

    def vanish() -> None:
        world.metadata.tree.delete(directory, ANY_VERSION)
        world.metadata.publish()

    world.script.add(Fault(meanwhile=vanish), verb="create", path=path, skip=1)
    await world.ledgers.create(TEMPLATE, ledger_id=LedgerId(9))
    assert world.script.is_played_out
    assert world.has(path)


async def test_create_does_not_make_the_root() -> None:
    metadata = MemoryMetadata()
    with pytest.raises(NoNodeError, match="not initialised"):
        await ledgers_of(metadata.connect()).create(TEMPLATE, ledger_id=LedgerId(9))
    assert metadata.tree.find(ROOT) is None


async def test_create_passes_errors_on_as_they_are(autojump_clock: trio.testing.MockClock) -> None:
    """Not wrapped in a group, although the discard of the id runs beside it."""
    world = World()
    path = world.paths.path_of(LedgerId(0))
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="create", path=path, times=100)
    with pytest.raises(StoreUnavailableError):
        await world.ledgers.create(TEMPLATE)
    assert not world.metadata.tree.get(f"{ROOT}/idgen").children


@pytest.mark.parametrize("layout", [LayoutType.FLAT, LayoutType.LEGACY_HIERARCHICAL])
async def test_create_refuses_ids_that_the_layout_would_confuse(layout: LayoutType) -> None:
    world = World(layout)
    with pytest.raises(InvalidMetadataError, match="2147483647"):
        await world.ledgers.create(TEMPLATE, ledger_id=LedgerId(2147483647))


# ---------------------------------------------------------------------- read, update, delete


async def test_reading_a_ledger_that_is_not_there(place: Place) -> None:
    async with place.connected() as store:
        with pytest.raises(LedgerGoneError):
            await ledgers_of(store, root=place.root).read(LedgerId(5))


async def test_update_goes_through_the_loop(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        ledgers = ledgers_of(store, root=place.root)
        created = await ledgers.create(TEMPLATE)
        await ledgers.update(LedgerId(0), StartRecovery())
        updated = await ledgers.update(LedgerId(0), StartRecovery(), known=created)
        assert not updated.wrote
        assert updated.ledger.version == 1


async def test_being_gone_is_asked_past_a_lagging_follower() -> None:
    world = World()
    world.store.lag()
    world.plant(3)
    assert not await world.ledgers.is_gone(LedgerId(3))
    assert await world.ledgers.is_gone(LedgerId(4))


async def test_delete_removes_emptied_parents_up_to_the_first_that_is_in_use() -> None:
    world = World()
    world.plant(2**31, 2**32, 5)
    await world.ledgers.delete(LedgerId(2**31))
    tree = await dump(world.store, ROOT)
    assert f"{ROOT}/000/0000/0042/9496/L7296" in tree
    assert f"{ROOT}/000/0000/0021" not in tree
    await world.ledgers.delete(LedgerId(2**32))
    assert set(await dump(world.store, ROOT)) == {
        ROOT,
        f"{ROOT}/00",
        f"{ROOT}/00/0000",
        f"{ROOT}/00/0000/L0005",
    }


async def test_delete_of_a_ledger_that_is_gone_is_success(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.plant(5)
    await world.ledgers.delete(LedgerId(6))
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="delete")
    await world.ledgers.delete(LedgerId(5))
    assert world.script.is_played_out
    assert set(await dump(world.store, ROOT)) == {ROOT}


async def test_delete_with_a_version_spares_a_changed_ledger() -> None:
    world = World()
    created = await world.ledgers.create(TEMPLATE)
    await world.ledgers.update(LedgerId(0), Close(last_entry_id=1, length=1))
    with pytest.raises(BadVersionError):
        await world.ledgers.delete(LedgerId(0), version=created.version)
    await world.ledgers.delete(LedgerId(0), version=1)
    assert not world.has(f"{ROOT}/00")


async def test_delete_ignores_trouble_with_parents(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.plant(5)
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="exists")
    await world.ledgers.delete(LedgerId(5))
    assert world.script.is_played_out
    assert world.has(f"{ROOT}/00/0000")


async def test_delete_leaves_a_parent_that_is_filled_meanwhile() -> None:
    world = World()
    world.plant(5)
    directory = f"{ROOT}/00/0000"
    world.script.add(Fault(meanwhile=lambda: world.plant(6)), verb="delete", path=directory)
    await world.ledgers.delete(LedgerId(5))
    assert world.script.is_played_out
    assert world.has(f"{directory}/L0006")


# ---------------------------------------------------------------------- listing


IDS = [0, 1, 9999, 10000, 12345, 99999999, 2**31 - 2]
LONG_IDS = [2**31 - 1, 2**31, 2**32, 5 << 32, 2**63 - 1]


@pytest.mark.parametrize(
    ("layout", "ids"),
    [
        (LayoutType.FLAT, IDS),
        (LayoutType.LEGACY_HIERARCHICAL, IDS),
        (LayoutType.HIERARCHICAL, IDS + LONG_IDS),
        (LayoutType.LONG_HIERARCHICAL, IDS + LONG_IDS),
    ],
)
async def test_ranges_come_in_ascending_order(
    layout: LayoutType, ids: list[int], place: Place
) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        for name in ("available", "idgen", "LAYOUT", "cookies", "underreplication", "ID-7"):
            await store.create(f"{place.root}/{name}")
        ledgers = ledgers_of(store, layout, place.root)
        for number in sorted(ids, key=lambda n: -n):
            await ledgers.create(TEMPLATE, ledger_id=LedgerId(number))
        ranges = await walk(ledgers)
        assert [number for ids_of_range in ranges for number in ids_of_range] == ids
        if layout is LayoutType.FLAT:
            assert len(ranges) == 1
        else:
            assert all(len({number // 10000 for number in found}) == 1 for found in ranges)


async def test_no_ledgers_are_no_ranges(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        for layout in LayoutType:
            assert await walk(ledgers_of(store, layout, place.root)) == []


def test_a_range_knows_its_ends() -> None:
    found = LedgerRange((LedgerId(3), LedgerId(5)))
    assert (found.first, found.last) == (3, 5)


@pytest.mark.parametrize("layout", list(LayoutType))
async def test_a_missing_root_is_an_error_and_not_an_empty_cluster(layout: LayoutType) -> None:
    """Or a bookie in a cluster that cannot be read would delete everything it has."""
    metadata = MemoryMetadata()
    with pytest.raises(NoNodeError):
        await walk(ledgers_of(metadata.connect(), layout))


async def test_every_error_on_the_way_surfaces() -> None:
    """Each read of the walk in turn meets a store that is away: never a short list."""
    world = World()
    world.plant(1, 20001, 2**32)
    whole = await walk(world.ledgers)
    reads = 0
    while True:
        script = Script()
        script.add(Fault(outcome=Outcome.UNAVAILABLE), skip=reads)
        ledgers = ledgers_of(world.metadata.connect(script))
        try:
            found = await walk(ledgers)
        except StoreUnavailableError:
            reads += 1
            continue
        assert found == whole
        assert not script.is_played_out
        break
    assert reads == 2 * (1 + 2 + 1 + 4)  # sync and list: the root, two levels, four levels


@pytest.mark.parametrize("layout", [LayoutType.HIERARCHICAL, LayoutType.LONG_HIERARCHICAL])
async def test_a_directory_that_vanishes_was_empty(layout: LayoutType) -> None:
    world = World(layout)
    world.plant(1, 20001)
    directory = world.paths.path_of(LedgerId(1)).rpartition("/")[0]

    def vanish() -> None:
        for path in (world.paths.path_of(LedgerId(1)), directory):
            world.metadata.tree.delete(path, ANY_VERSION)
        world.metadata.publish()

    world.script.add(Fault(meanwhile=vanish), verb="sync", path=directory)
    assert await walk(world.ledgers) == [(20001,)]
    assert world.script.is_played_out


async def test_the_walk_reads_past_a_lagging_follower() -> None:
    """A ledger that was created before the walk began must be met by it."""
    world = World()
    world.plant(1)
    world.store.lag()
    world.plant(2, 20001, 2**32)
    assert await walk(world.ledgers) == [(1, 2), (20001,), (2**32,)]


@pytest.mark.parametrize(
    ("layout", "stranger"),
    [
        (LayoutType.HIERARCHICAL, f"{ROOT}/00/0000/junk"),
        (LayoutType.HIERARCHICAL, f"{ROOT}/00/0000/L00007"),
        (LayoutType.HIERARCHICAL, f"{ROOT}/00/xyz/L0001"),
        (LayoutType.HIERARCHICAL, f"{ROOT}/99/9999/L9999"),
        (LayoutType.HIERARCHICAL, f"{ROOT}/000/0000/0000/0001/L2345"),
        (LayoutType.FLAT, f"{ROOT}/L9223372036854775807"),
        (LayoutType.LEGACY_HIERARCHICAL, f"{ROOT}/42/9496/L72960"),
    ],
)
async def test_what_the_walk_does_not_understand_is_an_error(
    layout: LayoutType, stranger: str
) -> None:
    """A ledger on a path of another encoding would be out of order, or be taken for missing."""
    world = World(layout)
    world.plant(1)
    planted(world.metadata, [stranger])
    with pytest.raises(InvalidMetadataError, match=stranger.rpartition("/")[2]):
        await walk(world.ledgers)


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        (LayoutType.FLAT, f"{ROOT}/L4294967296"),
        (LayoutType.LEGACY_HIERARCHICAL, f"{ROOT}/42/9496/L7296"),
    ],
)
async def test_large_ids_that_java_put_into_a_small_layout_are_listed(
    layout: LayoutType, path: str
) -> None:
    """We would not create them, but they are there and must not be taken for missing."""
    world = World(layout)
    world.plant(1)
    planted(world.metadata, [path])
    assert [n for ids in await walk(world.ledgers) for n in ids] == [1, 4294967296]


async def test_a_walk_goes_on_after_an_error_and_passes_nothing_over() -> None:
    world = World()
    world.plant(1, 20001, 2**32)
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), skip=6)
    walk_ = world.ledgers.ranges()
    found = []
    failures = 0
    while True:
        try:
            found.append((await anext(walk_)).ids)
        except StopAsyncIteration:
            break
        except StoreUnavailableError:
            failures += 1
    assert failures == 1
    assert found == [(1,), (20001,), (2**32,)]


async def test_strangers_at_the_top_are_not_entered() -> None:
    world = World()
    world.plant(1)
    planted(world.metadata, [f"{ROOT}/disableHealthCheck", f"{ROOT}/0000/x", f"{ROOT}/7/y"])
    assert await walk(world.ledgers) == [(1,)]


async def test_a_walk_may_be_left_early() -> None:
    world = World()
    world.plant(1, 20001, 2**32)
    async for found in world.ledgers.ranges():
        assert found.ids == (1,)
        break
    assert await walk(world.ledgers)


class Counting:
    """A store that answers lists from arithmetic, and remembers the longest it gave."""

    def __init__(self, ledgers: int) -> None:
        self.ledgers = ledgers
        self.listings: list[int] = []

    async def sync(self, path: str) -> None:
        await trio.lowlevel.checkpoint()

    async def children(self, path: str) -> tuple[list[str], Stat]:
        await trio.lowlevel.checkpoint()
        parts = path.removeprefix(ROOT).split("/")[1:]
        if not parts:
            names = ["00"]
        elif len(parts) == 1:
            names = [f"{number:04d}" for number in range(self.ledgers // 10000)]
        else:
            names = [f"L{number:04d}" for number in range(10000)]
        self.listings.append(len(names))
        return names, Stat(0, 0, len(names), None, 0, 0)


async def test_a_walk_over_many_ledgers_holds_one_directory_at_a_time() -> None:
    store = Counting(200_000)
    seen = 0
    async for found in ledgers_of(store).ranges():  # type: ignore[arg-type]
        assert found.first == seen
        seen += len(found.ids)
        # Listed so far: the root, its one child, and one directory per range, no further ahead.
        assert len(store.listings) == 2 + seen // 10000
        assert max(store.listings) == 10000
    assert seen == 200_000


# ---------------------------------------------------------------------- following one ledger


async def test_a_watch_delivers_changes_and_the_end(place: Place) -> None:
    async with place.connected() as store, place.connected() as other:
        await store.create(place.root)
        mine, theirs = ledgers_of(store, root=place.root), ledgers_of(other, root=place.root)
        created = await mine.create(TEMPLATE)
        watch = LedgerWatch(mine, created)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await theirs.update(LedgerId(0), StartRecovery())
            with trio.fail_after(20):
                recovering = await watch.wait_newer(created)
            assert recovering.version == 1
            await theirs.delete(LedgerId(0))
            with trio.fail_after(20), pytest.raises(LedgerGoneError):
                await watch.wait_newer(recovering)
            assert watch.latest is None


async def test_a_watch_survives_the_loss_of_its_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    other = ledgers_of(world.metadata.connect())
    created = await world.ledgers.create(TEMPLATE)
    watch = LedgerWatch(world.ledgers, created)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.testing.wait_all_tasks_blocked()
        world.metadata.available = False
        assert world.store.session is not None
        world.metadata.expire(world.store.session)
        await trio.sleep(1)
        world.metadata.available = True
        await other.update(LedgerId(0), StartRecovery())
        recovering = await watch.wait_newer(created)
        assert recovering.version == 1
        await other.update(LedgerId(0), FinishRecovery(last_entry_id=-1, length=0))
        assert (await watch.wait_newer(recovering)).version == 2
        nursery.cancel_scope.cancel()


async def test_a_watch_that_never_fires_is_made_up_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    created = await world.ledgers.create(TEMPLATE)
    world.script.add(Fault(watch_seconds=NEVER), verb="get")
    watch = LedgerWatch(world.ledgers, created)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.testing.wait_all_tasks_blocked()
        await ledgers_of(world.metadata.connect()).update(LedgerId(0), StartRecovery())
        assert (await watch.wait_newer(created)).version == 1
        nursery.cancel_scope.cancel()


async def test_a_watch_ignores_servers_that_lag(autojump_clock: trio.testing.MockClock) -> None:
    """The caller knows version 1 already; a follower still shows 0, then nothing at all."""
    world = World()
    created = await world.ledgers.create(TEMPLATE)
    world.store.lag()
    other = ledgers_of(world.metadata.connect())
    known = (await other.update(LedgerId(0), StartRecovery())).ledger
    watch = LedgerWatch(world.ledgers, known)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.testing.wait_all_tasks_blocked()
        assert watch.latest is known
        assert watch.latest is not created
        world.store.catch_up()
        await other.delete(LedgerId(0))
        with pytest.raises(LedgerGoneError):
            await watch.wait_newer(known)


async def test_a_watch_does_not_take_a_lagging_absence_for_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.store.lag()
    other = ledgers_of(world.metadata.connect())
    created = await other.create(TEMPLATE)
    watch = LedgerWatch(world.ledgers, created)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await other.update(LedgerId(0), StartRecovery())
        assert (await watch.wait_newer(created)).version == 1
        nursery.cancel_scope.cancel()


async def test_a_watch_keeps_the_old_record_when_the_new_one_is_unreadable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    created = await world.ledgers.create(TEMPLATE)
    path = world.paths.path_of(LedgerId(0))
    watch = LedgerWatch(world.ledgers, created)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.testing.wait_all_tasks_blocked()
        other = world.metadata.connect()
        await other.set(path, b"junk", version=0)
        await trio.testing.wait_all_tasks_blocked()
        assert watch.latest is created
        good = encode_ledger_metadata(created.metadata.in_recovery())
        await other.set(path, good, version=1)
        assert (await watch.wait_newer(created)).version == 2
        nursery.cancel_scope.cancel()


async def test_connection_loss_while_creating_parents_is_survived(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create", path=f"{ROOT}/00")
    created = await world.ledgers.create(TEMPLATE, ledger_id=LedgerId(4))
    assert world.script.is_played_out
    assert created.version == 0
