"""Which entries of a ledger are stored here: by the write cache and the index, no log is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bookie.core.entry_ranges import Range, merged, ranges_of
from bookie.core.ledger import Ledger
from bookie.storage.index_interface import Index
from bookie.storage.indexed_run import IndexedRun

_PAGE_RUNS: Final = 256


def indexed_runs(index: Index, ledger_id: int) -> Iterator[IndexedRun]:
    """The runs of one ledger, by last entry, damaged ones and overlapping copies included."""
    for page in _indexed_pages(index, ledger_id):
        yield from page


def _indexed_pages(index: Index, ledger_id: int) -> Iterator[Sequence[IndexedRun]]:
    after = b""
    while True:
        page = index.runs_from(ledger_id, 0, count_max=_PAGE_RUNS, after=after)
        yield page
        if len(page) < _PAGE_RUNS:
            return
        after = page[-1].key


def indexed_entries(index: Index, ledger_id: int) -> list[Range]:
    """What the index has of a ledger."""
    return _entries_of(indexed_runs(index, ledger_id))


def _entries_of(runs: Iterable[IndexedRun]) -> list[Range]:
    """A damaged run counts as missing: it is due for repair."""
    return merged(ids for run in runs if not run.is_damaged for ids in ranges_of(run.entry_ids()))


class EntryListing:
    """What is here of a ledger, in memory or in logs, found page by page.

    A ledger may have more runs than the event loop can look at in one go; in between it does other
    things. The cache is looked at first: what a checkpoint moves meanwhile is then seen twice, and
    not missed. What is added meanwhile may be in the list or not.
    """

    def __init__(self, ledger: Ledger, index: Index) -> None:
        parts = [*ledger.sealed, *([ledger.active] if ledger.active is not None else [])]
        self._ranges = merged(
            ids
            for part in parts
            for group in (sorted(part.entries), *(run.ids for run in part.runs))
            for ids in ranges_of(group)
        )
        self._pages = _indexed_pages(index, ledger.id)

    def step(self) -> bool:
        """Look at another page of the index; False when there was none."""
        page = next(self._pages, None)
        if page is None:
            return False
        self._ranges += _entries_of(page)
        return True

    def ranges(self) -> list[Range]:
        """Ascending, neighbours together."""
        return merged(self._ranges)
