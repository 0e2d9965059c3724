"""Which entries of a ledger are stored here: by the write cache and the index, no log is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookie.core.entry_ranges import Range, merged, ranges_of
from bookie.core.ledger import Ledger
from bookie.storage.index_interface import Index
from bookie.storage.indexed_run import IndexedRun

_PAGE_RUNS: Final = 256


def indexed_runs(index: Index, ledger_id: int) -> Iterator[IndexedRun]:
    """The runs of one ledger, by last entry, damaged ones and overlapping copies included."""
    after = b""
    while True:
        page = index.runs_from(ledger_id, 0, count_max=_PAGE_RUNS, after=after)
        yield from page
        if len(page) < _PAGE_RUNS:
            return
        after = page[-1].key


def indexed_entries(index: Index, ledger_id: int) -> list[Range]:
    """What the index has of a ledger. A damaged run counts as missing: it is due for repair."""
    return merged(
        ids
        for run in indexed_runs(index, ledger_id)
        if not run.is_damaged
        for ids in ranges_of(run.entry_ids())
    )


def list_entries(ledger: Ledger, index: Index) -> list[Range]:
    """What is here of a ledger, in memory or in logs; ascending, neighbours together.

    The cache first: what a checkpoint moves meanwhile is then seen twice, and not missed.
    """
    parts = [*ledger.sealed, *([ledger.active] if ledger.active is not None else [])]
    cached = [
        ids
        for part in parts
        for group in (sorted(part.entries), *(run.ids for run in part.runs))
        for ids in ranges_of(group)
    ]
    return merged([*cached, *indexed_entries(index, ledger.id)])
