"""A bookie is killed in the middle of a ledger: the benchmark's story, in small."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from bench.failover import Story, append_all, bars, faults, record_faults, told
from ledger_client import LedgerClient
from tests.ledger_client.live.cluster import LiveCluster
from wire.types import BookieId

ENTRIES = 20_000


async def test_bookie_that_is_killed_costs_no_confirmed_entry(cluster: LiveCluster) -> None:
    story = Story(ENTRIES, 100)

    async def kill(bookie_id: BookieId) -> None:
        await trio.to_thread.run_sync(cluster.bookies[bookie_id].kill)

    try:
        async with LedgerClient(cluster.uri) as client:
            await append_all(client, kill, story, kill_at=0.4)
        async with LedgerClient(cluster.uri) as client:
            assert [fault async for fault in faults(client, story)] == []
            metadata = await client.metadata(story.ledger_id)
            assert sum(count for _, count in story.confirmed) == ENTRIES
            assert sum(story.steps()) == ENTRIES
            assert any("fragments" in line for line in told(story, metadata))
            await _notices_what_is_wrong(client, story)
    finally:
        await trio.to_thread.run_sync(cluster.bookies[BookieId(story.killed)].start)


async def _notices_what_is_wrong(client: LedgerClient, story: Story) -> None:
    """Its checks are worth something only if they fail."""
    metadata = await client.metadata(story.ledger_id)
    whole = replace(metadata, fragments=metadata.fragments[:1])
    assert any("not replaced" in fault for fault in record_faults(whole, story))
    longer = Story(ENTRIES + 1, 100)
    longer.killed = story.killed
    assert len(list(record_faults(metadata, longer))) == 2
    number = story.written[777]
    story.written[777] = story.written[778]
    found = [fault async for fault in faults(client, story)]
    story.written[777] = number
    assert found[0] == "two payloads were confirmed with one id"
    assert "entry 777 reads as something else" in found[1]


@pytest.mark.parametrize("killed_at", [0.0, 0.31, 0.35])
def test_rates_are_counted_from_the_kill_on(killed_at: float) -> None:
    story = Story(1000, 100)
    story.killed_at = killed_at
    story.confirmed = [(0.05 * i, 10) for i in range(1, 40) if not 8 <= i < 20]
    story.seconds = 2.0
    steps = story.steps()
    assert sum(steps) == 10 * len(story.confirmed)
    before = sum(count for at, count in story.confirmed if at < killed_at)
    assert sum(steps[: story.kill_step]) == before


def test_dip_is_told_by_silence_and_by_when_it_is_over() -> None:
    story = Story(1000, 100)
    story.killed_at = 1.001
    story.confirmed = [(0.01 * i + 0.005, 10) for i in range(300) if not 105 <= i < 140]
    story.seconds = 3.0
    assert story.usual == 100
    assert 0.35 <= story.silence_seconds <= 0.37
    assert story.back_after_seconds == pytest.approx(0.4)


def test_bars_grow_with_the_counts() -> None:
    assert bars([0, 1, 50, 100], 100) == ".▁▄█"
