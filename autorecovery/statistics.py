"""What an auditor counts, under the names that BookKeeper's dashboards know, and the forecast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from autorecovery.core.audit import LossCounts
from autorecovery.core.forecast import Forecast
from runtime.metrics import Registry, Sample, Summary, counter, gauge


@dataclass(slots=True)
class AuditorCounts:
    """Plain fields: whoever does the work adds to them."""

    losses: LossCounts = field(default_factory=LossCounts)
    ledgers_checked: int = 0
    checks_skipped: int = 0
    entries_read: int = 0
    entries_written: int = 0
    no_replica: int = 0
    below_ack_quorum: int = 0
    below_write_quorum: int = 0
    misplaced: int = 0
    softly_placed: int = 0
    overdue: int = 0
    unreadable: int = 0
    undecided: int = 0
    recoveries_finished: int = 0
    recoveries_failed: int = 0
    stale_recoveries: int = 0
    is_auditor: bool = False
    forecast: Forecast = field(default_factory=Forecast)


class AuditorStatistics:
    def __init__(self, registry: Registry) -> None:
        self.counts = AuditorCounts()

        def summary(name: str) -> Summary:
            return registry.summary(f"auditor_{name}")

        self.audit_time = summary("AUDIT_BOOKIES_TIME")
        self.scan_time = summary("BOOKIE_TO_LEDGERS_MAP_CREATION_TIME")
        self.ledger_check_time = summary("CHECK_ALL_LEDGERS_TIME")
        self.placement_check_time = summary("PLACEMENT_POLICY_CHECK_TIME")
        self.replicas_check_time = summary("REPLICAS_CHECK_TIME")
        self.publish_time = summary("URL_PUBLISH_TIME_FOR_LOST_BOOKIE")
        self.bookies_per_ledger = summary("NUM_BOOKIES_PER_LEDGER")
        self.fragments_per_ledger = summary("NUM_FRAGMENTS_PER_LEDGER")
        self.marked = summary("NUM_UNDER_REPLICATED_LEDGERS")
        self.marked_bytes = summary("UNDER_REPLICATED_LEDGERS_TOTAL_SIZE")
        self.bytes_read = summary("NUM_BYTES_READ")
        self.bytes_written = summary("NUM_BYTES_WRITTEN")
        self.read_latency = summary("READ_DATA_LATENCY")
        self.write_latency = summary("WRITE_DATA_LATENCY")
        registry.add_source(self.samples)

    def samples(self) -> Iterator[Sample]:
        counts = self.counts
        for name, value in (
            ("NUM_BOOKIE_AUDITS_DELAYED", counts.losses.delayed),
            ("NUM_DELAYED_BOOKIE_AUDITS_CANCELLED", counts.losses.cancelled),
            ("NUM_ENTRIES_READ", counts.entries_read),
            ("NUM_ENTRIES_WRITTEN", counts.entries_written),
            ("NUM_LEDGERS_CHECKED", counts.ledgers_checked),
            ("NUM_SKIPPING_CHECK_TASK_TIMES", counts.checks_skipped),
        ):
            yield counter(f"auditor_{name}", value)
        for name, value in (
            ("NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY", counts.no_replica),
            ("NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY", counts.below_ack_quorum),
            ("NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY", counts.below_write_quorum),
            ("NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY", counts.misplaced),
            ("NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY", counts.softly_placed),
            ("NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD", counts.overdue),
        ):
            yield gauge(f"auditor_{name}", value)
        yield from self._own_samples()

    def _own_samples(self) -> Iterator[Sample]:
        counts, forecast = self.counts, self.counts.forecast
        yield gauge("quire_auditor_is_elected", counts.is_auditor)
        yield gauge("quire_recovery_ledgers_left", forecast.ledgers)
        yield gauge("quire_recovery_fragments_left", forecast.fragments)
        yield gauge("quire_recovery_bytes_left", forecast.bytes_left)
        yield gauge("quire_recovery_ledgers_parked", forecast.parked)
        yield gauge("quire_recovery_bytes_per_second", _known(forecast.bytes_per_second))
        yield gauge("quire_recovery_seconds_left", _known(forecast.seconds_left))
        yield gauge("quire_auditor_unreadable_records", counts.unreadable)
        yield gauge("quire_auditor_stale_recoveries", counts.stale_recoveries)
        yield counter("quire_auditor_replicas_undecided", counts.undecided)
        yield counter("quire_auditor_recoveries_finished", counts.recoveries_finished)
        yield counter("quire_auditor_recoveries_failed", counts.recoveries_failed)


@contextmanager
def timed(summary: Summary) -> Iterator[None]:
    """Record how long the block took, as a success or as a failure. A cancelled one is neither."""
    start = trio.current_time()
    try:
        yield
    except Exception:
        summary.failure.record((trio.current_time() - start) * 1000)
        raise
    summary.success.record((trio.current_time() - start) * 1000)


def _known(value: float | None) -> float:
    return float("nan") if value is None else value
