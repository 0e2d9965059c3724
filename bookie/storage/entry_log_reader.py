"""Reading entry logs: an entry, a stretch of a run, a whole run, or all run headers in turn."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from bookie.storage.entry_log_format import (
    FOOTER_MARKER,
    HEADER_BYTES,
    TAIL_BYTES,
    Footer,
    LedgerTotals,
    RunHeader,
    check_body,
    check_entry,
    decode_footer,
    decode_log_header,
    decode_run_header,
    decode_tail,
    is_footer,
    log_name,
)
from bookie.storage.indexed_run import LENGTH_BYTES, RUN_HEADER_BYTES
from runtime.files import File, FileSystem
from wire.errors import CorruptionError

#: Open files that the bookie keeps for reading.
OPEN_LOGS_MAX: Final = 256

#: Where the indexed runs of a log begin, ascending. Asked only when there is damage to pass.
IndexedOffsets = Callable[[], Sequence[int]]

_BAD_FOOTER: Final = "a footer that fails its CRC"


class ForeignLogError(CorruptionError):
    """A sound log of another store. Nothing may be done to it here; above all not removed."""


class Gap(NamedTuple):
    """A stretch of a log in which no run can be recognised.

    At the end of a log that was never sealed it is what a crash left, unless the index names
    something in it; anywhere else it is damage.
    """

    offset: int
    end: int
    reason: str


class EntryLogReader:
    """One open log. Several threads may read it at once.

    The file is closed when nobody refers to the reader any longer, so that one thread can throw
    a log out of the cache, or unlink it, while another is still reading from it.
    """

    def __init__(self, file: File, *, log_id: int, store_id: bytes) -> None:
        self._file = file
        self.log_id = log_id
        self.path = file.path
        self.header = decode_log_header(file.read(HEADER_BYTES, 0), file.path)
        if self.header.log_id != log_id:
            raise CorruptionError(f"entry log {self.path} says it is {self.header.log_id:08x}")
        if self.header.store_id != store_id:
            raise ForeignLogError(
                f"entry log {self.path} belongs to store {self.header.store_id.hex()}, this "
                f"bookie is store {store_id.hex()}: put the right directory back"
            )

    def __del__(self) -> None:
        self._file.close()

    def size(self) -> int:
        return self._file.size()

    def read(self, size: int, offset: int) -> bytes:
        """Exactly `size` bytes."""
        data = self._file.read(size, offset)
        if len(data) != size:
            raise CorruptionError(
                f"entry log {self.path} ends within bytes {offset}..{offset + size}"
            )
        return data

    def read_cached(self, size: int, offset: int) -> bytes | None:
        """The same if it can be had without waiting for the device, else None."""
        return self._file.read_cached(size, offset)

    def drop_cached(self) -> None:
        """A hint: the page cache need not keep this log."""
        self._file.drop_cached()

    def read_entry(self, place: tuple[int, int], *, ledger_id: int, entry_id: int) -> bytes:
        """The entry at a place that `IndexedRun.locate` gave."""
        offset, length = place
        record = self.read(length + LENGTH_BYTES, offset - LENGTH_BYTES)
        return check_entry(record, ledger_id=ledger_id, entry_id=entry_id, where=self.path)

    def read_entry_cached(
        self, place: tuple[int, int], *, ledger_id: int, entry_id: int
    ) -> bytes | None:
        offset, length = place
        record = self._file.read_cached(length + LENGTH_BYTES, offset - LENGTH_BYTES)
        if record is None:
            return None
        return check_entry(record, ledger_id=ledger_id, entry_id=entry_id, where=self.path)

    def read_run_header(self, offset: int) -> RunHeader:
        data = self._file.read(RUN_HEADER_BYTES, offset)
        return decode_run_header(data, log_id=self.log_id, offset=offset)

    def read_run(self, offset: int, body_bytes: int) -> tuple[RunHeader, memoryview]:
        """A whole run in one read, both of its CRCs checked."""
        data = self._file.read(RUN_HEADER_BYTES + body_bytes, offset)
        header = decode_run_header(data, log_id=self.log_id, offset=offset)
        body = memoryview(data)[RUN_HEADER_BYTES:]
        check_body(header, body)
        return header, body

    def read_footer(self) -> Footer | None:
        """None when the log has no good footer. Then its run headers tell; it is not empty."""
        found = self._footer_bytes()
        return decode_footer(found[0], log_id=self.log_id, offset=found[1]) if found else None

    def _end_of_data(self) -> int:
        """By a good footer, of whose thousands of ledgers nothing is decoded; else the file's."""
        found = self._footer_bytes()
        if found and is_footer(found[0], log_id=self.log_id, offset=found[1]):
            return found[1]
        return self._file.size()

    def _footer_bytes(self) -> tuple[bytes, int] | None:
        """What the tail calls the footer, and where it is."""
        size = self._file.size()
        if size < HEADER_BYTES + TAIL_BYTES:
            return None
        tail = decode_tail(self._file.read(TAIL_BYTES, size - TAIL_BYTES))
        if tail is None or sum(tail) != size - TAIL_BYTES:
            return None
        offset, length = tail
        return self._file.read(length, offset), offset

    def hop(self, indexed_offsets: IndexedOffsets = tuple) -> Iterator[RunHeader | Gap]:
        """Every run header in turn, by one small read each; gaps where there is none.

        A header that cannot be trusted hides where the next one is. The walk then goes on at
        the next run that the index knows; without one, the gap reaches to the end of the data.
        Never look for a marker instead: entries may hold any bytes, old logs among them.
        """
        end = self._end_of_data()
        offset = HEADER_BYTES
        known: Sequence[int] | None = None
        while offset < end:
            found = self._run_or_reason(offset, end)
            if isinstance(found, RunHeader):
                yield found
                offset = found.end
                continue
            if known is None:
                known = indexed_offsets()
            resume = next((start for start in known if offset < start < end), end)
            if found is _BAD_FOOTER and resume == end:
                return
            yield Gap(offset, resume, found)
            offset = resume

    def _run_or_reason(self, offset: int, end: int) -> RunHeader | str:
        data = self._file.read(RUN_HEADER_BYTES, offset)
        if data[:4] == FOOTER_MARKER.to_bytes(4, "big"):
            return _BAD_FOOTER  # a good one would have told where the data ends
        try:
            run = decode_run_header(data, log_id=self.log_id, offset=offset)
        except CorruptionError as error:
            return str(error)
        if run.end > end:
            return f"entry log {self.path}: run at {offset} is cut short"
        return run

    def totals(
        self, indexed_offsets: IndexedOffsets = tuple
    ) -> tuple[dict[int, LedgerTotals], list[Gap]]:
        """What the log holds of each ledger, and the gaps about which nobody knows.

        By the footer if there is one, else by the run headers.
        """
        footer = self.read_footer()
        if footer is not None:
            return dict(footer.ledgers), []
        ledgers: dict[int, LedgerTotals] = {}
        gaps = []
        for found in self.hop(indexed_offsets):
            if isinstance(found, Gap):
                gaps.append(found)
            else:
                before = ledgers.get(found.ledger_id, LedgerTotals())
                ledgers[found.ledger_id] = before.plus(found)
        return ledgers, gaps


