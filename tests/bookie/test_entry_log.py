from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from bookie.core.runs import run_of
from bookie.storage.entry_log_format import (
    HEADER_BYTES,
    Footer,
    LedgerTotals,
    LogHeader,
    LogKind,
    RunHeader,
)
from bookie.storage.entry_log_reader import EntryLogReader, Gap, OpenLogs
from bookie.storage.entry_log_writer import CHUNK_BYTES, EntryLogWriter, seal_old_log
from bookie.storage.index_format import StoredLedgerState
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.run_builder import rebuild_value
from runtime.memory_files import MemoryFile, MemoryFileSystem
from runtime.memory_inodes import Keep
from tests.bookie.machine import Machine, small_options
from tests.bookie.test_entry_log_format import STORE_ID, entry, record
from wire.errors import CorruptionError

DIRECTORY = "/ledgers"


def file_system(*, logging: bool = False) -> MemoryFileSystem:
    files = MemoryFileSystem(logging=logging)
    files.make_directories(DIRECTORY)
    return files


def start_log(files: MemoryFileSystem, log_id: int = 1) -> EntryLogWriter:
    return EntryLogWriter(files, DIRECTORY, LogHeader(log_id, LogKind.FLUSH, STORE_ID, 1000))


def open_log(files: MemoryFileSystem, log_id: int = 1) -> EntryLogReader:
    return OpenLogs(files, DIRECTORY, store_id=STORE_ID).get(log_id)


def append(
    writer: EntryLogWriter, ledger_id: int, ids: list[int], *, sequence: int = 1, payload: int = 20
) -> IndexedRun:
    entries = [record(ledger_id, n, bytes([n % 256]) * payload)[4:] for n in ids]
    return IndexedRun(*writer.append_run(ledger_id, run_of(ids, entries), sequence))


def no_state(ledger_id: int) -> StoredLedgerState | None:
    return None


def headers(reader: EntryLogReader) -> list[RunHeader]:
    found = list(reader.hop())
    assert all(isinstance(run, RunHeader) for run in found)
    return [run for run in found if isinstance(run, RunHeader)]


def test_entries_are_read_back_one_by_one_and_as_whole_runs() -> None:
    files = file_system()
    writer = start_log(files)
    runs = [append(writer, ledger_id, list(range(0, 60, ledger_id))) for ledger_id in (1, 2, 3)]
    writer.sync()
    reader = open_log(files)
    for run in runs:
        for entry_id in run.entry_ids():
            place = run.locate(entry_id)
            assert place is not None
            data = reader.read_entry(place, ledger_id=run.ledger_id, entry_id=entry_id)
            assert data == entry(run.ledger_id, entry_id, bytes([entry_id]) * 20)
            assert data == reader.read_entry_cached(
                place, ledger_id=run.ledger_id, entry_id=entry_id
            )
        header, body = reader.read_run(run.offset, run.body_bytes)
        assert header == reader.read_run_header(run.offset)
        assert rebuild_value(header, body) == run.value
    assert [header.offset for header in headers(reader)] == [run.offset for run in runs]


def test_nothing_is_written_before_a_chunk_is_and_then_all_of_it() -> None:
    files = file_system()
    writer = start_log(files)
    due = []
    for entry_id, payload in enumerate([CHUNK_BYTES - 200, 200]):
        append(writer, 1, [entry_id], payload=payload)
        due.append(writer.is_chunk_due)
    assert due == [False, True]
    assert files.open(writer.path).size() == HEADER_BYTES
    writer.write_chunk()
    assert writer.buffered_bytes == 0
    assert files.open(writer.path).size() == writer.size
    assert len(headers(open_log(files))) == 2


def test_order_of_writes_and_syncs() -> None:
    """The name is durable with the first sync: the index may name the log from then on."""
    files = file_system(logging=True)
    writer = start_log(files)
    append(writer, 1, [0])
    writer.sync()
    append(writer, 1, [1])
    writer.sync()
    writer.seal(no_state)
    assert files.log is not None
    name = "/ledgers/00000001.log"
    assert files.log[1:] == [
        f"create {name}",
        f"write {name} 0+4096",
        f"write {name} 4096+112",
        f"sync {name}",
        "sync-directory /ledgers",
        f"write {name} 4208+112",
        f"sync {name}",
        f"write {name} 4320+74",
        f"sync {name}",
    ]


