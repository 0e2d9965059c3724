"""Reads that meet bookies which are slow, paused, or not the right ones any more."""

from __future__ import annotations

import pytest

from ledger_client import LedgerClient, ReadOptions
from ledger_client.pool import Pool
from ledger_client.requests import Request
from metadata import update
from tests.ledger_client.live.cluster import LiveCluster
from tests.ledger_client.live.planted import planted
from wire.types import BookieId

IMPATIENT = ReadOptions(speculative_seconds=0.05)


async def test_read_goes_on_with_another_copy_when_a_bookie_says_nothing(
    cluster: LiveCluster,
) -> None:
    """And the silent one counts as slow: the next reader asks it last."""
    payloads = [b"%d" % i for i in range(200)]
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(write_quorum=3) as ledger:
            await ledger.append_many(payloads)
        reader = await client.open(ledger.id, options=IMPATIENT)
        ensemble = ledger.metadata.last_fragment.ensemble
        victim = cluster.bookies[ensemble[reader._sticky.slot]]
        victim.pause()
        try:
            found = [entry.payload async for entry in reader.read(0, 199)]
        finally:
            victim.resume()
        assert found == payloads
        assert client.statistics().slow == {victim.bookie_id}, "asked before, not answered yet"
        order = client._environment.read_order([0, 1, 2], ensemble)
        assert ensemble[order[-1]] == victim.bookie_id


async def test_reader_follows_copies_that_were_moved(cluster: LiveCluster) -> None:
    """F53: all bookies that it knows deny the entry; the record, read again, names another."""
    async with LedgerClient(cluster.uri) as client:
        *ensemble, fourth = sorted(client.bookies().writable)
        ledger = await planted(client, [b"x", b"y"], bookies=[fourth])
        reader = await client.open(ledger.ledger_id)
        move = update.ReplaceBookies(first_entry_id=0, replacements={1: (ensemble[1], fourth)})
        await client._environment.ledgers.update(ledger.ledger_id, move)
        assert [entry.payload async for entry in reader.read(0, 1)] == [b"x", b"y"]
        assert reader.metadata.last_fragment.ensemble[1] == fourth


async def test_one_bookie_serves_a_whole_ledger_where_each_holds_everything(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caches read ahead for us; three bookies would each do a third of it."""
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(write_quorum=3) as ledger:
            await ledger.append_many([bytes(1000)] * 3000)
        reader = await client.open(ledger.id)
        asked: set[str] = set()
        ask = Pool.ask

        def spy(pool: Pool, bookie_id: BookieId, request: Request) -> None:
            asked.add(bookie_id)
            ask(pool, bookie_id, request)

        monkeypatch.setattr(Pool, "ask", spy)
        assert [entry.id async for entry in reader.read(0, 2999)] == list(range(3000))
        assert len(asked) == 1