class OpenLogs:
    """The logs of one ledger directory, the most recently used of them open."""

    def __init__(
        self, files: FileSystem, directory: str, *, store_id: bytes, capacity: int = OPEN_LOGS_MAX
    ) -> None:
        self._files = files
        self._directory = directory
        self._store_id = store_id
        self._capacity = capacity
        self._readers: OrderedDict[int, EntryLogReader] = OrderedDict()
        self._lock = threading.Lock()

    def peek(self, log_id: int) -> EntryLogReader | None:
        """The log if it is open; for the event loop, which must not wait for a device."""
        with self._lock:
            reader = self._readers.get(log_id)
            if reader is not None:
                self._readers.move_to_end(log_id)
            return reader

    def get(self, log_id: int) -> EntryLogReader:
        """The log, opened if need be.

        FileNotFoundError means that it is gone: compaction has moved its runs, so look the entry
        up once more.
        """
        reader = self.peek(log_id)
        if reader is not None:
            return reader
        path = os.path.join(self._directory, log_name(log_id))
        file = self._files.open(path, read_only=True)  # not under the lock: it may take its time
        try:
            opened = EntryLogReader(file, log_id=log_id, store_id=self._store_id)
        except BaseException:
            file.close()
            raise
        with self._lock:
            reader = self._readers.setdefault(log_id, opened)
            self._readers.move_to_end(log_id)
            dropped = None
            if len(self._readers) > self._capacity:
                _, dropped = self._readers.popitem(last=False)
        del dropped  # closes its file here, outside the lock, unless somebody reads from it
        return reader

    def forget(self, log_id: int) -> None:
        """Keep the log open no longer than those who read from it now. Before unlinking it."""
        with self._lock:
            dropped = self._readers.pop(log_id, None)
        del dropped

    def close(self) -> None:
        with self._lock:
            dropped, self._readers = self._readers, OrderedDict()
        del dropped