def test_synced_runs_survive_every_crash() -> None:
    for seed in range(20):
        files = file_system()
        writer = start_log(files)
        runs = [append(writer, 1, [n]) for n in range(5)]
        writer.sync()
        append(writer, 1, [5])
        writer.write_chunk()
        files.crash(random.Random(seed))
        reader = open_log(files)
        for run in runs:
            reader.read_run(run.offset, run.body_bytes)
        offsets = [found.offset for found in reader.hop() if isinstance(found, RunHeader)]
        assert offsets[:5] == [run.offset for run in runs]


def test_footer_tells_what_the_log_holds() -> None:
    files = file_system()
    writer = start_log(files)
    append(writer, 4, list(range(10)))
    append(writer, 2, [0, 5])
    append(writer, 4, list(range(10, 13)))
    end = writer.size
    state = StoredLedgerState(master_key=b"k" * 20, fenced=True)
    writer.seal(lambda ledger_id: state if ledger_id == 4 else None)
    reader = open_log(files)
    expected = {
        4: LedgerTotals(13 * 56, 13, 2, state.flags, b"k" * 20),
        2: LedgerTotals(2 * 56, 2, 1),
    }
    assert reader.read_footer() == Footer(1, end, expected)
    assert reader.totals() == (expected, [])
    assert len(headers(reader)) == 3
    assert reader.size() == writer.size


def test_log_without_a_good_footer_is_hopped_and_never_taken_for_empty() -> None:
    files = file_system()
    writer = start_log(files)
    append(writer, 4, list(range(10)))
    append(writer, 2, [0, 5])
    end = writer.size
    writer.seal(no_state)
    expected = {4: LedgerTotals(560, 10, 1), 2: LedgerTotals(112, 2, 1)}
    for offset in range(end, writer.size):
        files.flip(writer.path, offset)
        reader = open_log(files)
        assert reader.read_footer() is None
        ledgers, gaps = reader.totals()
        assert ledgers == expected
        assert [gap.offset for gap in gaps] == ([end] if offset < end + 4 else [])
        files.flip(writer.path, offset)
    for size in range(end, writer.size):
        files.open(writer.path).truncate(size)
        assert open_log(files).totals()[0] == expected


def test_hop_goes_on_behind_damage_at_the_next_indexed_run() -> None:
    files = file_system()
    writer = start_log(files)
    runs = [append(writer, 1, [n]) for n in range(6)]
    writer.sync()
    offsets = [run.offset for run in runs]
    for damaged in (1, 2, 4):
        files.flip(writer.path, offsets[damaged] + 20)

    found = list(open_log(files).hop(lambda: offsets))
    assert [(type(item), item.offset) for item in found] == [
        (RunHeader, offsets[0]),
        (Gap, offsets[1]),
        (Gap, offsets[2]),
        (RunHeader, offsets[3]),
        (Gap, offsets[4]),
        (RunHeader, offsets[5]),
    ]
    gap = found[4]
    assert isinstance(gap, Gap)
    assert gap.end == offsets[5]
    assert "fails the CRC of its header" in gap.reason


def test_hop_reports_damage_when_nobody_knows_the_way_past_it() -> None:
    files = file_system()
    writer = start_log(files)
    runs = [append(writer, 1, [n]) for n in range(4)]
    end = writer.size
    for sealed in (False, True):
        if sealed:
            files.flip(writer.path, runs[1].offset)
            writer.seal(no_state)
        else:
            writer.sync()
        files.flip(writer.path, runs[1].offset)
        *before, gap = open_log(files).hop()
        assert [run.offset for run in before] == [runs[0].offset]
        assert isinstance(gap, Gap)
        assert (gap.offset, gap.end) == (runs[1].offset, end)


def test_hop_is_not_ended_by_damage_that_looks_like_a_footer() -> None:
    files = file_system()
    writer = start_log(files)
    runs = [append(writer, 1, [n]) for n in range(3)]
    writer.sync()
    files.open(writer.path).write(b"\xff\xff\xff\xfd", runs[1].offset)
    found = list(open_log(files).hop(lambda: [run.offset for run in runs]))
    assert [type(item) for item in found] == [RunHeader, Gap, RunHeader]


