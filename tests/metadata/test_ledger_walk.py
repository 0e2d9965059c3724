"""The walk over all ledgers: complete and in order, or an error."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from metadata.faults import Fault, Outcome, Script
from metadata.ledger_walk import LedgerRange
from metadata.memory import MemoryMetadata
from metadata.model import InvalidMetadataError
from metadata.paths import LayoutType
from metadata.store import ANY_VERSION, NoNodeError, Stat, StoreUnavailableError
from tests.metadata.ledger_world import ROOT, TEMPLATE, World, ledgers_of, walk
from tests.metadata.places import Place, place, planted
from wire.types import LedgerId

__all__ = ["place"]


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
