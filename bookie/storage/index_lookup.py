"""Reading the index, once for both of its forms: everything in terms of a cursor over keys.

The cursor's methods are those of RocksDB's iterator, which is used as it is. An iterator that
is no longer valid has come to the end *or met an unreadable block*, and only `status` can tell:
without asking it, damage would read as "no such entry".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, Protocol

from bookie.storage.index_format import (
    LEDGER_PREFIX,
    LOG_PREFIX,
    MARK_KEY,
    RUN_PREFIX,
    LogMark,
    StoredLedgerState,
    StoredLog,
    decode_ledger_state,
    decode_log,
    decode_mark,
    decode_run_key,
    id_in_key,
    ledger_key,
    run_key,
    run_prefix,
)
from bookie.storage.indexed_run import RUN_SPAN, IndexedRun
from wire.errors import LedgerError
from wire.types import ID_MAX, NO_ENTRY, LedgerId

#: Keys per page of a long walk. Between pages there is no cursor, so nothing is pinned.
_PAGE_KEYS: Final = 1000
_LOCATION_MAX: Final = 2**64 - 1


class Cursor(Protocol):
    def seek(self, key: bytes, /) -> None:
        """Go to the first key that is not below this one."""

    def seek_for_prev(self, key: bytes, /) -> None:
        """Go to the last key that is not above this one."""

    def next(self) -> None: ...

    def valid(self) -> bool: ...

    def status(self) -> None:
        """Raise what ended the walk, if it was not the end of the keys."""

    def key(self) -> bytes: ...

    def value(self) -> bytes: ...


class IndexLookup(ABC):
    """The reading half of an index."""

    @abstractmethod
    def _run_cursor(self) -> Cursor:
        """A cursor that ends where the keys of the ledger end that it was sent to."""

    @abstractmethod
    def _cursor(self) -> Cursor:
        """A cursor over all keys."""

    @abstractmethod
    def _failure(self, error: Exception) -> LedgerError:
        """What to raise in place of an error of the database."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    def mark(self) -> LogMark | None:
        value = self.get(MARK_KEY)
        return None if value is None else decode_mark(value)

    def ledger_state(self, ledger_id: int) -> StoredLedgerState | None:
        value = self.get(ledger_key(ledger_id))
        return None if value is None else decode_ledger_state(ledger_id, value)

    def ledger_ids(self) -> Iterator[LedgerId]:
        for page in self._pages(LEDGER_PREFIX, values=False):
            for key, _ in page:
                yield LedgerId(id_in_key(key))

    def ledger_states(self) -> Iterator[tuple[LedgerId, StoredLedgerState]]:
        for page in self._pages(LEDGER_PREFIX):
            for key, value in page:
                ledger_id = LedgerId(id_in_key(key))
                yield ledger_id, decode_ledger_state(ledger_id, value)

    def logs(self) -> Iterator[tuple[int, StoredLog]]:
        for page in self._pages(LOG_PREFIX):
            for key, value in page:
                log_id = id_in_key(key)
                yield log_id, decode_log(log_id, value)

    def runs(self) -> Iterator[IndexedRun]:
        for page in self._pages(RUN_PREFIX):
            for key, value in page:
                yield IndexedRun(key, value)

    def run_offsets(self, log_id: int) -> list[int]:
        return list(self.run_keys(log_id))

    def run_keys(self, log_id: int) -> dict[int, bytes]:
        keys = {}
        for page in self._pages(RUN_PREFIX, values=False):
            for key, _ in page:
                _, _, location = decode_run_key(key)
                if location >> 32 == log_id:
                    keys[location & 0xFFFFFFFF] = key
        return dict(sorted(keys.items()))

    def find_run(self, ledger_id: int, entry_id: int) -> IndexedRun | None:
        """The first undamaged run met, without looking for newer ones.

        Copies of an entry are equal by protocol, so any will do, and the walk usually ends at
        its first key instead of its ninth. Who cannot read the run found asks `find_runs`.
        """
        damaged = None
        try:
            cursor = self._run_cursor()
            cursor.seek(run_key(ledger_id, entry_id, 0))
            while cursor.valid():
                run = IndexedRun(cursor.key(), cursor.value())
                if run.position(entry_id) >= 0:
                    if not run.is_damaged:
                        return run
                    damaged = run
                elif run.last >= entry_id + RUN_SPAN:  # it begins behind the entry, as do others
                    return damaged
                cursor.next()
            cursor.status()
        except LedgerError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return damaged

    def find_runs(self, ledger_id: int, entry_id: int) -> list[IndexedRun]:
        found = []
        end = run_key(ledger_id, entry_id + RUN_SPAN, 0)
        # A run spans fewer than RUN_SPAN ids: one that ends at `end` begins behind the entry.
        for key, value in self._walk(run_key(ledger_id, entry_id, 0), end, within_ledger=True):
            run = IndexedRun(key, value)
            if run.position(entry_id) >= 0:
                found.append(run)
        found.sort(key=attrgetter("sequence", "location"), reverse=True)
        found.sort(key=attrgetter("is_damaged"))  # stable: the newest stay in front
        return found

    def runs_from(
        self, ledger_id: int, entry_id: int, *, count_max: int, after: bytes = b""
    ) -> list[IndexedRun]:
        # The smallest key behind `after` is that key with a zero byte.
        start = after + b"\0" if after else run_key(ledger_id, entry_id, 0)
        end = run_prefix(ledger_id + 1)
        pairs = self._walk(start, end, within_ledger=True, count_max=count_max)
        return [IndexedRun(key, value) for key, value in pairs]

    def last_entry_id(self, ledger_id: int) -> int:
        try:
            cursor = self._run_cursor()
            cursor.seek_for_prev(run_key(ledger_id, ID_MAX, _LOCATION_MAX))
            if not cursor.valid():
                cursor.status()
                return NO_ENTRY
            _, last, _ = decode_run_key(cursor.key())
        except LedgerError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return last

    def _pages(self, prefix: bytes, *, values: bool = True) -> Iterator[list[tuple[bytes, bytes]]]:
        """Everything under a one-byte prefix, a page at a time."""
        start = prefix
        end = bytes([prefix[0] + 1])
        while page := self._walk(start, end, count_max=_PAGE_KEYS, values=values):
            yield page
            start = page[-1][0] + b"\0"

    def _walk(
        self,
        start: bytes,
        end: bytes,
        *,
        within_ledger: bool = False,
        count_max: int | None = None,
        values: bool = True,
    ) -> list[tuple[bytes, bytes]]:
        """Keys from `start` on and below `end`, with their values if these are wanted."""
        pairs: list[tuple[bytes, bytes]] = []
        try:
            cursor = self._run_cursor() if within_ledger else self._cursor()
            cursor.seek(start)
            while cursor.valid():
                key = cursor.key()
                if key >= end or len(pairs) == count_max:
                    return pairs
                pairs.append((key, cursor.value() if values else b""))
                cursor.next()
            cursor.status()
        except Exception as error:
            raise self._failure(error) from error
        return pairs
