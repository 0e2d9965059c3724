"""The metrics of autorecovery have Apache's names and kinds, and the forecast is among them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import trio
import trio.testing

from autorecovery.auditor import Auditor
from autorecovery.core.forecast import Forecast
from autorecovery.statistics import AuditorStatistics
from autorecovery.worker_statistics import WorkerStatistics
from runtime.metrics import Registry
from tests.autorecovery.auditor_world import AuditWorld, bookie
from tests.autorecovery.worker_world import RepairWorld

VECTORS = Path(__file__).parent.parent / "vectors" / "metrics.json"


def kinds(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def test_every_metric_of_apaches_auditor_is_exported() -> None:
    registry = Registry()
    AuditorStatistics(registry)
    exported = kinds(registry.render())
    wanted = {
        family["name"]: family["type"]
        for family in json.loads(VECTORS.read_text())["autorecovery"]
        if family["name"].startswith("auditor_")
    }
    assert len(wanted) == 26
    assert {name: exported.get(name) for name in wanted} == wanted


def test_every_metric_of_apaches_worker_is_exported() -> None:
    registry = Registry()
    WorkerStatistics(registry)
    exported = kinds(registry.render())
    wanted = {
        family["name"]: family["type"]
        for family in json.loads(VECTORS.read_text())["autorecovery"]
        if family["name"].startswith("replication_worker_")
    }
    assert "replication_worker_READ_DATA_LATENCY" in wanted
    missing = {name: kind for name, kind in wanted.items() if exported.get(name) != kind}
    assert not missing


async def test_a_worker_counts_what_it_copies(autojump_clock: trio.testing.MockClock) -> None:
    world = RepairWorld(4)
    world.ledger(1, entries=5)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    worker = await world.heal()
    statistics = worker.statistics
    for summary in (statistics.reads, statistics.writes):
        assert summary.success.snapshot().count == 1
        assert summary.failure.snapshot().count == 0
    written = statistics.bytes_written.success.snapshot().total
    assert statistics.bytes_read.success.snapshot().total == written > 0


def test_the_forecast_is_exported() -> None:
    registry = Registry()
    statistics = AuditorStatistics(registry)
    statistics.counts.forecast = Forecast(
        ledgers=3, fragments=4, bytes_left=1000, parked=1, parked_bytes=200,
        bytes_per_second=100.0, ledgers_per_second=1.0,
    )  # fmt: skip
    lines = registry.render().splitlines()
    for line in (
        "quire_recovery_ledgers_left 3",
        "quire_recovery_fragments_left 4",
        "quire_recovery_bytes_left 1000",
        "quire_recovery_ledgers_parked 1",
        "quire_recovery_bytes_per_second 100.0",
        "quire_recovery_seconds_left 8.0",
    ):
        assert line in lines


async def test_an_auditor_counts_what_it_does(autojump_clock: trio.testing.MockClock) -> None:
    world = AuditWorld()
    for number in range(3):
        world.ledger(number)
    async with world.context() as context, trio.open_nursery() as nursery:
        nursery.start_soon(Auditor(context).run)
        await trio.sleep(1)
        world.leave(bookie(0))
        await trio.sleep(40)
        text = context.registry.render()
        nursery.cancel_scope.cancel()
    lines = text.splitlines()
    assert 'auditor_NUM_UNDER_REPLICATED_LEDGERS_sum{success="true"} 3.0' in lines
    assert 'auditor_UNDER_REPLICATED_LEDGERS_TOTAL_SIZE_sum{success="true"} 3000.0' in lines
    assert 'auditor_AUDIT_BOOKIES_TIME_count{success="true"} 2' in lines
    assert 'auditor_URL_PUBLISH_TIME_FOR_LOST_BOOKIE_count{success="true"} 1' in lines
    assert "quire_auditor_is_elected 1" in lines
    assert "quire_recovery_ledgers_left 3" in lines
    assert "quire_recovery_bytes_left 3000" in lines
