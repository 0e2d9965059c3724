"""What only the memory twin does: fail on order, fill up, rot, tell."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable

import pytest

from runtime.memory_files import MemoryFileSystem, Operation
from runtime.memory_inodes import Keep
from tests.runtime.memory_disks import content, durable_file, outcomes


def test_failed_sync_is_never_made_good_by_another() -> None:
    """The kernel takes the pages for clean: the bytes are visible, and may be lost for ever."""
    fs, file = durable_file(b"old")
    file.write(b"new", 0)
    fs.fail("sync", path="d/*")
    with pytest.raises(OSError, match="d/a"):
        file.sync()
    assert file.read(3, 0) == b"new"
    file.sync()
    assert outcomes(fs) == {b"old", b"new"}
    file.write(b"NEW", 0)
    file.sync()
    assert outcomes(fs) == {b"NEW"}


def test_failed_durable_write_may_have_landed() -> None:
    fs, _ = durable_file(b"old")
    file = fs.open("d/a", durable=True)
    fs.fail("write")
    with pytest.raises(OSError, match="d/a"):
        file.write(b"new", 0)
    assert outcomes(fs) == {b"old", b"new"}


def test_fault_hits_as_often_as_ordered() -> None:
    fs, file = durable_file(b"abc")
    fs.fail("read", path=lambda path: path.endswith("a"), times=2, error=errno.ENOMEM)
    for _ in range(2):
        with pytest.raises(OSError, match=r"Cannot allocate"):
            file.read(1, 0)
    assert file.read(1, 0) == b"a"


def test_fault_sticks_until_cleared_and_spares_other_paths_and_operations() -> None:
    fs, file = durable_file(b"abc")
    other = fs.open("d/b", create=True)
    fault = fs.fail("write", "sync", path="d/a", times=None)
    for _ in range(3):
        with pytest.raises(OSError, match="d/a"):
            file.write(b"x", 0)
        with pytest.raises(OSError, match="d/a"):
            file.sync()
    other.write(b"fine", 0)
    assert file.read(3, 0) == b"abc"
    fault.clear()
    file.write(b"x", 0)
    assert file.read(3, 0) == b"xbc"


@pytest.mark.parametrize(
    "operation", ["create", "open", "list", "rename", "remove", "sync-directory", "truncate"]
)
def test_fault_stops_an_operation_before_it_changes_anything(operation: Operation) -> None:
    fs, file = durable_file(b"abc")
    calls: dict[Operation, Callable[[], object]] = {
        "create": lambda: fs.open("d/b", create=True),
        "open": lambda: fs.open("d/a"),
        "list": lambda: fs.list_directory("d"),
        "rename": lambda: fs.rename("d/a", "d/b"),
        "remove": lambda: fs.remove("d/a"),
        "sync-directory": lambda: fs.sync_directory("d"),
        "truncate": lambda: file.truncate(0),
    }
    fs.fail(operation)
    with pytest.raises(OSError, match=r"Input/output"):
        calls[operation]()
    assert fs.list_directory("d") == ["a"]
    assert content(fs) == b"abc"


def test_full_disk_takes_what_fits_and_refuses_the_rest() -> None:
    fs = MemoryFileSystem(capacity_bytes=1000)
    file = fs.open("a", create=True)
    file.write(b"x" * 600, 0)
    assert fs.space("/") == (1000, 400)
    with pytest.raises(OSError, match="No space") as caught:
        file.write(b"y" * 500, 600)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 1000
    assert fs.space("/").free_bytes == 0
    file.write(b"z" * 1000, 0)  # overwriting needs no room
    refused: list[Callable[[], object]] = [
        lambda: file.allocate(1001),
        lambda: file.write(b"x", 5000),
        lambda: fs.open("b", create=True),
    ]
    for call in refused:
        with pytest.raises(OSError, match="No space"):
            call()
    assert file.read(2000, 0) == b"z" * 1000
    file.truncate(100)
    assert fs.space("/").free_bytes == 900


def test_full_disk_gives_room_back_when_the_last_user_of_a_removed_file_closes() -> None:
    fs = MemoryFileSystem(capacity_bytes=1000)
    file = fs.open("a", create=True)
    file.allocate(800)
    fs.remove("a")
    assert fs.space("/").free_bytes == 200
    file.close()
    assert fs.space("/").free_bytes == 1000


def test_full_disk_counts_truncation_replacement_and_what_a_crash_left() -> None:
    fs = MemoryFileSystem(capacity_bytes=1000)
    for name in ("a", "b"):
        file = fs.open(name, create=True)
        file.write(b"x" * 300, 0)
        file.close()
    fs.rename("a", "b")
    assert fs.space("/").free_bytes == 700
    fs.open("b").truncate(100)
    assert fs.space("/").free_bytes == 900
    fs.crash(random.Random(1), keep=Keep.NONE)
    assert fs.space("/") == (1000, 1000)


def test_mounted_disk_has_room_of_its_own() -> None:
    fs = MemoryFileSystem(capacity_bytes=1000)
    fs.mount("journal", capacity_bytes=50)
    fs.make_directories("journal/current")
    file = fs.open("journal/current/a", create=True)
    file.write(b"x" * 40, 0)
    assert fs.space("journal/current") == (50, 10)
    assert fs.space("/").free_bytes == 1000
    with pytest.raises(OSError, match="cross-device"):
        fs.rename("journal/current/a", "a")
    fs.set_capacity("journal", 20)
    assert fs.space("journal").free_bytes == 0
    fs.crash(random.Random(1), keep=Keep.ALL)
    assert fs.space("journal") == (20, 0)


def test_rot_changes_a_byte_here_and_after_a_crash() -> None:
    fs, file = durable_file(b"abc")
    fs.flip("d/a", 1, mask=0x20)
    assert file.read(3, 0) == b"aBc"
    assert outcomes(fs) == {b"aBc"}
    with pytest.raises(FileNotFoundError):
        fs.flip("d/a", 3)


def test_cold_reads_are_not_served_from_the_cache() -> None:
    fs, file = durable_file(b"abc")
    fs.is_cached = lambda path, offset, size: offset > 0
    assert file.read_cached(1, 0) is None
    assert file.read_cached(1, 1) == b"b"


def test_log_tells_changes_in_order() -> None:
    fs = MemoryFileSystem(logging=True)
    fs.make_directories("journal")
    file = fs.open("journal/1.tmp", create=True)
    file.allocate(65536)
    file.write(b"x" * 4096, 0)
    file.sync()
    fs.rename("journal/1.tmp", "journal/1.jnl")
    fs.sync_directory("journal")
    fs.open("journal/1.jnl", durable=True).write_pieces([b"y" * 4096] * 2, 4096)
    file.truncate(0)
    fs.remove("journal/1.jnl")
    assert fs.log == [
        "make-directory journal",
        "create journal/1.tmp",
        "allocate journal/1.tmp 65536",
        "write journal/1.tmp 0+4096",
        "sync journal/1.tmp",
        "rename journal/1.tmp journal/1.jnl",
        "sync-directory journal",
        "write journal/1.jnl 4096+8192 durable",
        "truncate journal/1.tmp 0",
        "remove journal/1.jnl",
    ]


def test_hook_can_stop_the_world_at_any_operation() -> None:
    class PowerCut(Exception):
        pass

    def run(fs: MemoryFileSystem) -> None:
        fs.make_directories("d")
        file = fs.open("d/a", create=True)
        file.write(b"abc", 0)
        file.sync()
        fs.sync_directory("d")

    states = []
    for stop in range(6):
        fs = MemoryFileSystem()
        done: list[str] = []

        def count(
            operation: Operation, path: str, done: list[str] = done, stop: int = stop
        ) -> None:
            if len(done) == stop:
                raise PowerCut
            done.append(operation)

        fs.on_operation = count
        with contextlib.suppress(PowerCut):
            run(fs)
        fs.on_operation = None
        fs.crash(random.Random(1), keep=Keep.NONE)
        states.append(fs.exists("d/a") and content(fs))
    assert states == [False, False, False, False, False, b"abc"]
