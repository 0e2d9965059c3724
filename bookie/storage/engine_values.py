"""What the owner of an engine tells it, hears from it and can ask of it. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bookie.core.ledger import Ledger
from bookie.storage.disk_watch import Acceptance
from bookie.storage.entry_log_writer import CACHED_BYTES
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.ledger_directory import LedgerDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Sizes and times. Operators reach them by Apache's keys; docs/configuration.md names them."""

    generation_bytes: int = 12 << 20
    write_cache_bytes: int = 96 << 20
    flush_interval_seconds: float = 10.0
    read_cache_bytes: int = 48 << 20
    log_bytes: int = 1 << 30
    log_cached_bytes: int = CACHED_BYTES  # of each directory, in the page cache
    ledgers_in_memory: int = 100_000
    journal_pending_bytes: int = 64 << 20
    reader_count: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCallbacks:
    """What the engine tells its owner, always in the event loop."""

    #: Tokens of commits, fences and forces, as soon as they may be answered.
    on_durable: Callable[[list[object]], None]
    #: The LAC of a ledger with waiters rose, or the ledger was fenced or dropped.
    on_news: Callable[[Ledger], None] = lambda ledger: None
    #: A directory cannot be written, or can again; `on_acceptance` says what follows from it.
    on_trouble: Callable[[LedgerDirectory, Exception | None], None] = lambda directory, error: None
    #: A run cannot be read: count it, report it for re-replication.
    on_damage: Callable[[int, IndexedRun, Exception], None] = lambda directory, run, error: None
    #: The bookie takes entries no longer, or again: its registration should say so.
    on_acceptance: Callable[[Acceptance], None] = lambda acceptance: None
    #: A block of a journal is durable: the journal's number, seconds, payload bytes, records.
    on_journal_write: Callable[[int, float, int, int], None] = lambda *write: None
    #: A generation is in every index.
    on_checkpoint: Callable[[int], None] = lambda number: None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    entries_added: int
    bytes_added: int
    entries_read: int
    read_errors: int
    write_cache_bytes: int
    write_cache_items: int  # entries and batches
    generations_waiting: int
    read_cache_bytes: int
    read_cache_blocks: int
    read_cache_hits: int
    read_cache_misses: int
    ledgers_in_memory: int
    journal_pending_bytes: int
