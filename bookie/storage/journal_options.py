"""What the owner of a journal tells it, hears from it and can ask of it. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bookie.storage.journal_files import JournalSpaceError
from bookie.storage.journal_format import PAYLOAD_BYTES_MAX, JournalError


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    file_bytes: int = 256 * 1024 * 1024
    #: Soft limit of one block; a bigger backlog becomes several.
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    #: Files that replay no longer needs and that are kept to be used again.
    spare_files_max: int = 3
    #: False: acknowledge what reached the operating system, force included, and sync files only
    #: when they are full. A power loss then loses acknowledged entries.
    sync_data: bool = True
    #: Wait this long for company before each write. Only rotating disks gain by it.
    group_wait_seconds: float = 0.0


def ignore(*_: object) -> None:
    """For whoever does not want to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCallbacks:
    """What the journal tells its owner, always in the event loop."""

    #: Tokens of appends and forces, in order, as soon as they may be acknowledged.
    on_durable: Callable[[list[object]], None]
    #: Once, with the first error of a write or sync. Nothing will be acknowledged any more.
    on_failure: Callable[[JournalError], None]
    #: No further file can be prepared (take no adds until it is over); None when one could again.
    on_shortage: Callable[[JournalSpaceError | None], None] = ignore
    #: Seconds of one block write, its payload bytes and its records.
    on_write: Callable[[float, int, int], None] = ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    """Counted since the journal was opened."""

    blocks: int
    records: int
    payload_bytes: int
    written_bytes: int  # payload, headers and padding
    padding_bytes: int
    syncs: int  # durable writes and explicit syncs
    group_records_max: int
    pending_bytes: int
    queue_length: int  # appends that the writing thread has not taken yet
    files_created: int
    files_recycled: int
    file_count: int
    stalled: bool
