"""Ledgers in the tree: creating, updating and deleting them, where Java has them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from metadata.codec import encode_ledger_metadata
from metadata.faults import Fault, Outcome
from metadata.ledger_ids import DrawnId
from metadata.ledgers import LedgerExistsError, Ledgers
from metadata.memory import MemoryMetadata
from metadata.model import InvalidMetadataError
from metadata.paths import LayoutType, LedgerPaths
from metadata.store import ANY_VERSION, BadVersionError, NoNodeError, StoreUnavailableError
from metadata.update import Close, LedgerGoneError, StartRecovery
from tests.metadata.ledger_world import ROOT, TEMPLATE, World, ledgers_of
from tests.metadata.places import Place, dump, place, planted
from wire.types import LedgerId

__all__ = ["place"]


VECTORS = Path(__file__).parent.parent / "vectors"

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


async def test_connection_loss_while_creating_parents_is_survived(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create", path=f"{ROOT}/00")
    created = await world.ledgers.create(TEMPLATE, ledger_id=LedgerId(4))
    assert world.script.is_played_out
    assert created.version == 0
