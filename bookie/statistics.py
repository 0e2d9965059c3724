"""What a bookie counts, under the names that BookKeeper's dashboards know.

Latencies are recorded once per batch with the number of requests that shared them. Everything else
is counted in plain fields by whoever does the work, and turned into samples at a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from bookie.operations import Reply
from bookie.storage.engine_values import EngineStatistics
from bookie.storage.reads import Batch
from runtime.metrics import Registry, Sample, Summary, counter, gauge, name_part
from wire.errors import Status
from wire.messages import Response

if TYPE_CHECKING:
    from bookie.bookie import Bookie
    from bookie.commits import Commit

#: Our short names for what BookKeeper calls an operation of its server.
_OPERATIONS: Final = {
    "add": "ADD_ENTRY",
    "read": "READ_ENTRY",
    "fence": "READ_ENTRY_FENCE",
    "long_poll": "READ_ENTRY_LONG_POLL",
    "write_lac": "WRITE_LAC",
    "read_lac": "READ_LAC",
    "force": "FORCE_LEDGER",
    "list": "GET_LIST_OF_ENTRIES_OF_LEDGER",
    "info": "GET_BOOKIE_INFO",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieStatistics:
    """One moment of a running bookie."""

    engine: EngineStatistics
    connections: int
    long_polls: int
    adds_waiting: int  # connections held back for want of room
    blocked: int  # connections that do not read their answers
    bytes_sent: int
    adds_refused: int
    protocol_errors: int
    storage_errors: int
    read_only: bool


class _JournalSummaries(NamedTuple):
    """What a journal's writes looked like: writing and syncing are one call here."""

    sync: Summary
    batch_bytes: Summary
    batch_records: Summary

    @classmethod
    def of(cls, registry: Registry, number: int) -> Self:
        return cls(
            *(
                registry.summary(f"bookie_journal_JOURNAL_{name}", journalIndex=str(number))
                for name in ("SYNC", "FORCE_WRITE_BATCH_BYTES", "FORCE_WRITE_BATCH_ENTRIES")
            )
        )


