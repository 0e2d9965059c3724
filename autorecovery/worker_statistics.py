"""What a worker counts, under the names that BookKeeper's operators know."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.metrics import Registry, Sample, counter, gauge


class WorkerStatistics:
    def __init__(self, registry: Registry) -> None:
        self.repairs = registry.summary(
            "replication_worker_rereplicate", help="Repairs of one ledger each, in ms."
        )
        name = "replication_worker_"
        self.reads = registry.summary(
            f"{name}READ_DATA_LATENCY", help="Reads of a piece of entries each, in ms."
        )
        self.writes = registry.summary(
            f"{name}WRITE_DATA_LATENCY", help="A piece until it is durable at its target, in ms."
        )
        self.bytes_read = registry.summary(f"{name}NUM_BYTES_READ", help="Bytes of such reads.")
        self.bytes_written = registry.summary(
            f"{name}NUM_BYTES_WRITTEN", help="Bytes of such pieces."
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

    def on_read(self, seconds: float, size: int) -> None:
        """A piece came from a source, or did not: then its size is 0."""
        timer = self.reads.success if size else self.reads.failure
        timer.record(seconds * 1000)
        if size:
            self.bytes_read.success.record(size)

    def on_write(self, seconds: float, size: int, *, is_ok: bool) -> None:
        timer = self.writes.success if is_ok else self.writes.failure
        timer.record(seconds * 1000)
        if is_ok:
            self.bytes_written.success.record(size)

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
