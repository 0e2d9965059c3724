from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bookie.storage.index import IndexOptions, RocksIndex, open_index
from bookie.storage.index_format import FORMAT_KEY, MARK_KEY, LogMark, NewerFormatError
from bookie.storage.index_interface import (
    DamagedIndexError,
    Index,
    IndexFailedError,
    OpenIndex,
    TransientIndexError,
)
from bookie.storage.memory_index import MemoryIndexes
from tests.bookie.index_suite import IndexSuite
from tests.bookie.index_values import STORE_ID, run_change


class TestRocksIndex(IndexSuite):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def open(self, name: str = "index", *, create: bool = False, store: bytes = STORE_ID) -> Index:
        return _open(self.directory / name, create=create, store=store)


class TestMemoryIndex(IndexSuite):
    @pytest.fixture(autouse=True)
    def _machine(self) -> None:
        self.machine = MemoryIndexes()

    def open(self, name: str = "index", *, create: bool = False, store: bytes = STORE_ID) -> Index:
        open_it: OpenIndex = self.machine.open
        return open_it(name, store_id=store, create=create)


def _open(path: Path, *, create: bool = False, store: bytes = STORE_ID) -> RocksIndex:
    return open_index(str(path), store_id=store, create=create)


def _mark(checkpoint: int) -> tuple[bytes, bytes]:
    return MARK_KEY, LogMark(checkpoint, ()).encode()


def _table(path: Path) -> Path:
    return max(path.glob("*.sst"), key=lambda table: table.stat().st_size)


