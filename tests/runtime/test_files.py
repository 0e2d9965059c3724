"""One suite for both file systems: what the memory twin does, the real one does too."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.files import FileSystem, OSFileSystem
from runtime.memory_files import MemoryFileSystem

Disk = tuple[FileSystem, Callable[[str], str]]


@pytest.fixture(params=["os", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """A file system and a function that turns a relative path into one below an empty place."""
    if request.param == "os":
        return OSFileSystem(), lambda path: os.path.join(tmp_path, path)
    fs = MemoryFileSystem()
    fs.make_directories("/base")
    return fs, lambda path: os.path.join("/base", path)


def test_file_reads_what_was_written(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    file.write(b"hello", 0)
    file.write(memoryview(b"JELLY")[:1], 0)
    assert file.read(5, 0) == b"Jello"
    assert file.read(3, 1) == b"ell"
    assert file.path == at("a")
    file.close()


def test_file_read_is_short_only_at_the_end(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    file.write(b"abc", 0)
    assert file.read(10, 1) == b"bc"
    assert file.read(10, 3) == b""
    assert file.read(10, 99) == b""
    assert file.read(0, 0) == b""


def test_file_write_behind_the_end_leaves_zeros(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    file.write(b"x", 3)
    assert file.read(9, 0) == b"\0\0\0x"
    assert file.size() == 4


def test_file_write_of_nothing_changes_nothing(disk: Disk) -> None:
    fs, at = disk
    for name, durable in (("a", False), ("b", True)):
        file = fs.open(at(name), create=True, durable=durable)
        file.write(b"", 100)
        assert file.write_pieces([], 100) == 0
        assert file.size() == 0


def test_file_writes_pieces_one_behind_the_other(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    assert file.write_pieces([b"ab", memoryview(b"cd"), b"", b"e"], 2) == 5
    assert file.read(9, 0) == b"\0\0abcde"


def test_file_writes_more_pieces_than_one_system_call_takes(disk: Disk) -> None:
    fs, at = disk
    pieces = [b"%05d" % number for number in range(5000)]
    file = fs.open(at("a"), create=True)
    assert file.write_pieces(pieces, 0) == 25_000
    assert file.read(25_000, 0) == b"".join(pieces)


def test_file_durable_writes_are_read_back(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True, durable=True)
    file.write(b"0123456789", 0)
    file.write_pieces([b"A", b"B"], 4)
    assert file.read(10, 0) == b"0123AB6789"


def test_file_cached_read_gives_all_bytes_or_none(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    file.write(b"0123456789" * 1000, 0)
    assert file.read_cached(100, 5) in (None, (b"0123456789" * 11)[5:105])
    assert file.read_cached(100, 9950) is None  # the file ends within it
    assert file.read_cached(1, 10_000) is None


def test_file_truncate_cuts_and_extends(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    file.write(b"abcdef", 0)
    file.truncate(2)
    assert file.read(9, 0) == b"ab"
    file.truncate(4)
    assert file.read(9, 0) == b"ab\0\0"


def test_file_allocate_makes_room_and_never_shrinks(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    file.write(b"abcdef", 0)
    file.allocate(4)
    assert file.size() == 6
    file.allocate(9)
    assert file.read(99, 0) == b"abcdef\0\0\0"


def test_file_sync_succeeds_on_an_open_file(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    file.write(b"abc", 0)
    file.sync()
    assert file.read(3, 0) == b"abc"


def test_file_is_unusable_after_close_and_closes_twice(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    file.close()
    file.close()
    for use in (lambda: file.read(1, 0), lambda: file.write(b"x", 0), file.sync, file.size):
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            use()


def test_file_opened_read_only_refuses_writes(disk: Disk) -> None:
    fs, at = disk
    fs.open(at("a"), create=True).write(b"abc", 0)
    file = fs.open(at("a"), read_only=True)
    assert file.read(3, 0) == b"abc"
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        file.write(b"x", 0)
    assert file.read(3, 0) == b"abc"


def test_file_opened_twice_shows_the_same_bytes(disk: Disk) -> None:
    fs, at = disk
    writer = fs.open(at("a"), create=True)
    reader = fs.open(at("a"), read_only=True)
    writer.write(b"abc", 0)
    assert reader.read(9, 0) == b"abc"


def test_open_demands_that_a_file_exists_or_with_create_that_it_does_not(disk: Disk) -> None:
    fs, at = disk
    with pytest.raises(FileNotFoundError):
        fs.open(at("a"))
    fs.open(at("a"), create=True)
    with pytest.raises(FileExistsError):
        fs.open(at("a"), create=True)
    with pytest.raises(FileNotFoundError):
        fs.open(at("missing/a"), create=True)
    with pytest.raises(IsADirectoryError):
        fs.open(at("."))


def test_names_are_listed_sorted(disk: Disk) -> None:
    fs, at = disk
    for name in ("b", "c", "a"):
        fs.open(at(name), create=True)
    fs.make_directories(at("d/e"))
    assert fs.list_directory(at(".")) == ["a", "b", "c", "d"]
    assert fs.list_directory(at("d")) == ["e"]
    with pytest.raises(FileNotFoundError):
        fs.list_directory(at("x"))
    with pytest.raises(NotADirectoryError):
        fs.list_directory(at("a"))


def test_directories_are_made_once_and_never_over_a_file(disk: Disk) -> None:
    fs, at = disk
    fs.make_directories(at("a/b/c"))
    fs.make_directories(at("a/b/c"))
    assert fs.exists(at("a/b/c"))
    fs.open(at("file"), create=True)
    with pytest.raises(FileExistsError):
        fs.make_directories(at("file"))


def test_rename_replaces_the_target(disk: Disk) -> None:
    fs, at = disk
    fs.open(at("a"), create=True).write(b"new", 0)
    fs.open(at("b"), create=True).write(b"old", 0)
    fs.rename(at("a"), at("b"))
    assert fs.list_directory(at(".")) == ["b"]
    assert fs.open(at("b")).read(9, 0) == b"new"
    with pytest.raises(FileNotFoundError):
        fs.rename(at("a"), at("c"))


def test_rename_keeps_open_files_usable(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    fs.make_directories(at("d"))
    fs.rename(at("a"), at("d/b"))
    file.write(b"late", 0)
    assert fs.open(at("d/b")).read(9, 0) == b"late"


def test_rename_moves_a_directory_with_its_files(disk: Disk) -> None:
    fs, at = disk
    fs.make_directories(at("d/e"))
    fs.open(at("d/e/a"), create=True).write(b"abc", 0)
    fs.rename(at("d"), at("moved"))
    assert fs.open(at("moved/e/a")).read(9, 0) == b"abc"
    assert not fs.exists(at("d"))


def test_remove_takes_the_name_and_leaves_open_files_readable(disk: Disk) -> None:
    fs, at = disk
    file = fs.open(at("a"), create=True)
    file.write(b"abc", 0)
    fs.remove(at("a"))
    assert not fs.exists(at("a"))
    assert file.read(9, 0) == b"abc"
    with pytest.raises(FileNotFoundError):
        fs.remove(at("a"))
    fs.make_directories(at("d"))
    with pytest.raises(IsADirectoryError):
        fs.remove(at("d"))


def test_sync_directory_demands_a_directory(disk: Disk) -> None:
    fs, at = disk
    fs.make_directories(at("d"))
    fs.sync_directory(at("d"))
    with pytest.raises(FileNotFoundError):
        fs.sync_directory(at("x"))
    fs.open(at("a"), create=True)
    with pytest.raises(NotADirectoryError):
        fs.sync_directory(at("a"))


def test_lock_is_held_until_its_file_is_closed(disk: Disk) -> None:
    fs, at = disk
    first = fs.lock(at("LOCK"))
    with pytest.raises(BlockingIOError):
        fs.lock(at("LOCK"))
    first.close()
    second = fs.lock(at("LOCK"))
    second.close()


def test_space_is_told_for_files_and_directories(disk: Disk) -> None:
    fs, at = disk
    fs.open(at("a"), create=True)
    for path in (at("."), at("a")):
        space = fs.space(path)
        assert 0 <= space.free_bytes <= space.total_bytes
    with pytest.raises(FileNotFoundError):
        fs.space(at("x"))


def test_os_file_system_leaks_no_descriptor(tmp_path: Path) -> None:
    fs = OSFileSystem()
    before = len(os.listdir("/proc/self/fd"))
    fs.make_directories(f"{tmp_path}/d/e")
    fs.open(f"{tmp_path}/d/a", create=True).close()
    lock = fs.lock(f"{tmp_path}/d/LOCK")
    with pytest.raises(BlockingIOError):
        fs.lock(f"{tmp_path}/d/LOCK")
    lock.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_os_file_cached_read_serves_bytes_just_written(tmp_path: Path) -> None:
    """Dirty pages are in the page cache by definition, so None would mean it never works."""
    file = OSFileSystem().open(f"{tmp_path}/a", create=True)
    file.write(b"x" * 8192, 0)
    assert file.read_cached(8192, 0) == b"x" * 8192


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.EOPNOTSUPP])
def test_os_file_cached_read_is_none_when_the_device_would_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "preadv", refuse)
    file = OSFileSystem().open(f"{tmp_path}/a", create=True)
    file.write(b"abc", 0)
    assert file.read_cached(3, 0) is None


def test_os_file_cached_read_passes_device_errors_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", break_down)
    file = OSFileSystem().open(f"{tmp_path}/a", create=True)
    with pytest.raises(OSError, match="Input/output"):
        file.read_cached(3, 0)


def test_os_file_short_writes_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may take less than it was given; the file must hold everything all the same."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data[:3]), offset))
    monkeypatch.setattr(
        os, "pwritev", lambda fd, pieces, offset: real(fd, b"".join(pieces)[:3], offset)
    )
    file = OSFileSystem().open(f"{tmp_path}/a", create=True)
    file.write(b"0123456789", 0)
    file.write_pieces([b"abcdef", b"ghij"], 10)
    assert file.read(99, 0) == b"0123456789abcdefghij"


def test_os_file_write_without_progress_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
    file = OSFileSystem().open(f"{tmp_path}/a", create=True)
    with pytest.raises(OSError, match="no progress"):
        file.write(b"abc", 0)
