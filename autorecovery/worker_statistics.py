"""What a worker counts, under the names that BookKeeper's operators know."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.metrics import Registry, Sample, counter, gauge


class WorkerStatistics:
    def __init__(self, registry: Registry) -> None:
        self.repairs = registry.summary(
            "replication_worker_rereplicate", help="Repairs of one ledger each, in ms."
        )
        self.ledgers_done = 0
        self.fragments_done = 0
        self.entries_copied = 0
        self.bytes_copied = 0
        self.entries_unread = 0
        self.deferred = 0
        self.fenced = 0
        self.relocated = 0
        self.locks_lost = 0
        self.parked = 0
        self.in_work = 0
        registry.add_source(self._samples)

    def _samples(self) -> Iterator[Sample]:
        name = "replication_worker_"
        yield counter(f"{name}NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", self.ledgers_done)
        yield counter(f"{name}NUM_ENTRIES_READ", self.entries_copied)
        yield counter(f"{name}NUM_ENTRIES_WRITTEN", self.entries_copied)
        yield counter(f"{name}NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION", self.entries_unread)
        yield counter(f"{name}NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER", self.deferred)
        yield counter(f"{name}NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED", self.relocated)
        yield counter("quire_replication_worker_bytes", self.bytes_copied)
        yield counter("quire_replication_worker_fragments", self.fragments_done)
        yield counter("quire_replication_worker_writers_fenced", self.fenced)
        yield counter("quire_replication_worker_locks_lost", self.locks_lost)
        yield counter("quire_replication_worker_verdicts", self.parked)
        yield gauge("quire_replication_worker_in_work", self.in_work)
