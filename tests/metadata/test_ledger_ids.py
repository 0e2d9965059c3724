"""Ledger ids: what each layout hands out, where it leaves nodes, and what a fault costs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import trio.testing

from metadata.faults import Fault, Outcome, Script
from metadata.ledger_ids import DrawnId, IdsExhaustedError, LedgerIds, ledger_ids
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.paths import LayoutType, LedgerPaths
from metadata.store import ANY_VERSION, MetadataStore, NoNodeError, StoreUnavailableError
from metadata.update import Backoff
from tests.metadata.places import Place, dump, place, planted
from wire.types import LedgerId

__all__ = ["place"]

ROOT = "/ledgers"
VECTORS = Path(__file__).parent.parent / "vectors"
LAST_SHORT = 2**31 - 2


def ids_of(
    store: MetadataStore,
    layout: LayoutType = LayoutType.HIERARCHICAL,
    root: str = ROOT,
    backoff: Backoff | None = None,
) -> LedgerIds:
    return ledger_ids(store, root, layout, chance=random.Random(1), backoff=backoff or Backoff())


async def take(ids: LedgerIds) -> int:
    """What a caller does: draw, use, discard."""
    drawn = await ids.draw()
    await ids.discard(drawn)
    return drawn.ledger_id


class World:
    def __init__(self, *paths: str) -> None:
        self.metadata = MemoryMetadata()
        planted(self.metadata, [ROOT, *paths])
        self.script = Script()
        self.store: MemoryStore = self.metadata.connect(self.script)

    def children(self, path: str) -> list[str]:
        return sorted(self.metadata.tree.get(path).children)


@pytest.mark.parametrize(
    "layout",
    [LayoutType.LEGACY_HIERARCHICAL, LayoutType.HIERARCHICAL, LayoutType.LONG_HIERARCHICAL],
)
async def test_ids_start_at_zero_and_leave_only_the_counter(
    layout: LayoutType, place: Place
) -> None:
    """Longhierarchical clusters too start at 0, unless `idgen-long` exists beforehand."""
    async with place.connected() as store:
        await store.create(place.root)
        ids = ids_of(store, layout, place.root)
        assert [await take(ids) for _ in range(3)] == [0, 1, 2]
        assert await dump(store, place.root) == {place.root: b"", f"{place.root}/idgen": b""}
        names, stat = await store.children(f"{place.root}/idgen")
        assert names == []
        assert stat.children_version == 6


async def test_flat_ids_count_on_the_root_itself(place: Place) -> None:
    """As seen with Java: LAYOUT and its like count, so a new cluster began with 4, then 6."""
    async with place.connected() as store:
        await store.create(place.root)
        for name in ("available", "INSTANCEID", "LAYOUT", "cookies"):
            await store.create(f"{place.root}/{name}")
        ids = ids_of(store, LayoutType.FLAT, place.root)
        assert await take(ids) == 4
        await store.create(f"{place.root}/L0000000004")
        assert await take(ids) == 6


async def test_clients_share_one_counter(place: Place) -> None:
    async with place.connected() as one, place.connected() as two:
        await one.create(place.root)
        first, second = ids_of(one, root=place.root), ids_of(two, root=place.root)
        assert [await take(first), await take(second), await take(first)] == [0, 1, 2]


async def test_undiscarded_nodes_are_ephemeral() -> None:
    world = World()
    drawn = await ids_of(world.store).draw()
    assert drawn == DrawnId(LedgerId(0), f"{ROOT}/idgen/ID-0000000000")
    assert world.children(f"{ROOT}/idgen") == ["ID-0000000000"]
    await world.store.close()
    assert world.children(f"{ROOT}/idgen") == []


@pytest.mark.parametrize("layout", list(LayoutType))
async def test_ids_are_not_drawn_without_a_cluster(layout: LayoutType) -> None:
    metadata = MemoryMetadata()
    with pytest.raises(NoNodeError, match="not initialised"):
        await ids_of(metadata.connect(), layout).draw()
    assert metadata.tree.find(ROOT) is None, "a missing root is never made"


# ---------------------------------------------------------------------- overflow


@pytest.mark.parametrize("layout", [LayoutType.FLAT, LayoutType.LEGACY_HIERARCHICAL])
@pytest.mark.parametrize("counter", [LAST_SHORT + 1, -(2**31), -1])
async def test_short_layouts_end_at_31_bits(layout: LayoutType, counter: int) -> None:
    directory = ROOT if layout is LayoutType.FLAT else f"{ROOT}/idgen"
    world = World(directory)
    ids = ids_of(world.store, layout)
    world.metadata.set_child_counter(directory, LAST_SHORT)
    assert await take(ids) == LAST_SHORT
    world.metadata.set_child_counter(directory, counter)
    with pytest.raises(IdsExhaustedError, match="2147483646"):
        await ids.draw()
    assert not [name for name in world.children(directory) if name.startswith("ID-")]


async def test_overflow_throws_the_switch_to_63_bits() -> None:
    world = World(f"{ROOT}/idgen")
    world.metadata.set_child_counter(f"{ROOT}/idgen", LAST_SHORT)
    ids = ids_of(world.store)
    assert [await take(ids) for _ in range(3)] == [LAST_SHORT, 2**32, 2**32 + 1]
    assert world.children(f"{ROOT}/idgen-long") == ["HOB-0000000001"]
    for path in (f"{ROOT}/idgen-long", f"{ROOT}/idgen-long/HOB-0000000001"):
        assert world.metadata.tree.get(path).open_acl, "also where trees are private"
    assert not world.metadata.tree.get(f"{ROOT}/idgen").open_acl
    assert not world.children(f"{ROOT}/idgen")


async def test_an_existing_switch_is_obeyed(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        await store.create(f"{place.root}/idgen-long")
        ids = ids_of(store, LayoutType.LONG_HIERARCHICAL, place.root)
        assert [await take(ids), await take(ids)] == [4294967296, 4294967297]
        assert await store.exists(f"{place.root}/idgen") is None
        assert list(await dump(store, f"{place.root}/idgen-long")) == [
            f"{place.root}/idgen-long",
            f"{place.root}/idgen-long/HOB-0000000001",
        ]


async def test_the_switch_is_looked_at_once() -> None:
    """As with Java: a client that is running does not notice an operator who throws it later."""
    world = World()
    ids = ids_of(world.store)
    assert await take(ids) == 0
    planted(world.metadata, [f"{ROOT}/idgen-long"])
    assert await take(ids) == 1
    assert await take(ids_of(world.store)) == 2**32


async def test_low_bits_that_run_out_open_the_next_directory() -> None:
    first = f"{ROOT}/idgen-long/HOB-0000000001"
    world = World(first)
    world.metadata.set_child_counter(first, LAST_SHORT)
    ids = ids_of(world.store)
    assert await take(ids) == (1 << 32) + LAST_SHORT
    assert await take(ids) == 2 << 32
    assert world.children(f"{ROOT}/idgen-long") == ["HOB-0000000001", "HOB-0000000002"]
    assert world.children(first) == []


async def test_a_directory_that_another_client_opened_is_used() -> None:
    """Two clients overflow together; the second one must not open a third directory."""
    first = f"{ROOT}/idgen-long/HOB-0000000001"
    world = World(first)
    world.metadata.set_child_counter(first, LAST_SHORT + 1)
    one, two = ids_of(world.store), ids_of(world.metadata.connect())
    assert [await take(one), await take(two)] == [2 << 32, (2 << 32) + 1]
    assert world.children(f"{ROOT}/idgen-long") == ["HOB-0000000001", "HOB-0000000002"]


async def test_all_bits_used_up_is_an_error() -> None:
    last = f"{ROOT}/idgen-long/HOB-{2**31 - 1:010d}"
    world = World(last)
    world.metadata.set_child_counter(last, LAST_SHORT)
    ids = ids_of(world.store)
    assert await take(ids) == (2**31 - 1 << 32) + LAST_SHORT
    with pytest.raises(IdsExhaustedError, match="63-bit"):
        await ids.draw()


async def test_old_directories_are_removed_as_java_does() -> None:
    """The captured run: directories 1 to 5, a client draws, 1 and 2 go; then ids from 5."""
    sequences = json.loads((VECTORS / "metadata-tree.json").read_text())["sequences"]
    ops = next(item["ops"] for item in sequences if item["name"].startswith("idgen-long switch"))
    by_client = [op for op in ops if op["session"] == "s6"]
    paths = LedgerPaths(ROOT, LayoutType.HIERARCHICAL)
    expected_ids = [
        paths.id_of(op["path"]) for op in by_client if op["op"] == "create" and "/L" in op["path"]
    ]
    expected_removals = [
        op["path"].rpartition("/")[2]
        for op in by_client
        if op["op"] == "delete" and "/HOB-" in op["path"] and "/ID-" not in op["path"]
    ]

    world = World(*(f"{ROOT}/idgen-long/HOB-{number:010d}" for number in range(1, 6)))
    before = world.children(f"{ROOT}/idgen-long")
    ids = ids_of(world.store)
    assert [await take(ids), await take(ids)] == expected_ids
    after = world.children(f"{ROOT}/idgen-long")
    assert sorted(set(before) - set(after)) == expected_removals


async def test_a_directory_with_draws_under_way_is_left() -> None:
    names = [f"{ROOT}/idgen-long/HOB-{number:010d}" for number in range(1, 5)]
    world = World(*names, f"{names[0]}/ID-0000000007")
    await take(ids_of(world.store))
    assert f"{names[0]}".rpartition("/")[2] in world.children(f"{ROOT}/idgen-long")


async def test_a_client_with_an_old_list_never_reopens_a_removed_directory() -> None:
    """Java does, and hands out the ids of deleted ledgers a second time."""
    world = World(f"{ROOT}/idgen-long/HOB-0000000001")
    ids = ids_of(world.store)
    assert await take(ids) == 1 << 32
    planted(world.metadata, (f"{ROOT}/idgen-long/HOB-{n:010d}" for n in range(2, 6)))
    world.metadata.tree.delete(f"{ROOT}/idgen-long/HOB-0000000001", ANY_VERSION)
    world.metadata.publish()
    assert await take(ids) == 5 << 32
    assert "HOB-0000000001" not in world.children(f"{ROOT}/idgen-long")


async def test_directories_removed_by_hand_do_not_bring_old_ids_back() -> None:
    world = World(f"{ROOT}/idgen-long/HOB-0000000004")
    ids = ids_of(world.store)
    assert await take(ids) == 4 << 32
    world.metadata.tree.delete(f"{ROOT}/idgen-long/HOB-0000000004", ANY_VERSION)
    world.metadata.publish()
    assert await take(ids) == 5 << 32


async def test_a_new_directory_is_not_decided_on_an_old_list() -> None:
    """A follower that lags shows no directory at all; `sync` shows the fifth."""
    world = World(f"{ROOT}/idgen-long")
    ids = ids_of(world.store)
    world.store.lag()
    planted(world.metadata, [f"{ROOT}/idgen-long/HOB-0000000005"])
    assert await take(ids) == 5 << 32
    assert world.children(f"{ROOT}/idgen-long") == ["HOB-0000000005"]


# ---------------------------------------------------------------------- faults


async def test_a_lost_answer_wastes_a_number_and_its_node_is_swept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World(f"{ROOT}/idgen")
    other = world.metadata.connect()
    foreign = await ids_of(other).draw()  # 0, under way elsewhere
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create")
    ids = ids_of(world.store)
    drawn = await ids.draw()
    assert world.script.is_played_out
    assert drawn.ledger_id == 2
    assert len(world.children(f"{ROOT}/idgen")) == 3
    await ids.discard(drawn)
    assert [f"{ROOT}/idgen/{name}" for name in world.children(f"{ROOT}/idgen")] == [foreign.node]


async def test_a_failed_discard_is_left_to_the_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.script.add(Fault(outcome=Outcome.UNAVAILABLE), verb="delete")
    ids = ids_of(world.store)
    assert await take(ids) == 0
    assert world.children(f"{ROOT}/idgen") == ["ID-0000000000"]
    assert await take(ids) == 1


async def test_drawing_gives_up_when_the_store_stays_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.metadata.available = False
    with pytest.raises(StoreUnavailableError):
        await ids_of(world.store, LayoutType.LEGACY_HIERARCHICAL).draw()
    world.metadata.available = True
    assert await take(ids_of(world.store)) == 0