def test_hop_takes_a_torn_tail_for_a_gap() -> None:
    files = file_system()
    writer = start_log(files)
    append(writer, 1, [0])
    last = append(writer, 1, [1], payload=1000)
    writer.sync()
    for size in range(writer.size - 1, last.offset, -37):
        files.open(writer.path).truncate(size)
        found = list(open_log(files).hop())
        assert [type(item) for item in found] == [RunHeader, Gap]
        assert found[1].offset == last.offset


def test_hop_reads_one_header_per_run() -> None:
    files = file_system()
    writer = start_log(files)
    for n in range(50):
        append(writer, 1, [n], payload=5000)
    writer.sync()
    reader = open_log(files)
    reads = []
    files.on_operation = lambda operation, path: reads.append(operation)
    assert len(headers(reader)) == 50
    assert len(reads) == 51  # and one for the footer that is not there


def test_entry_in_a_payload_is_never_taken_for_a_run() -> None:
    """A ledger may hold the bytes of an entry log, run headers and all."""
    files = file_system()
    inner = RunHeader(0, 9, 0, 0, 1, 36, 0, 1, 1).encode()
    writer = start_log(files)
    writer.append_run(1, run_of([0], [record(1, 0, inner * 50)[4:]]), 1)
    writer.sync()
    files.flip(writer.path, HEADER_BYTES + 9)
    (gap,) = open_log(files).hop()
    assert isinstance(gap, Gap)


def test_rot_in_a_body_is_found_by_the_crc_of_the_run() -> None:
    files = file_system()
    writer = start_log(files)
    run = append(writer, 1, list(range(10)))
    writer.sync()
    files.flip(writer.path, run.body_offset + 333)
    with pytest.raises(CorruptionError, match="CRC of its body"):
        open_log(files).read_run(run.offset, run.body_bytes)
    assert len(headers(open_log(files))) == 1


def test_old_log_is_sealed_behind_its_last_good_run() -> None:
    files = file_system()
    writer = start_log(files)
    append(writer, 1, [0, 1])
    end = writer.size
    append(writer, 1, [2])
    writer.sync()
    files.flip(writer.path, end)
    reader = open_log(files)
    ledgers, (gap,) = reader.totals()
    state = StoredLedgerState(master_key=b"key")
    seal_old_log(files.open(reader.path), Footer(1, gap.offset, ledgers), lambda ledger_id: state)
    files.crash(random.Random(1), keep=Keep.NONE)

    reader = open_log(files)
    assert reader.read_footer() == Footer(1, end, {1: LedgerTotals(112, 2, 1, state.flags, b"key")})
    assert len(headers(reader)) == 1


def test_copied_run_keeps_its_value_and_its_sequence() -> None:
    files = file_system()
    source = start_log(files, 1)
    append(source, 9, [0], payload=999)
    run = append(source, 5, [1, 2, 7], sequence=44)
    source.sync()
    header, body = open_log(files, 1).read_run(run.offset, run.body_bytes)
    target = start_log(files, 2)
    moved = IndexedRun(target.append_copy(header, body), run.value)
    target.sync()

    assert (moved.log_id, moved.offset) == (2, HEADER_BYTES)
    copy, copied_body = open_log(files, 2).read_run(moved.offset, moved.body_bytes)
    assert copied_body == body
    assert copy == header._replace(log_id=2, offset=HEADER_BYTES)
    assert copy.sequence == 44


@pytest.mark.parametrize("operation", ["write", "sync", "sync-directory"])
def test_writer_that_failed_once_is_over(operation: str) -> None:
    files = file_system()
    writer = start_log(files)
    append(writer, 1, [0])
    files.fail(operation, error=errno.ENOSPC)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="space"):
        writer.sync()
    for attempt in (writer.sync, writer.write_chunk, lambda: writer.seal(no_state)):
        with pytest.raises(OSError, match="go on in a new one") as caught:
            attempt()
        assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="go on in a new one"):
        append(writer, 1, [1])


def test_log_of_another_store_or_under_a_wrong_name_is_refused() -> None:
    files = file_system()
    start_log(files, 1).sync()
    with pytest.raises(CorruptionError, match="belongs to store 000102"):
        OpenLogs(files, DIRECTORY, store_id=b"s" * 16).get(1)
    files.rename("/ledgers/00000001.log", "/ledgers/00000002.log")
    with pytest.raises(CorruptionError, match="says it is 00000001"):
        open_log(files, 2)


