"""Writing an entry log: runs are gathered, written in chunks, synced, and sealed by a footer.

The caller paces: it asks after each run whether a chunk is due, writes it, and takes a nap while
the event loop is busy. Nothing that was appended may be named by the index before `sync`.

An error ends a writer for good. A sync that failed once may succeed the next time although the
data is gone, so the caller goes on in a new log and writes the lost runs there again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from crc32c import crc32c

from bookie.core.letting_go import let_go
from bookie.core.runs import BYTES_MAX, ENTRIES_MAX, PREFIX_BYTES, Run
from bookie.core.write_cache import Part
from bookie.storage.entry_log_format import (
    HEADER_BYTES,
    LOG_BYTES_MAX,
    Footer,
    LedgerTotals,
    LogHeader,
    RunHeader,
    encode_footer,
    encode_run_header,
    log_name,
)
from bookie.storage.index_format import StoredLedgerState, location_of, run_key
from bookie.storage.index_interface import Change
from bookie.storage.indexed_run import RUN_HEADER_BYTES, encode_plain_value
from bookie.storage.run_builder import build_run
from runtime.files import File, FileSystem

#: Bigger chunks keep the disk busier, smaller ones the event loop: 256 KiB and a nap of 1 ms
#: left the loop at 0.7-0.8 of its idle speed; one big write made it stall for 9-16 ms.
CHUNK_BYTES: Final = 256 << 10

#: Thousands of small parts are taken up by so many: none is passed to get at the next ones.
_PARTS_AT_ONCE: Final = 256

#: How much of what was written last stays in the page cache. Readers that follow the writer are
#: served by the write cache, and those a little behind from here; who is further behind reads whole
#: blocks in order, which a disk can do. Pages given back are used again at once; a page cache that
#: grows for ever costs twice as much per byte written where memory is backed on first touch.
CACHED_BYTES: Final = 512 << 20

#: What the footer will say of a ledger's state.
StateOf = Callable[[int], StoredLedgerState | None]


class EntryLogWriter:
    """One log, from its creation to its seal. A restart never goes on with an old one."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        header: LogHeader,
        *,
        cached_bytes: int = CACHED_BYTES,
    ) -> None:
        self.header = header
        self.log_id = header.log_id
        self.path = os.path.join(directory, log_name(header.log_id))
        #: Where the next run will begin: bytes appended so far, written or not.
        self.size = HEADER_BYTES
        self.buffered_bytes = 0
        self.run_count = 0
        self._files = files
        self._directory = directory
        self._cached_bytes = cached_bytes
        self._buffer: list[bytes | memoryview] = []
        self._written = HEADER_BYTES
        self._totals: dict[int, list[int]] = {}  # ledger -> body bytes, entries, runs
        self._is_named = False  # whether the log's name in the directory is durable
        self._error: OSError | None = None
        self._file: File = files.open(self.path, create=True)
        try:
            self._file.write(header.encode(), 0)
        except BaseException:
            self._file.close()
            raise

    @property
    def is_chunk_due(self) -> bool:
        return self.buffered_bytes >= CHUNK_BYTES

    def append_run(self, ledger_id: int, run: Run, sequence: int) -> tuple[bytes, bytes]:
        """Append a run; its key and value for the index. `sequence` is the checkpoint's number."""
        header, key, value = build_run(run, self.log_id, self.size, ledger_id, sequence)
        self._append(header, run.body, ledger_id, len(run.ids))
        return key, value

    def append_small(
        self,
        parts: Sequence[Part],
        at: int,
        sequence: int,
        size_max: int,
        keys: list[Change],
        sizes: list[int],
    ) -> int:
        """Append parts from `at` on that are one plain run each: entries of one size, without gaps.

        Which is what thousands of ledgers leave in a generation, a few entries each; so this does
        in one loop what `append_run` does by calls. Their keys and the sizes of their bodies go to
        the ends of the lists. Where it stopped is the answer: at a part of another kind, where a
        chunk is due, or where the log would become longer than `size_max`.
        """
        self._check_usable()
        log_id, buffer, size = self.log_id, self._buffer, self.size
        chunk_end = size + CHUNK_BYTES - self.buffered_bytes
        all_totals = self._totals
        location = log_id << 32
        length, prefix = -1, b""
        begin = at
        for part in parts[at : at + _PARTS_AT_ONCE]:
            entries = part.entries
            count = len(entries)
            if part.runs or count > ENTRIES_MAX:
                break
            ids = list(entries)
            first, last = ids[0], ids[-1]
            if last - first + 1 != count or (count > 2 and ids != list(range(first, last + 1))):
                break
            values = list(entries.values())
            if len(values[0]) != length:
                length = len(values[0])
                prefix = length.to_bytes(PREFIX_BYTES, "big")
            if count > 1 and list(map(len, values)).count(length) != count:
                break
            body_bytes = (length + PREFIX_BYTES) * count
            end = size + RUN_HEADER_BYTES + body_bytes
            if end > size_max or (body_bytes > BYTES_MAX and count > 1):
                break
            body = prefix.join([b"", *values])
            crc = crc32c(body)
            ledger_id = part.ledger.id
            buffer += (
                encode_run_header(ledger_id, first, last, count, body_bytes, crc, log_id, sequence),
                body,
            )
            keys.append(
                (
                    run_key(ledger_id, last, location | size),
                    encode_plain_value(
                        first, count, body_bytes, crc, sequence, length + PREFIX_BYTES
                    ),
                )
            )
            sizes.append(body_bytes)
            totals = all_totals.get(ledger_id)
            if totals is None:
                all_totals[ledger_id] = [body_bytes, count, 1]
            else:
                totals[0] += body_bytes
                totals[1] += count
                totals[2] += 1
            at += 1
            size = end
            if size >= chunk_end:
                break
        self.buffered_bytes += size - self.size
        self.run_count += at - begin
        self.size = size
        return at

    def append_copy(self, run: RunHeader, body: bytes | memoryview) -> bytes:
        """Append a run of another log, as it is; its new key. Its index value stays the same."""
        copy = run._replace(log_id=self.log_id, offset=self.size)
        self._append(copy.encode(), body, run.ledger_id, run.entry_count)
        location = location_of(log_id=copy.log_id, offset=copy.offset)
        return run_key(copy.ledger_id, copy.last, location)

    def _append(
        self, header: bytes, body: bytes | memoryview, ledger_id: int, entry_count: int
    ) -> None:
        if self._error is not None:
            self._check_usable()
        body_bytes = len(body)
        added = RUN_HEADER_BYTES + body_bytes
        assert self.size + added <= LOG_BYTES_MAX, "the log should have been sealed before"
        self._buffer += (header, body)
        self.buffered_bytes += added
        self.size += added
        self.run_count += 1
        totals = self._totals.get(ledger_id)
        if totals is None:
            self._totals[ledger_id] = [body_bytes, entry_count, 1]
        else:
            totals[0] += body_bytes
            totals[1] += entry_count
            totals[2] += 1

    def write_chunk(self) -> None:
        """Hand everything gathered so far to the operating system."""
        self._check_usable()
        if self._buffer:
            try:
                self._written += self._file.write_pieces(self._buffer, self._written)
            except OSError as error:
                self._fail(error)
                raise
            assert self._written == self.size
            self._buffer.clear()
            self.buffered_bytes = 0

    def sync(self) -> None:
        """Make all runs durable, and the log's name with them. Now the index may name them."""
        self.write_chunk()
        try:
            self._file.sync()
            if not self._is_named:
                self._files.sync_directory(self._directory)
                self._is_named = True
        except OSError as error:
            self._fail(error)
            raise
        if self._written > self._cached_bytes:
            self._file.drop_cached(self._written - self._cached_bytes)

    def seal(self, state_of: StateOf) -> None:
        """Write the footer and let go of the file. The log is complete and durable."""

        def totals_of(ledger_id: int) -> LedgerTotals:
            body_bytes, entries, runs = self._totals[ledger_id]
            return _with_state(LedgerTotals(body_bytes, entries, runs), state_of(ledger_id))

        footer = encode_footer(self.log_id, self.size, self._totals, totals_of)
        let_go(self._totals)
        self.write_chunk()
        try:
            self._file.write(footer, self.size)
        except OSError as error:
            self._fail(error)
            raise
        self.size = self._written = self.size + len(footer)
        self.sync()
        self.close()

    def close(self) -> None:
        """Let go of the file as it is. Idempotent."""
        self._file.close()

    def _check_usable(self) -> None:
        if self._error is not None:
            raise OSError(
                self._error.errno, "entry log failed before; go on in a new one", self.path
            ) from self._error

    def _fail(self, error: OSError) -> None:
        self._error = error
        self._buffer.clear()


def seal_old_log(file: File, footer: Footer, state_of: StateOf) -> None:
    """Give a log that a crash left without a footer the one it deserves.

    What lies behind `end_of_data` is cut off: the caller has made sure that no key names it.
    """
    ledgers = {
        ledger_id: _with_state(totals, state_of(ledger_id))
        for ledger_id, totals in footer.ledgers.items()
    }
    file.truncate(footer.end_of_data)
    file.write(footer._replace(ledgers=ledgers).encode(), footer.end_of_data)
    file.sync()


def _with_state(totals: LedgerTotals, state: StoredLedgerState | None) -> LedgerTotals:
    if state is None:
        return totals
    return totals._replace(flags=state.flags, master_key=state.master_key)
