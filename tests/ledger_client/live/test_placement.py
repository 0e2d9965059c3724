"""Placement on live bookies: racks from a table, acks across racks, space, smaller ensembles."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger_client import (
    LedgerClient,
    NotEnoughBookiesError,
    QuorumTimeoutError,
    RackAware,
    SpaceOptions,
    Topology,
    TopologyTable,
    WriterOptions,
)
from tests.ledger_client.live.cluster import LiveCluster


def racks(folder: Path, cluster: LiveCluster, *names: str) -> Topology:
    """A table that puts the bookies, in the order of their ids, into these racks."""
    table = folder / "racks"
    lines = zip(sorted(cluster.bookies), names, strict=True)
    table.write_text("".join(f"{bookie_id} /{rack}\n" for bookie_id, rack in lines))
    return Topology(TopologyTable(table))


async def test_ledger_spans_the_racks_of_the_table(cluster: LiveCluster, tmp_path: Path) -> None:
    topology = racks(tmp_path, cluster, "r1", "r1", "r1", "r2")
    lonely = sorted(cluster.bookies)[3]
    policy = RackAware(topology.locations, enforce=True)
    async with LedgerClient(cluster.uri, policy=policy, topology=topology) as client:
        for _ in range(5):
            async with await client.create(ensemble_size=2) as ledger:
                await ledger.append(b"x")
            ensemble = (await client.metadata(ledger.id)).fragments[0].ensemble
            assert lonely in ensemble


async def test_cluster_in_one_rack_is_named_as_the_reason(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    topology = racks(tmp_path, cluster, "r1", "r1", "r1", "r1")
    policy = RackAware(topology.locations, enforce=True)
    async with LedgerClient(cluster.uri, policy=policy, topology=topology) as client:
        with pytest.raises(NotEnoughBookiesError, match="fault domains"):
            await client.create(ensemble_size=2)


async def test_acks_of_one_rack_do_not_confirm(cluster: LiveCluster, tmp_path: Path) -> None:
    """The only bookie of the other rack stands still: a quorum by number is none by place."""
    topology = racks(tmp_path, cluster, "r1", "r1", "r1", "r2")
    policy = RackAware(topology.locations, enforce=True)
    lonely = cluster.bookies[sorted(cluster.bookies)[3]]
    options = WriterOptions(acks_across_domains=True, quorum_timeout_seconds=0.5)
    async with LedgerClient(cluster.uri, policy=policy, topology=topology) as client:
        ledger = await client.create(ensemble_size=4, write_quorum=4, ack_quorum=2, options=options)
        await ledger.append(b"everybody is there")
        lonely.pause()
        try:
            with pytest.raises(QuorumTimeoutError):
                await ledger.append(b"r1 alone")
        finally:
            lonely.resume()


async def test_ensemble_shrinks_to_the_bookies_that_are_there(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        with pytest.raises(NotEnoughBookiesError, match="start more"):
            await client.create(ensemble_size=6)
        async with await client.create(ensemble_size=6, shrink_ensemble=True) as ledger:
            await ledger.append_many([b"%d" % number for number in range(20)])
        metadata = await client.metadata(ledger.id)
        assert metadata.ensemble_size == len(metadata.fragments[0].ensemble) == 4
        reader = await client.open(ledger.id)
        assert [e.payload async for e in reader.read(0, 19)] == [b"%d" % n for n in range(20)]


async def test_free_space_is_learned_and_ledgers_are_made_by_it(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri, space=SpaceOptions()) as client:
        environment, space = client._environment, client._space
        assert space is not None
        await space.ask(environment)
        weights = environment.cluster.weights
        assert set(weights) == set(cluster.bookies)
        assert all(0 < weight <= 3 for weight in weights.values())
        async with await client.create() as ledger:
            await ledger.append(b"x")
