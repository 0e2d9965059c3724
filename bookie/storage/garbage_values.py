"""What the garbage threads are told and what they tell. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from bookie.core.compaction import Kind, Rules
from bookie.storage.scrub import ScrubReport


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageOptions:
    rules: Rules = field(default_factory=Rules)
    #: Compaction's share of the disk, read and written bytes together; 0 is without limit.
    compaction_bytes_per_second: float = 32 << 20
    #: How long one round may take; logs that it did not get to wait for the next. 0: any time.
    round_seconds_max: float = 0.0
    scrub_bytes_per_second: float = 4 << 20
    #: Between scrubs of one log; 0 is never.
    scrub_seconds: float = 86400.0
    #: How full the write cache may be before compaction and scrub wait for the flush.
    fill_max: float = 0.5
    #: The journal's p99 above which compaction and scrub wait, unless the disk is full; 0: never.
    journal_seconds_max: float = 0.05
    #: How long a dropped ledger is remembered, so that a zombie writer cannot bring it back.
    tombstone_seconds: float = 7 * 86400.0


class Phase(Enum):
    IDLE = "idle"
    LISTING = "listing"
    DELETING = "deleting"
    REMOVING = "removing"
    COMPACTING = "compacting"
    SCRUBBING = "scrubbing"
    RESERVING = "reserving"
    TIDYING = "tidying the index"


class Listing(NamedTuple):
    """The ledgers of one directory as its index has them, ascending."""

    living: list[int]
    unfinished: list[int]  # dropped in an earlier life, and some of their runs are still there
    forgettable: list[int]  # dropped long ago, and nothing is left


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageStatistics:
    """A snapshot, for status pages and metrics. Counted since the start."""

    phase: Phase
    log_id: int | None  # being compacted
    bytes_done: int  # of that log
    bytes_total: int
    rounds: dict[Kind, int]
    last_round_seconds: dict[Kind, float]
    last_round_ms: dict[Kind, int]  # when it ended; the start of the bookie if none did
    compacting: Kind | None
    index_compactions: int
    index_compacted_ms: int
    is_index_compacting: bool
    ledgers_waiting: int  # dropped, runs not yet deleted
    ledgers_deleted: int
    runs_deleted: int
    logs_removed: int
    bytes_reclaimed: int  # sizes of the files removed
    bytes_copied: int
    damaged_runs: int
    unreadable_logs: int
    scrub: ScrubReport | None
