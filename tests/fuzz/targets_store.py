"""What a disk can hand back: journal files and their records, entry logs, values of the index.

Checksums stop nearly every change before anything is decoded. So most targets put a right checksum
on whatever they are given: what is behind it must hold by itself, if ever a newer release or a
defect writes something with a right checksum.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from bookie.storage import index_format as index
from bookie.storage.entry_log_format import (
    HEADER_BYTES,
    LogHeader,
    LogKind,
    decode_footer,
    decode_log_header,
    decode_run_header,
    encode_run_header,
)
from bookie.storage.entry_log_reader import EntryLogReader
from bookie.storage.indexed_run import IndexedRun, encode_run_value
from bookie.storage.journal_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    JournalPosition,
    encode_file_header,
    file_name,
    frame_block,
)
from bookie.storage.journal_reader import replay
from bookie.storage.journal_records import (
    ADD,
    ADD_BATCH,
    check_records,
    decode_state,
    encode_add,
    encode_explicit_lac,
    encode_fence,
    encode_ledger_key,
    encode_limbo,
    encode_untombstone,
    iterate_records,
)
from runtime.memory_files import MemoryFileSystem
from tests.fuzz.target import Target, judged
from tests.wire.v2 import entry
from wire.errors import LedgerError

_STORE = Path(__file__).parents[1] / "bookie" / "formats" / "v1" / "store.tar.gz"
_STORE_ID = bytes(range(16))
_KEY = bytes(range(20))


def _with_file(path: str, data: bytes) -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directories("/d")
    file = files.open(path, create=True)
    file.write(data, 0)
    file.close()
    return files


def journal_files(data: bytes) -> None:
    """A file of the journal as it is found; only what is behind its first page is changed."""
    header = FileHeader(file_id=1, file_bytes=1 << 16, store_id=_STORE_ID, prepared_ms=0)
    files = _with_file(f"/d/{file_name(1)}", encode_file_header(header) + data)
    judged(lambda _: list(replay(files, "/d", _STORE_ID, mark=None)), data)


def journal_blocks(data: bytes) -> None:
    """Records with a right checksum around them come out of a replay as they went in."""
    block = frame_block(
        [data],
        byte_count=len(data),
        record_count=1,
        position=JournalPosition(1, FILE_HEADER_BYTES, 1),
        durable_before=1,
    )
    journal_files(b"".join(block))
    records(data)


def records(data: bytes) -> None:
    judged(check_records, data)
    try:
        for word, start, end in iterate_records(data):
            assert 0 < start <= end <= len(data)
            if word >> 16 not in (ADD, ADD_BATCH):
                decode_state(word, data, start, end)
    except LedgerError:
        pass


def entry_logs(data: bytes) -> None:
    """A log whose first page is right: every walk over it ends, and inside the file."""
    header = LogHeader(1, LogKind.FLUSH, _STORE_ID, 0).encode()
    files = _with_file("/d/1.log", header + data)
    log = EntryLogReader(files.open("/d/1.log"), log_id=1, store_id=_STORE_ID)
    judged(lambda _: log.read_footer(), data)
    judged(lambda _: log.totals(), data)
    end = HEADER_BYTES
    try:
        for found in log.hop():
            assert found.offset >= end
            end = found.end
            assert end <= log.size()
    except LedgerError:
        pass
    judged(lambda data: decode_log_header(data[:HEADER_BYTES], "log"), data)
    judged(lambda data: decode_run_header(data, log_id=1, offset=0), data)
    judged(lambda data: decode_footer(data, log_id=1, offset=0), data)


def index_values(data: bytes) -> None:
    judged(index.decode_run_key, data[:25])
    for decode in (index.decode_ledger_state, index.decode_log):
        judged(lambda data, decode=decode: decode(1, data), data)  # type: ignore[misc]
    judged(index.decode_mark, data)
    judged(index.decode_flag, data)


def indexed_runs(data: bytes) -> None:
    """A run that is accepted answers every question, inside its body."""
    key, value = index.run_key(7, 100, 1 << 32 | 64), data

    def ask(_: bytes) -> None:
        run = IndexedRun(key, value)
        for entry_id in (run.first, run.last):
            place, length = run.locate(entry_id) or (run.body_offset, 0)
            assert length >= 0
            assert run.body_offset <= place <= place + length <= run.body_offset + run.body_bytes
        for entry_id in (-1, run.first - 1, (run.first + run.last) // 2, run.last + 1):
            run.position(entry_id)
            run.position_from(entry_id)
        assert run.starts()[-1] == run.body_bytes
        run.part(0, run.entry_count)

    judged(ask, data)


def _store_files(suffix: str, skip: int) -> Iterable[bytes]:
    """Files of a bookie, as far as they hold anything."""
    with tarfile.open(fileobj=io.BytesIO(_STORE.read_bytes())) as store:
        for member in store:
            file = store.extractfile(member) if member.name.endswith(suffix) else None
            if file is not None:
                yield file.read()[skip:].rstrip(b"\0")[:4096]


def _record_seeds() -> Iterable[bytes]:
    one = [
        encode_add(_KEY, entry(7, 0, b"payload")),
        encode_fence(7, _KEY),
        encode_explicit_lac(7, _KEY, entry(7, -1, b"digest")),
        encode_ledger_key(7, _KEY),
        encode_limbo(7, on=True),
        encode_untombstone(7),
    ]
    yield from one
    yield b"".join(one)


def _log_seeds() -> Iterable[bytes]:
    body = len(entry(7, 0)).to_bytes(4, "big") + entry(7, 0)
    header = encode_run_header(7, 0, 0, 1, len(body), 0, 1, 1)
    yield header + body
    yield (header + body) * 3
    yield from _store_files(".log", HEADER_BYTES)


def _run_seeds() -> Iterable[bytes]:
    """Runs that end at entry 100, with and without gaps, of equal and of different records."""
    for ids in (range(81, 101), [81, 90, 100], [100]):
        dense = None if len(ids) == ids[-1] - ids[0] + 1 else ids
        for sizes in ([60], [40, 70000], [40, 50, 60]):
            starts = [0]
            for place, _ in enumerate(ids):
                starts.append(starts[-1] + sizes[place % len(sizes)])
            form = sizes[0] if len(sizes) == 1 else starts
            yield encode_run_value(ids[0], len(ids), starts[-1], 0, 1, dense, form)


def _index_seeds() -> Iterable[bytes]:
    yield index.run_key(7, 100, 1)
    yield index.encode_flag(True)
    yield from (bytes([version]) + bytes(size) for version in (0, 1) for size in range(8, 80, 4))


TARGETS = (
    Target("journal_files", journal_files, lambda: _store_files(".jnl", FILE_HEADER_BYTES)),
    Target("journal_blocks", journal_blocks, _record_seeds),
    Target("records", records, _record_seeds),
    Target("entry_logs", entry_logs, _log_seeds),
    Target("index_values", index_values, _index_seeds),
    Target("indexed_runs", indexed_runs, _run_seeds),
)
