"""What the storage of a bookie counts, under the names that BookKeeper's dashboards know.

Directories are labels here. Threads of the store leave what they did in plain fields and bounded
queues; it is collected at a scrape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from bookie.collector import Collector
from bookie.core.compaction import Kind
from bookie.storage.engine import Engine
from bookie.storage.garbage_values import GarbageStatistics
from bookie.storage.index_format import LogState
from bookie.storage.ledger_directory import LedgerDirectory
from runtime.metrics import Registry, Sample, Summary, counter, gauge

_TENTHS: Final = 10


class StorageMetrics:
    """Registers itself; `samples` is asked at every scrape."""

    def __init__(self, registry: Registry, engine: Engine, collector: Collector) -> None:
        self._engine = engine
        self._collector = collector
        self._rounds_seen = 0
        self._collecting = registry.summary("bookie_GC_LEDGER_RUNTIME")
        self._directories = [
            _DirectoryMetrics(registry, directory) for directory in engine.directories
        ]
        registry.add_source(self.samples)

    def samples(self) -> Iterator[Sample]:
        collector, upkeep = self._collector, self._engine.upkeep
        last = collector.last_round
        if last is not None and collector.rounds != self._rounds_seen:
            self._rounds_seen = collector.rounds
            side = self._collecting.failure if last.error else self._collecting.success
            side.record(last.seconds * 1000)
        # Nobody has counted them before the first round of the collector.
        ledgers = last.local if last is not None and not last.error else math.nan
        yield gauge("bookie_ledgers_count", ledgers)
        yield gauge("bookie_ACTIVE_LEDGER_TOTAL", ledgers)
        yield gauge("quire_disk_is_tight", int(upkeep.disks.is_tight))
        for metrics, statistics in zip(self._directories, upkeep.statistics(), strict=True):
            yield from metrics.samples(statistics)


class _DirectoryMetrics:
    def __init__(self, registry: Registry, directory: LedgerDirectory) -> None:
        self._directory = directory
        self._labels = {"ledgerDir": directory.path, "indexDir": directory.path}
        self._rounds = dict.fromkeys(Kind, 0)

        def summary(name: str) -> Summary:
            return registry.summary(f"bookie_{name}", **self._labels)

        self._flush = summary("flush")
        self._flush_log = summary("flush_entrylog")
        self._flush_index = summary("flush_locations_index")
        self._flush_size = summary("flush_size")
        self._compaction = summary("COMPACT_RUNTIME")

    def samples(self, found: GarbageStatistics) -> Iterator[Sample]:
        self._record(found)
        labels = self._labels
        logs = self._directory.table.uses(*LogState)
        total = sum(log.bytes for log in logs)
        living = sum(log.live_bytes for log in logs)
        yield gauge("bookie_ACTIVE_ENTRY_LOG_TOTAL", len(logs), **labels)
        yield gauge("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", living, **labels)
        yield gauge("bookie_ENTRY_LOG_SPACE_BYTES", total, **labels)
        yield gauge("bookie_ENTRY_LOG_COMPACT_RATIO", living / total if total else 0.0, **labels)
        buckets = [0] * _TENTHS
        for log in logs:
            buckets[min(int(log.share * _TENTHS), _TENTHS - 1)] += 1
        for tenth, count in enumerate(buckets, 1):
            yield gauge(f"bookie_entry_log_usage_buckets_le_{tenth * 10}", count, **labels)
        yield from _garbage(found, labels)

    def _record(self, found: GarbageStatistics) -> None:
        flushes = self._directory.flushes
        while flushes:
            flush = flushes.popleft()
            self._flush.success.record(flush.log_ms + flush.index_ms)
            self._flush_log.success.record(flush.log_ms)
            self._flush_index.success.record(flush.index_ms)
            self._flush_size.success.record(flush.bytes)
        for kind, rounds in found.rounds.items():
            if rounds != self._rounds[kind]:
                self._rounds[kind] = rounds
                self._compaction.success.record(found.last_round_seconds[kind] * 1000)


def _garbage(found: GarbageStatistics, labels: Mapping[str, str]) -> Iterator[Sample]:
    yield counter("bookie_MAJOR_COMPACTION_TOTAL", found.rounds[Kind.MAJOR], **labels)
    yield counter("bookie_MINOR_COMPACTION_TOTAL", found.rounds[Kind.MINOR], **labels)
    yield counter("bookie_ENTRY_LOCATION_COMPACTION_TOTAL", found.index_compactions, **labels)
    yield counter("bookie_DELETED_LEDGER_TOTAL", found.ledgers_deleted, **labels)
    yield counter("bookie_RECLAIMED_DELETION_SPACE_BYTES", found.bytes_reclaimed, **labels)
    yield counter("quire_compaction_bytes_copied", found.bytes_copied, **labels)
    yield counter("quire_compaction_damaged_runs", found.damaged_runs, **labels)
    yield gauge("quire_ledgers_to_delete", found.ledgers_waiting, **labels)
