"""Clusters as a whole: opening, initialising, formatting and removing, against Java's trees."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from metadata.cluster import (
    Cluster,
    ClusterExistsError,
    ClusterNotInitialisedError,
    ClusterRefusedError,
    format_cluster,
    init_new_cluster,
    nuke_cluster,
    open_cluster,
    read_instance_id,
)
from metadata.faults import Fault, Outcome, Script
from metadata.layout import CLASS_NAMES
from metadata.memory import MemoryMetadata
from metadata.model import InvalidMetadataError
from metadata.paths import LayoutType
from metadata.store import ConnectionLostError, Create, MetadataStore, NotEmptyError
from metadata.tree import delete_tree
from metadata.uri import MetadataUri, Server, parse_metadata_uri
from tests.metadata.places import Place, chance, dump, place, planted

__all__ = ["chance", "place"]

MOMENTS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "metadata-tree.json").read_text()
)["moments"]
UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def moment(name: str) -> dict[str, Any]:
    return next(item for item in MOMENTS if item["moment"] == name)


def tree_of(captured: dict[str, Any]) -> dict[str, bytes]:
    return {node["path"]: bytes.fromhex(node["data_hex"]) for node in captured["nodes"]}


def masked(tree: dict[str, bytes]) -> dict[str, bytes]:
    """Instance ids are random: only their form can be compared."""
    return {path: UUID.sub(b"<instance id>", data) for path, data in tree.items()}


def uri_of(root: str, layout: LayoutType | None = None) -> MetadataUri:
    return MetadataUri((Server("zk"),), root, layout)


async def plant_moment(store: MetadataStore, captured: dict[str, Any]) -> None:
    for node in captured["nodes"]:
        await store.create(
            node["path"], bytes.fromhex(node["data_hex"]), ephemeral=node["ephemeral"]
        )


# ---------------------------------------------------------------------- initnewcluster


@pytest.mark.parametrize("name", ["init-hier", "init-long", "init-flat", "init-null", "init-zk"])
async def test_init_leaves_the_tree_that_java_leaves(name: str, chance: random.Random) -> None:
    captured = moment(name)
    uri = parse_metadata_uri(captured["uri"])
    memory = MemoryMetadata()
    store = memory.connect()
    cluster = await init_new_cluster(store, uri, chance=chance)
    assert masked(await dump(store, uri.root)) == masked(tree_of(captured))
    for node in captured["nodes"]:
        stat = memory.tree.get(node["path"]).stat()
        assert (stat.version, stat.children_version) == (node["version"], node["cversion"])
    assert cluster == await open_cluster(store, uri)
    assert cluster.instance_id == await read_instance_id(store, uri.root)


async def test_init_works_on_the_real_store_too(place: Place, chance: random.Random) -> None:
    async with place.connected() as store:
        uri = uri_of(place.root, LayoutType.LONG_HIERARCHICAL)
        cluster = await init_new_cluster(store, uri, chance=chance)
        assert set(await dump(store, place.root)) == {
            place.root + end
            for end in ("", "/INSTANCEID", "/LAYOUT", "/available", "/available/readonly")
        }
        assert await open_cluster(store, uri_of(place.root)) == cluster
        assert cluster.layout is LayoutType.LONG_HIERARCHICAL
        with pytest.raises(ClusterExistsError, match="nothing was changed"):
            await init_new_cluster(store, uri, chance=chance)
        assert await open_cluster(store, uri_of(place.root)) == cluster


async def test_init_needs_the_parent(chance: random.Random) -> None:
    captured = moment("init-missing-parent")
    store = MemoryMetadata().connect()
    with pytest.raises(ClusterRefusedError, match="/nope does not exist"):
        await init_new_cluster(store, parse_metadata_uri(captured["uri"]), chance=chance)
    assert await dump(store, "/") == {"/": b""}
    assert captured["nodes"] == []


async def test_init_loses_a_race_cleanly(chance: random.Random) -> None:
    metadata, script = MemoryMetadata(), Script()
    script.add(Fault(meanwhile=lambda: planted(metadata, ["/ledgers"])), verb="transact")
    with pytest.raises(ClusterExistsError):
        await init_new_cluster(metadata.connect(script), uri_of("/ledgers"), chance=chance)
    assert script.is_played_out


async def test_init_recognises_its_own_lost_transaction(chance: random.Random) -> None:
    metadata, script = MemoryMetadata(), Script()
    store = metadata.connect(script)
    script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="transact")
    script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create")
    cluster = await init_new_cluster(store, uri_of("/ledgers"), chance=chance)
    assert script.is_played_out
    assert await open_cluster(store, uri_of("/ledgers")) == cluster


async def test_init_that_never_happened_says_so(chance: random.Random) -> None:
    metadata, script = MemoryMetadata(), Script()
    script.add(Fault(outcome=Outcome.REQUEST_LOST), verb="transact")
    with pytest.raises(ConnectionLostError):
        await init_new_cluster(metadata.connect(script), uri_of("/ledgers"), chance=chance)
    assert metadata.tree.find("/ledgers") is None


# ---------------------------------------------------------------------- opening


async def test_opening_nothing_says_how_to_begin(place: Place) -> None:
    async with place.connected() as store:
        with pytest.raises(ClusterNotInitialisedError, match="initnewcluster") as caught:
            await open_cluster(store, uri_of(place.root))
        assert f"zk://zk:2181{place.root}" in str(caught.value)
        assert await store.exists(place.root) is None


async def test_opening_looks_past_a_lagging_follower(chance: random.Random) -> None:
    metadata = MemoryMetadata()
    store = metadata.connect()
    store.lag()
    made = await init_new_cluster(metadata.connect(), uri_of("/ledgers"), chance=chance)
    assert await open_cluster(store, uri_of("/ledgers")) == made


@pytest.mark.parametrize("configured", [None, *LayoutType])
async def test_opening_writes_a_missing_layout(configured: LayoutType | None) -> None:
    metadata = MemoryMetadata()
    planted(metadata, ["/ledgers"])
    opened = await open_cluster(metadata.connect(), uri_of("/ledgers", configured))
    expected = configured or LayoutType.HIERARCHICAL
    assert opened == Cluster("/ledgers", expected, None)
    assert metadata.tree.get("/ledgers/LAYOUT").data == f"2\n{CLASS_NAMES[expected]}:1".encode()


@pytest.mark.parametrize("stored", list(LayoutType))
@pytest.mark.parametrize("configured", [None, *LayoutType])
async def test_opening_obeys_the_stored_layout_or_fails(
    stored: LayoutType, configured: LayoutType | None
) -> None:
    metadata = MemoryMetadata()
    planted(metadata, ["/ledgers/LAYOUT"], f"2\n{CLASS_NAMES[stored]}:1".encode())
    store = metadata.connect()
    if configured in (None, stored):
        assert (await open_cluster(store, uri_of("/ledgers", configured))).layout is stored
    else:
        with pytest.raises(InvalidMetadataError, match="does not match existing layout"):
            await open_cluster(store, uri_of("/ledgers", configured))
    assert metadata.tree.get("/ledgers/LAYOUT").version == 0


@pytest.mark.parametrize(
    "text",
    [
        b"2\norg.example.EtcdLedgerManagerFactory:1",
        b"2\norg.apache.bookkeeper.meta.MSLedgerManagerFactory:1",
        b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:2",
        b"3\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1",
        b"",
    ],
)
async def test_opening_refuses_a_layout_it_does_not_know(text: bytes) -> None:
    metadata = MemoryMetadata()
    planted(metadata, ["/ledgers/LAYOUT"], text)
    with pytest.raises(InvalidMetadataError):
        await open_cluster(metadata.connect(), uri_of("/ledgers"))


async def test_opening_tells_a_shaded_class_name() -> None:
    metadata = MemoryMetadata()
    name = CLASS_NAMES[LayoutType.FLAT]
    planted(metadata, ["/ledgers/LAYOUT"], f"2\nshaded.{name}:1".encode())
    opened = await open_cluster(metadata.connect(), uri_of("/ledgers"), shaded_prefix="shaded.")
    assert opened.layout is LayoutType.FLAT


async def test_opening_that_loses_the_race_for_the_layout_must_agree() -> None:
    for theirs, agrees in ((LayoutType.HIERARCHICAL, True), (LayoutType.FLAT, False)):
        metadata, script = MemoryMetadata(), Script()
        planted(metadata, ["/ledgers"])
        data = f"2\n{CLASS_NAMES[theirs]}:1".encode()

        def write(metadata: MemoryMetadata = metadata, data: bytes = data) -> None:
            planted(metadata, ["/ledgers/LAYOUT"], data)

        script.add(Fault(meanwhile=write), verb="create")
        opening = open_cluster(
            metadata.connect(script), uri_of("/ledgers", LayoutType.HIERARCHICAL)
        )
        if agrees:
            assert (await opening).layout is theirs
        else:
            with pytest.raises(InvalidMetadataError):
                await opening
        assert script.is_played_out


async def test_opening_survives_a_lost_answer_for_the_layout() -> None:
    for outcome in (Outcome.ANSWER_LOST, Outcome.REQUEST_LOST):
        metadata, script = MemoryMetadata(), Script()
        planted(metadata, ["/ledgers"])
        script.add(Fault(outcome=outcome), verb="create")
        opened = await open_cluster(metadata.connect(script), uri_of("/ledgers"))
        assert opened.layout is LayoutType.HIERARCHICAL
        assert metadata.tree.find("/ledgers/LAYOUT") is not None


# ---------------------------------------------------------------------- metaformat


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("metaformat-hier", None),
        ("metaformat-long", LayoutType.HIERARCHICAL),
        ("metaformat-long-class", None),
        ("metaformat-legacy", LayoutType.LEGACY_HIERARCHICAL),
    ],
)
async def test_format_makes_a_cluster_with_its_parents(
    name: str, layout: LayoutType | None, chance: random.Random
) -> None:
    """Java takes the layout from a setting; `layout` is what that setting was in the run."""
    captured = moment(name)
    uri = parse_metadata_uri(captured["uri"])
    store = MemoryMetadata().connect()
    cluster = await format_cluster(store, uri, confirmed=False, layout=layout, chance=chance)
    assert masked(await dump(store, uri.root)) == masked(tree_of(captured))
    assert cluster.layout is (layout or uri.layout)


async def test_format_of_a_used_cluster_leaves_what_java_leaves(chance: random.Random) -> None:
    before, after = moment("before-metaformat"), moment("after-metaformat")
    uri = parse_metadata_uri(after["uri"])
    store = MemoryMetadata().connect()
    await plant_moment(store, before)
    was = await dump(store, uri.root)

    with pytest.raises(ClusterRefusedError, match="confirm"):
        await format_cluster(store, uri, confirmed=False, chance=chance)
    assert await dump(store, uri.root) == was, "nothing was touched"

    await format_cluster(store, uri, confirmed=True, chance=chance)
    assert masked(await dump(store, uri.root)) == masked(tree_of(after))
    assert (await dump(store, uri.root))[f"{uri.root}/INSTANCEID"] != was[f"{uri.root}/INSTANCEID"]


async def test_format_works_on_the_real_store_too(place: Place, chance: random.Random) -> None:
    async with place.connected() as store:
        uri = uri_of(f"{place.root}/deep/ledgers")
        first = await format_cluster(store, uri, confirmed=False, chance=chance)
        for path in ("00/0001/L2345", "idgen-long/HOB-0000000001", "cookies/a:1", "other"):
            await store.create(f"{uri.root}/{path}", b"x", parents=True)
        second = await format_cluster(store, uri, confirmed=True, chance=chance)
        assert first.instance_id != second.instance_id
        assert set(await dump(store, uri.root)) == {
            uri.root + end
            for end in ("", "/INSTANCEID", "/LAYOUT", "/available", "/available/readonly", "/other")
        }


async def test_format_deletes_ledgers_of_the_layout_that_is_stored(chance: random.Random) -> None:
    """A flat cluster is formatted into a hierarchical one: its ledgers must not stay behind."""
    metadata = MemoryMetadata()
    store = metadata.connect()
    await init_new_cluster(store, uri_of("/ledgers", LayoutType.FLAT), chance=chance)
    planted(metadata, ["/ledgers/L0000000007", "/ledgers/ID-0000000009", "/ledgers/00/0000/L0001"])
    await format_cluster(
        store, uri_of("/ledgers"), confirmed=True, layout=LayoutType.HIERARCHICAL, chance=chance
    )
    assert set(await dump(store, "/ledgers")) == {
        "/ledgers" + end
        for end in (
            "", "/00", "/00/0000", "/00/0000/L0001", "/INSTANCEID", "/LAYOUT", "/available",
            "/available/readonly",
        )
    }  # fmt: skip
    assert (await open_cluster(store, uri_of("/ledgers"))).layout is LayoutType.HIERARCHICAL


# ---------------------------------------------------------------------- nukeexistingcluster


async def test_nuke_removes_everything(place: Place, chance: random.Random) -> None:
    async with place.connected() as store:
        uri = uri_of(place.root)
        cluster = await init_new_cluster(store, uri, chance=chance)
        for path in ("00/0001/L2345", "000/0000/0042/9496/L7296", "idgen", "cookies/a:1"):
            await store.create(f"{place.root}/{path}", parents=True)
        await store.create(f"{place.root}/underreplication/locks", parents=True)
        assert await nuke_cluster(store, uri, root=place.root, instance_id=cluster.instance_id)
        assert await store.exists(place.root) is None
        assert not await nuke_cluster(store, uri, root=place.root, force=True), "none is left"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/ledgers/available/bk1:3181", "bk1:3181"),
        ("/ledgers/available/readonly/bk2:3181", "bk2:3181"),
        ("/ledgers/disableHealthCheck", "disableHealthCheck"),
        ("/ledgers/streams/x", "streams"),
    ],
)
async def test_nuke_spares_what_it_should_not_touch(
    path: str, why: str, chance: random.Random
) -> None:
    metadata = MemoryMetadata()
    store = metadata.connect()
    await init_new_cluster(store, uri_of("/ledgers"), chance=chance)
    planted(metadata, ["/ledgers/00/0000/L0001", path])
    was = await dump(store, "/")
    with pytest.raises(ClusterRefusedError, match=why):
        await nuke_cluster(store, uri_of("/ledgers"), root="/ledgers", force=True)
    assert await dump(store, "/") == was


@pytest.mark.parametrize(
    ("root", "instance_id", "force"),
    [
        ("/other", None, True),
        ("/ledgers", None, False),
        ("/ledgers", "x", True),
        ("/ledgers", "00000000-0000-4000-8000-000000000000", False),
    ],
)
async def test_nuke_wants_to_be_sure(
    root: str, instance_id: str | None, force: bool, chance: random.Random
) -> None:
    store = MemoryMetadata().connect()
    await init_new_cluster(store, uri_of("/ledgers"), chance=chance)
    was = await dump(store, "/")
    with pytest.raises(ClusterRefusedError):
        await nuke_cluster(
            store, uri_of("/ledgers"), root=root, instance_id=instance_id, force=force
        )
    assert await dump(store, "/") == was


async def test_nuke_ends_when_something_new_comes_in(chance: random.Random) -> None:
    metadata, script = MemoryMetadata(), Script()
    store = metadata.connect(script)
    await init_new_cluster(store, uri_of("/ledgers"), chance=chance)
    script.add(
        Fault(meanwhile=lambda: planted(metadata, ["/ledgers/streams"])),
        verb="delete",
        path="/ledgers",
    )
    with pytest.raises(NotEmptyError):
        await nuke_cluster(store, uri_of("/ledgers"), root="/ledgers", force=True)
    assert metadata.tree.find("/ledgers/streams") is not None


# ---------------------------------------------------------------------- deleting trees


async def test_a_tree_of_many_nodes_is_deleted_in_batches(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        await store.transact([Create(f"{place.root}/n{number:04d}") for number in range(1203)])
        await store.create(f"{place.root}/n0700/below/deeper", parents=True)
        await delete_tree(store, place.root)
        assert await store.exists(place.root) is None
        await delete_tree(store, place.root)


async def test_a_tree_that_is_being_filled_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    metadata, script = MemoryMetadata(), Script()
    planted(metadata, ["/a/b"])
    script.add(
        Fault(meanwhile=lambda: planted(metadata, ["/a/b"])), verb="delete", path="/a", times=100
    )
    with pytest.raises(NotEmptyError, match="as fast as"):
        await delete_tree(metadata.connect(script), "/a")