class RequestMetrics:
    """Distributions of request latencies (milliseconds) and sizes (bytes)."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_name: dict[str, Summary] = {
            name: registry.summary(f"bookkeeper_server_{theirs}_REQUEST")
            for name, theirs in _OPERATIONS.items()
        }
        for name in ("add", "read", "write_lac", "read_lac", "force", "list", "info"):
            # The storage's part is all there is to a request here.
            registry.alias(f"bookkeeper_server_{_OPERATIONS[name]}", self._by_name[name])
        for name in ("add", "read", "list"):
            registry.alias(f"bookie_BOOKIE_{_OPERATIONS[name]}", self._by_name[name])
        self._add = self._by_name["add"]
        self._read = self._by_name["read"]
        self._poll_wait = registry.summary("bookkeeper_server_READ_ENTRY_LONG_POLL_WAIT")
        self._add_bytes = registry.summary("bookie_BOOKIE_ADD_ENTRY_BYTES")
        self._read_bytes = registry.summary("bookie_BOOKIE_READ_ENTRY_BYTES")
        self._registry = registry
        self._journals: list[_JournalSummaries] = []
        self.adds_refused = 0
        self.adds_too_many = 0
        self.bytes_read = 0

    @property
    def forces(self) -> int:
        """How many were asked for."""
        force = self._by_name["force"]
        return force.success.snapshot().count + force.failure.snapshot().count

    def committed(self, commit: Commit, now: float) -> None:
        """The adds of one receive buffer are durable."""
        self._add.success.record((now - commit.since) * 1000, commit.count)
        self._add_bytes.success.record(commit.bytes / commit.count, commit.count)

    def journal_wrote(self, journal: int, seconds: float, size: int, records: int) -> None:
        """A block of a journal is durable. Each journal has its own distributions."""
        while journal >= len(self._journals):
            self._journals.append(_JournalSummaries.of(self._registry, len(self._journals)))
        summaries = self._journals[journal]
        summaries.sync.success.record(seconds * 1000)
        summaries.batch_bytes.success.record(size)
        summaries.batch_records.success.record(records)

    def refused_adds(self, count: int, status: Status) -> None:
        self.adds_refused += count
        if status is Status.TOO_MANY_REQUESTS:
            self.adds_too_many += count
        self._add.failure.record(0.0, count)

    def reads(self, answers: Sequence[bytes | Status], size: int, since: float) -> None:
        took_ms = (self._clock() - since) * 1000
        found = list(map(type, answers)).count(bytes)
        if found:
            self._read.success.record(took_ms, found)
            self._read_bytes.success.record(size / found, found)
            self.bytes_read += size
        if found < len(answers):
            self._read.failure.record(took_ms, len(answers) - found)

    def batch_read(self, batch: Batch) -> None:
        size = sum(map(len, batch.pieces))
        self.bytes_read += size
        self._read_bytes.success.record(size / batch.entry_count, batch.entry_count)

    def polled(self, seconds: float) -> None:
        self._poll_wait.success.record(seconds * 1000)

    def timed(self, name: str, reply: Reply) -> Reply:
        """`reply`, and record how long it took until then."""
        summary = self._by_name[name]
        since = self._clock()

        def reply_and_record(response: Response) -> None:
            took_ms = (self._clock() - since) * 1000
            is_fine = response.status is Status.OK
            (summary.success if is_fine else summary.failure).record(took_ms)
            reply(response)

        return reply_and_record


def samples(bookie: Bookie) -> Iterator[Sample]:
    """A bookie's counters and gauges, for `Registry.add_source`."""
    now = bookie.statistics()
    engine = now.engine
    yield gauge("bookie_SERVER_STATUS", 0 if now.read_only else 1)
    yield counter("bookie_WRITE_BYTES", engine.bytes_added)
    yield counter("bookie_READ_BYTES", bookie.metrics.bytes_read)
    yield gauge("bookie_JOURNAL_DIRS", len(bookie.engine.journals))
    yield counter("bookie_BOOKIE_FORCE_LEDGER", bookie.metrics.forces)
    yield counter("bookkeeper_server_ADD_ENTRY_REJECTED", bookie.metrics.adds_too_many)
    yield gauge("bookkeeper_server_ADD_ENTRY_BLOCKED", now.adds_waiting)
    yield gauge("bookie_write_cache_size", engine.write_cache_bytes)
    yield gauge("bookie_write_cache_count", engine.write_cache_items)
    yield gauge("bookie_write_cache_max_size", bookie.engine.options.write_cache_bytes)
    yield gauge("bookie_read_cache_size", engine.read_cache_bytes)
    yield gauge("bookie_read_cache_count", engine.read_cache_blocks)
    yield counter("bookie_read_cache_hits", engine.read_cache_hits)
    yield counter("bookie_read_cache_misses", engine.read_cache_misses)
    yield gauge("quire_connections", now.connections)
    yield gauge("quire_connections_blocked", now.blocked)
    yield gauge("quire_long_polls", now.long_polls)
    yield gauge("quire_generations_waiting", engine.generations_waiting)
    yield gauge("quire_ledgers_in_memory", engine.ledgers_in_memory)
    yield counter("quire_protocol_errors", now.protocol_errors)
    yield counter("quire_storage_errors", now.storage_errors)
    yield gauge("quire_damaged_runs", len(bookie.damaged))
    for index, journal in enumerate(bookie.engine.journals):
        labels = {"journalIndex": str(index)}
        found = journal.statistics()
        yield counter("bookie_journal_JOURNAL_WRITE_BYTES", found.written_bytes, **labels)
        yield gauge("bookie_journal_JOURNAL_MEMORY_USED", found.pending_bytes, **labels)
        yield counter("bookie_journal_JOURNAL_QUEUE_SIZE", found.queue_length, **labels)
        memory = bookie.engine.options.journal_pending_bytes
        yield gauge("bookie_journal_JOURNAL_MEMORY_MAX", memory, **labels)
        yield counter("quire_journal_blocks", found.blocks, **labels)
        yield counter("quire_journal_records", found.records, **labels)
        yield counter("quire_journal_syncs", found.syncs, **labels)
        yield counter("quire_journal_padding_bytes", found.padding_bytes, **labels)
    yield from _directories(bookie, is_writable=not bookie.engine.upkeep.disks.acceptance.read_only)


def _directories(bookie: Bookie, *, is_writable: bool) -> Iterator[Sample]:
    """An index lies in the directory of its entry logs, so that both have the same numbers."""
    count = len(bookie.engine.directories)
    for kind in ("ledger", "index"):
        yield gauge(f"bookie_{kind}_num_dirs", count)
        yield gauge(f"bookie_{kind}_writable_dirs", count if is_writable else 0)
    for directory, space in bookie.spaces().items():
        used = 100 * (1 - space.free_bytes / space.total_bytes) if space.total_bytes else 100.0
        for kind in ("ledger", "index"):
            yield gauge(f"bookie_{kind}_dir_{name_part(directory)}_usage", used)
        yield gauge("quire_directory_usage", used, directory=directory)
        yield gauge("quire_directory_free_bytes", space.free_bytes, directory=directory)
