"""What a bookie exports: BookKeeper's names where it has them, and honest numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bookie.statistics import samples
from tests.bookie_server.world import Client, World, running
from wire.messages import ReadRequest
from wire.types import LedgerId

FAMILIES = json.loads((Path(__file__).parent.parent / "vectors" / "metrics.json").read_text())
APACHE = {
    family["name"]: family for family in (*FAMILIES["bookie"], *FAMILIES["bookie_sorted_storage"])
}


async def page_of(world: World) -> str:
    world.registry.add_source(lambda: samples(world.bookie))
    return world.registry.render()


async def busy(world: World) -> Client:
    client = await world.connect()
    await client.add_v2(1, 0, 1, 2)
    for _ in range(3):
        await client.answer_v2()
    await client.ask_v2(ReadRequest(ledger_id=LedgerId(1), entry_id=0))
    await client.ask_v2(ReadRequest(ledger_id=LedgerId(1), entry_id=9))
    return client


async def test_every_name_is_bookkeepers_or_ours() -> None:
    async with running() as world:
        page = await page_of(world)
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M):
        if name.startswith("quire_"):
            continue
        if name.startswith(("bookie_ledger_dir_", "bookie_index_dir_")):  # with a path in the name
            assert kind == "gauge"
            continue
        assert name in APACHE, f"{name} is no metric of Apache's: call it quire_..."
        assert APACHE[name]["type"] == kind, name


async def test_requests_are_counted_by_outcome() -> None:
    async with running() as world:
        await busy(world)
        page = await page_of(world)
    assert 'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"} 3\n' in page
    assert 'bookkeeper_server_READ_ENTRY_REQUEST_count{success="true"} 1\n' in page
    assert 'bookkeeper_server_READ_ENTRY_REQUEST_count{success="false"} 1\n' in page
    assert "bookie_SERVER_STATUS 1\n" in page
    assert re.search(r"^bookie_WRITE_BYTES [1-9]", page, re.M)


async def test_writes_of_a_journal_are_counted_with_their_sizes() -> None:
    async with running() as world:
        await busy(world)
        page = await page_of(world)
    labels = 'success="true",journalIndex="0"'

    def of(name: str) -> float:
        found = re.search(rf"^bookie_journal_JOURNAL_{name}{{{labels}}} (\S+)$", page, re.M)
        assert found is not None, page
        return float(found[1])

    blocks = of("SYNC_count")
    assert blocks > 0
    assert of("FORCE_WRITE_BATCH_ENTRIES_count") == of("FORCE_WRITE_BATCH_BYTES_count") == blocks
    assert of("FORCE_WRITE_BATCH_BYTES_sum") > 3 * len(b"payload")


async def test_statistics_are_a_snapshot() -> None:
    async with running() as world:
        before = world.bookie.statistics()
        await busy(world)
        after = world.bookie.statistics()
    assert (before.connections, after.connections) == (0, 1)
    assert (before.engine.entries_added, after.engine.entries_added) == (0, 3)
