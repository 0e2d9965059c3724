"""The commands of the benchmarks' load generator, each once: what they count is what they did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from bench.peers.our_load import Load
from metadata.model import LedgerState
from tests.ledger_client.live.cluster import LiveCluster


@asynccontextmanager
async def loading(cluster: LiveCluster) -> AsyncIterator[tuple[Load, dict[str, str]]]:
    async with AsyncExitStack() as stack:
        yield Load(stack), {"uri": cluster.uri, "size": "100"}


@pytest.mark.parametrize("ledgers", [1, 40])
async def test_adds_are_as_many_as_were_asked_for(cluster: LiveCluster, ledgers: int) -> None:
    async with loading(cluster) as (load, given):
        client = await load.client(given, "writer")
        before = {ledger_id async for ledger_id in client.list()}
        wanted = {"entries": "2500", "outstanding": "300", "ledgers": str(ledgers)}
        assert (await load.add(given | wanted))["entries"] == 2500
        made = {ledger_id async for ledger_id in client.list()} - before
        records = [await client.metadata(ledger_id) for ledger_id in made]
        assert [record.state for record in records] == [LedgerState.CLOSED] * ledgers
        assert sum((record.last_entry_id or 0) + 1 for record in records) == 2500


async def test_reads_go_from_the_first_entry_to_the_last(cluster: LiveCluster) -> None:
    async with loading(cluster) as (load, given):
        written = await load.add(given | {"entries": "500", "outstanding": "100"})
        ledger = {"ledger": str(int(written["ledger"])), "seconds": "0.01"}
        found = await load.read(given | ledger)
        assert found["entries"] % 500 == 0 < found["entries"]
        assert found["bytes"] == 100 * found["entries"]


async def test_what_takes_time_is_timed_each_time(cluster: LiveCluster) -> None:
    async with loading(cluster) as (load, given):
        singly = await load.add_singly(given | {"seconds": "0.05"})
        recovered = await load.recover(given | {"entries": "50", "ledgers": "2"})
        told = {"entries": "5", "pause_ms": "1", "lac_ms": "10"}
        tailed = await load.tail(given | told)
        assert (recovered["count"], tailed["count"]) == (2, 5)
        for times in (singly, recovered, tailed):
            assert 0 < times["p50_ms"] <= times["p99_ms"]