def test_entry_that_is_not_where_the_index_says_is_corruption() -> None:
    files = file_system()
    writer = start_log(files)
    run = append(writer, 1, [0, 1])
    writer.sync()
    reader = open_log(files)
    offset, length = run.locate(0) or (0, 0)
    for place in (offset, length - 1), (offset + 1, length), (offset + 56, length):
        with pytest.raises(CorruptionError):
            reader.read_entry(place, ledger_id=1, entry_id=0)
    with pytest.raises(CorruptionError, match="ends within"):
        reader.read_entry((writer.size, 40), ledger_id=1, entry_id=0)
    files.is_cached = lambda path, offset, size: False
    assert reader.read_entry_cached((offset, length), ledger_id=1, entry_id=0) is None
    assert reader.read_cached(10, offset) is None


class OpenCounter:
    """Counts a file system's open files, by wrapping what it opens."""

    def __init__(self, files: MemoryFileSystem) -> None:
        self.open_paths: list[str] = []
        self._open = files.open
        files.open = self.open  # type: ignore[method-assign,assignment]

    def open(self, path: str, **options: bool) -> object:
        file = self._open(path, **options)
        self.open_paths.append(path)
        counter = self

        class Counted:
            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def close(self) -> None:
                if path in counter.open_paths:
                    counter.open_paths.remove(path)
                file.close()

        return Counted()


def test_open_logs_closes_the_least_recently_used_when_nobody_reads_it() -> None:
    files = file_system()
    for log_id in range(1, 5):
        writer = start_log(files, log_id)
        append(writer, 1, [log_id])
        writer.sync()
    counter = OpenCounter(files)
    logs = OpenLogs(files, DIRECTORY, store_id=STORE_ID, capacity=2)
    first = logs.get(1)
    assert logs.get(1) is first
    logs.get(2)
    logs.get(1)
    logs.get(3)  # throws 2 out
    assert [path[-5] for path in counter.open_paths] == ["1", "3"]
    assert logs.peek(2) is None
    logs.get(4)  # throws 1 out, which is still read from
    assert [path[-5] for path in counter.open_paths] == ["1", "3", "4"]
    assert len(headers(first)) == 1
    del first
    assert [path[-5] for path in counter.open_paths] == ["3", "4"]

    reading = logs.get(4)
    logs.forget(4)
    files.remove("/ledgers/00000004.log")
    assert len(headers(reading)) == 1
    with pytest.raises(FileNotFoundError):
        logs.get(4)
    del reading
    logs.close()
    assert counter.open_paths == []


def test_log_that_cannot_be_opened_leaves_no_file_behind() -> None:
    files = file_system()
    start_log(files, 1).sync()
    files.flip("/ledgers/00000001.log", 4000)
    counter = OpenCounter(files)
    with pytest.raises(CorruptionError):
        open_log(files)
    assert counter.open_paths == []


def test_page_cache_need_not_keep_more_than_the_end_of_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped: list[tuple[str, int]] = []

    def drop_cached(file: MemoryFile, size: int = 0) -> None:
        dropped.append((file.path, size))

    monkeypatch.setattr(MemoryFile, "drop_cached", drop_cached)
    files = file_system()
    header = LogHeader(1, LogKind.FLUSH, STORE_ID, 1000)
    writer = EntryLogWriter(files, DIRECTORY, header, cached_bytes=5000)
    append(writer, 1, [1], payload=400)
    writer.sync()
    assert not dropped
    append(writer, 1, [2], payload=1000)
    assert not dropped  # it is not synced yet
    writer.sync()
    assert dropped == [(writer.path, writer.size - 5000)]
    assert writer.size > 5000


def test_older_logs_leave_the_page_cache_once_the_newest_fills_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped: list[str] = []

    def drop_cached(file: MemoryFile, size: int = 0) -> None:
        if size == 0:
            dropped.append(file.path.rpartition("/")[2])

    monkeypatch.setattr(MemoryFile, "drop_cached", drop_cached)
    engine = replace(small_options().engine, log_bytes=12_000, log_cached_bytes=8000)
    machine = Machine(options=replace(small_options(), engine=engine))
    machine.start()
    seen = []
    for entry_id in range(10):
        machine.add(1, [(entry_id, bytes(3000))], entry_id)
        machine.engine.checkpoint()
        machine.settle()
        seen.append(len(dropped))
    assert dropped[:2] == ["00000001.log", "00000002.log"]
    assert seen[2] == 0  # the second log holds one entry: the first one is still worth keeping