@contextmanager
def _no_file_may_grow() -> Iterator[None]:
    """A full disk, as near as one gets without one."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_unreadable_block_is_corruption_and_never_absence(tmp_path: Path) -> None:
    """RocksDB ends a walk at a damaged block as it does at the last key."""
    index = _open(tmp_path / "index", create=True)
    for ledger_id in range(500):
        index.apply([run_change(ledger_id, range(50), record_bytes=100 + ledger_id)])
    index.flush()
    index.close()
    table = _table(tmp_path / "index")
    data = bytearray(table.read_bytes())
    for offset in range(0, len(data) // 2, 200):
        data[offset] ^= 0xFF
    table.write_bytes(data)

    index = _open(tmp_path / "index")  # the stamp is in a table of its own
    for look_up in (
        lambda: index.find_run(0, 7),
        lambda: index.find_runs(0, 7),
        lambda: index.last_entry_id(0),
        lambda: index.runs_from(0, 0, count_max=9),
        lambda: index.run_offsets(1),
        lambda: index.contains(run_change(0, range(50))[0]),
    ):
        with pytest.raises(DamagedIndexError, match="cannot be read: Corruption: "):
            look_up()
    index.close()


def test_damaged_database_is_named_together_with_the_remedy(tmp_path: Path) -> None:
    _open(tmp_path / "index", create=True).close()
    (manifest,) = (tmp_path / "index").glob("MANIFEST-*")
    manifest.write_bytes(b"\xff" * 100)
    with pytest.raises(DamagedIndexError) as caught:
        _open(tmp_path / "index")
    message = str(caught.value)
    assert str(tmp_path / "index") in message
    assert "rebuild the index" in message
    assert "\n" not in message


def test_directory_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos.zip").touch()
    for create in (True, False):
        with pytest.raises(DamagedIndexError, match=r"photos\.zip"):
            _open(tmp_path, create=create)
    assert os.listdir(tmp_path) == ["photos.zip"]


def test_index_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index").touch()
    with pytest.raises(DamagedIndexError, match="cannot be opened"):
        _open(tmp_path / "index", create=True)


def test_index_whose_creation_was_interrupted_is_created_again(tmp_path: Path) -> None:
    for names in (["rocksdict-config.json"], ["LOCK", "LOG", "IDENTITY"]):
        path = tmp_path / names[0]
        path.mkdir()
        for name in names:
            (path / name).touch()
        with pytest.raises(DamagedIndexError, match="missing"):
            _open(path)
        _open(path, create=True).close()
        _open(path).close()

    RocksIndex(str(tmp_path / "unstamped"), IndexOptions(), create=True).close()
    with pytest.raises(DamagedIndexError, match="never finished"):
        _open(tmp_path / "unstamped")
    _open(tmp_path / "unstamped", create=True).close()


def test_index_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    index = _open(tmp_path / "index", create=True)
    index.apply([(FORMAT_KEY, (2).to_bytes(2, "big"))])
    index.close()
    with pytest.raises(NewerFormatError, match="start the release that wrote it"):
        _open(tmp_path / "index")


def test_failed_flush_is_over_only_after_reopening(tmp_path: Path) -> None:
    index = _open(tmp_path / "index", create=True)
    index.apply([_mark(1)])
    index.flush()
    index.apply([_mark(2), run_change(1, range(10))])
    with _no_file_may_grow(), pytest.raises(IndexFailedError, match="repeat the") as caught:
        index.flush()
    for attempt in index.flush, lambda: index.apply([_mark(3)]):
        with pytest.raises(IndexFailedError) as again:
            attempt()
        assert again.value is caught.value  # RocksDB was not asked; it might have recovered

    index.reopen()
    assert index.mark() == LogMark(1, ())
    assert index.find_run(1, 3) is None
    index.apply([_mark(2), run_change(1, range(10))])
    index.flush()
    index.close()
    index = _open(tmp_path / "index")
    assert index.mark() == LogMark(2, ())
    index.close()


def test_stalled_write_fails_at_once_and_succeeds_later(tmp_path: Path) -> None:
    """Waiting inside RocksDB would hold the GIL; the flush thread waits outside instead."""
    options = IndexOptions(write_buffer_bytes=64 << 10)
    index = open_index(str(tmp_path / "i"), store_id=STORE_ID, create=True, options=options)
    stalled = 0
    for number in range(200):
        piece = [run_change(n, [number, number + 2], offset=number) for n in range(1000)]
        try:
            index.apply(piece)
        except TransientIndexError:
            stalled += 1
            index.flush()
            index.apply(piece)
        if stalled == 3:
            break
    assert stalled == 3
    assert all(len(index.runs_from(n, 0, count_max=999)) == number + 1 for n in range(0, 1000, 99))
    index.close()


def test_readers_in_other_threads_survive_reopening(tmp_path: Path) -> None:
    index = _open(tmp_path / "index", create=True)
    index.apply([run_change(1, range(10))])
    index.flush()
    results: list[bool] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                results.append(index.find_run(1, 5) is not None)
            except TransientIndexError:
                continue

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        index.reopen()
    stop.set()
    for thread in threads:
        thread.join()
    index.close()
    assert results
    assert all(results)


def test_crash_of_a_memory_index_keeps_a_prefix_of_its_pieces() -> None:
    for kept in range(4):
        machine = MemoryIndexes()
        index = machine.open("index", store_id=STORE_ID, create=True)
        index.apply([_mark(1)])
        index.flush()
        for checkpoint in (2, 3, 4):
            index.apply([_mark(checkpoint), run_change(checkpoint, [0])])
        machine.crash(keep=lambda pieces, kept=kept: kept)  # type: ignore[misc]
        with pytest.raises(IndexFailedError, match="before the crash"):
            index.mark()
        index = machine.open("index", store_id=STORE_ID)
        assert index.mark() == LogMark(1 + kept, ())
        assert [n for n in (2, 3, 4) if index.find_run(n, 0)] == list(range(2, 2 + kept))


def test_memory_index_fails_and_stalls_when_told_to() -> None:
    index = MemoryIndexes().open("index", store_id=STORE_ID, create=True)
    index.stalls = 1
    with pytest.raises(TransientIndexError):
        index.apply([_mark(1)])
    index.apply([_mark(1)])
    index.fails = True
    with pytest.raises(IndexFailedError):
        index.flush()
    with pytest.raises(IndexFailedError):
        index.apply([_mark(2)])
    index.reopen()
    assert index.mark() is None
    index.apply([_mark(2)])
    index.flush()
    index.reopen()
    assert index.mark() == LogMark(2, ())


def test_index_that_a_killed_start_left_unborn_is_made(tmp_path: Path) -> None:
    """RocksDB names its first files before CURRENT makes them a database."""
    path = tmp_path / "index"
    path.mkdir()
    for name in ("000001.dbtmp", "MANIFEST-000001", "OPTIONS-000005.dbtmp", "IDENTITY", "LOG"):
        (path / name).write_bytes(b"half a ")
    with pytest.raises(DamagedIndexError, match="is missing"):
        open_index(str(path), store_id=STORE_ID)
    index = open_index(str(path), store_id=STORE_ID, create=True)
    index.apply([(MARK_KEY, b"x")])
    index.close()
    index = open_index(str(path), store_id=STORE_ID)
    assert index.get(MARK_KEY) == b"x"
    index.close()


def test_tables_without_an_index_are_never_taken_for_an_unborn_one(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.mkdir()
    (path / "000012.sst").write_bytes(b"entries")
    with pytest.raises(DamagedIndexError, match=r"000012\.sst"):
        open_index(str(path), store_id=STORE_ID, create=True)


def test_end_of_a_lookup_leaves_it_to_rocksdb_to_unlink_tables(tmp_path: Path) -> None:
    """Whoever drops an iterator holds the GIL, and would unlink what it was the last to need."""
    path = tmp_path / "index"
    _open(path, create=True).close()
    [newest, *_] = sorted(path.glob("OPTIONS-*"), reverse=True)
    assert "avoid_unnecessary_blocking_io=true" in newest.read_text()
