"""What only the memory twin does: crash, fill up, fail on order, rot."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable, Iterable

import pytest

from runtime.memory_files import MemoryFile, MemoryFileSystem, Operation
from runtime.memory_inodes import SECTOR_BYTES, Keep

SEEDS = range(200)


def durable_file(content: bytes = b"", **options: bool) -> tuple[MemoryFileSystem, MemoryFile]:
    """A file system with one file, `d/a`, whose name and content are durable."""
    fs = MemoryFileSystem()
    fs.make_directories("d")
    file = fs.open("d/a", create=True, **options)
    file.write(content, 0)
    file.sync()
    fs.sync_directory("d")
    return fs, file


def content(fs: MemoryFileSystem, path: str = "d/a") -> bytes:
    file = fs.open(path)
    return file.read(file.size(), 0)


def outcomes(fs: MemoryFileSystem, path: str = "d/a", seeds: Iterable[int] = SEEDS) -> set[bytes]:
    """What the file may hold after a power loss, by many throws of the dice."""
    return {content(fs.crashed_copy(random.Random(seed)), path) for seed in seeds}


def listings(fs: MemoryFileSystem, path: str = "d") -> set[tuple[str, ...]]:
    return {tuple(fs.crashed_copy(random.Random(seed)).list_directory(path)) for seed in SEEDS}


def test_crash_keeps_what_was_synced() -> None:
    fs, _ = durable_file(b"synced")
    assert outcomes(fs) == {b"synced"}
    fs.crash(random.Random(1), keep=Keep.NONE)
    assert content(fs) == b"synced"


def test_crash_of_the_process_keeps_everything_written() -> None:
    fs, file = durable_file(b"old")
    file.write(b"newer", 0)
    fs.open("d/b", create=True).write(b"b", 0)
    fs.remove("d/a")
    fs.crash(random.Random(1), keep=Keep.ALL)
    assert fs.list_directory("d") == ["b"]
    assert content(fs, "d/b") == b"b"


def test_crash_without_luck_keeps_nothing_unsynced() -> None:
    fs, file = durable_file(b"old")
    file.write(b"new", 0)
    fs.rename("d/a", "d/b")
    fs.crash(random.Random(1), keep=Keep.NONE)
    assert fs.list_directory("d") == ["a"]
    assert content(fs) == b"old"


def test_crash_decides_about_each_unsynced_write_by_itself() -> None:
    fs, file = durable_file(b"aa")
    file.write(b"B", 0)
    file.write(b"C", 1)
    assert outcomes(fs) == {b"aa", b"Ba", b"aC", b"BC"}


def test_crash_tears_a_write_only_at_sectors() -> None:
    old, new = b"o" * 4 * SECTOR_BYTES, b"n" * 3 * SECTOR_BYTES
    fs, file = durable_file(old)
    file.write(new, 100)  # spans four sectors, the first and the last in part
    seen = set()
    for after in outcomes(fs, seeds=range(2000)):
        sectors = [after[i : i + SECTOR_BYTES] for i in range(0, len(after), SECTOR_BYTES)]
        for index, sector in enumerate(sectors):
            low, high = max(0, 100 - index * 512), min(512, 100 + 3 * 512 - index * 512)
            changed = b"o" * low + b"n" * (high - low) + b"o" * (512 - high)
            assert sector in (b"o" * 512, changed)
        seen.add(tuple(b"n" in sector for sector in sectors))
    assert (True, False, False, False) in seen
    assert (False, True, False, True) in seen
    assert len(seen) == 16


def test_crash_may_leave_the_new_size_without_the_bytes() -> None:
    fs, file = durable_file()
    file.write(b"n" * 1024, 0)
    assert {b"", bytes(1024), b"n" * 1024, b"n" * 512, bytes(512) + b"n" * 512} <= outcomes(fs)


def test_crash_keeps_durable_writes_whatever_else_it_drops() -> None:
    fs, file = durable_file()
    durable = fs.open("d/a", durable=True)
    file.write(b"x" * 512, 0)
    durable.write(b"y" * 512, 512)
    for after in outcomes(fs):
        assert after[512:] == b"y" * 512
        assert after[:512] in (bytes(512), b"x" * 512)


def test_crash_never_brings_older_bytes_back_over_a_durable_write() -> None:
    fs, file = durable_file(b"-" * 6)
    file.write(b"older!", 0)
    fs.open("d/a", durable=True).write(b"NEW", 1)
    assert outcomes(fs) == {b"-NEW--", b"oNEWr!", b"oNEW--", b"-NEWr!"}


def test_crash_keeps_or_drops_a_truncation() -> None:
    fs, file = durable_file(b"abcdef")
    file.truncate(2)
    assert outcomes(fs) == {b"abcdef", b"ab"}
    file.sync()
    assert outcomes(fs) == {b"ab"}


def test_crash_finds_the_size_before_a_durable_write() -> None:
    fs, _ = durable_file(b"abcdef")
    durable = fs.open("d/a", durable=True)
    durable.truncate(2)
    durable.write(b"Z", 3)
    assert outcomes(fs) == {b"ab\0Z"}


def test_crash_loses_files_whose_names_were_not_synced() -> None:
    fs, _ = durable_file()
    new = fs.open("d/b", create=True)
    new.write(b"b", 0)
    new.sync()
    assert listings(fs) == {("a",), ("a", "b")}
    fs.sync_directory("d")
    assert listings(fs) == {("a", "b")}


def test_crash_leaves_a_renamed_file_under_one_of_its_names() -> None:
    fs, _ = durable_file(b"content")
    fs.rename("d/a", "d/b")
    assert listings(fs) == {("a",), ("b",)}
    fs.sync_directory("d")
    assert listings(fs) == {("b",)}


def test_crash_leaves_the_old_or_the_new_file_after_a_replacing_rename() -> None:
    """The way of control files: write another, sync it, rename it over the old one."""
    fs, _ = durable_file(b"old")
    new = fs.open("d/tmp", create=True)
    new.write(b"new", 0)
    new.sync()
    fs.rename("d/tmp", "d/a")
    assert outcomes(fs) == {b"old", b"new"}


def test_crash_may_leave_an_empty_file_when_it_was_renamed_before_its_sync() -> None:
    fs, _ = durable_file(b"old")
    new = fs.open("d/tmp", create=True)
    new.write(b"new", 0)
    fs.rename("d/tmp", "d/a")
    fs.sync_directory("d")
    assert b"" in outcomes(fs)


def test_crash_keeps_names_of_a_directory_in_order() -> None:
    fs, _ = durable_file()
    for name in ("b", "c"):
        fs.open(f"d/{name}", create=True)
    fs.remove("d/a")
    assert listings(fs) == {("a",), ("a", "b"), ("a", "b", "c"), ("b", "c")}


def test_crash_decides_about_directories_independently() -> None:
    """Syncing one directory saves nothing in another."""
    fs = MemoryFileSystem()
    for name in ("d", "e"):
        fs.make_directories(name)
        fs.open(f"{name}/x", create=True)
    fs.sync_directory("e")
    assert listings(fs, "d") == {(), ("x",)}
    assert listings(fs, "e") == {("x",)}


def test_crash_never_loses_nor_doubles_a_file_moved_between_directories() -> None:
    fs, _ = durable_file(b"content")
    fs.make_directories("e")
    fs.open("e/other", create=True)
    fs.rename("d/a", "e/b")
    fs.open("d/later", create=True)
    found = set()
    for seed in SEEDS:
        copy = fs.crashed_copy(random.Random(seed))
        d, e = copy.list_directory("d"), copy.list_directory("e")
        found.add(("a" in d, "b" in e))
        assert "other" in e or "b" not in e
        assert "later" not in d or "b" in e
    assert found == {(True, False), (False, True)}
    fs.sync_directory("e")
    assert listings(fs, "e") == {("b", "other")}


def test_sync_of_the_new_directory_takes_along_what_led_to_the_move() -> None:
    """Else the creation, still unsynced, could bring the file back under its old name as well."""
    fs, _ = durable_file()
    fs.make_directories("e")
    fs.open("d/new", create=True)
    fs.rename("d/new", "e/moved")
    fs.sync_directory("e")
    assert listings(fs, "d") == {("a",)}
    assert listings(fs, "e") == {("moved",)}


def test_crash_keeps_made_directories() -> None:
    fs = MemoryFileSystem()
    fs.make_directories("a/b/c")
    fs.crash(random.Random(1), keep=Keep.NONE)
    assert fs.exists("a/b/c")


def test_crash_brings_back_a_file_whose_removal_was_not_synced() -> None:
    fs, file = durable_file(b"content")
    file.close()
    fs.remove("d/a")
    fs.crash(random.Random(1), keep=Keep.NONE)
    assert content(fs) == b"content"


def test_crash_makes_files_opened_before_it_unusable_and_frees_locks() -> None:
    fs, file = durable_file(b"abc")
    fs.lock("d/LOCK")
    fs.sync_directory("d")
    fs.crash(random.Random(1))
    for use in (lambda: file.read(1, 0), lambda: file.write(b"x", 0), file.sync, file.size):
        with pytest.raises(OSError, match="before the crash"):
            use()
    file.close()
    fs.lock("d/LOCK")


def test_crash_is_the_same_for_the_same_seed() -> None:
    def history(seed: int) -> list[tuple[str, bytes]]:
        fs, file = durable_file(b"x" * 5000)
        for i in range(10):
            file.write(bytes([i]) * 3000, i * 1000)
            fs.open(f"d/{i}", create=True).write(b"y" * 600, 0)
        fs.crash(random.Random(seed))
        return [(name, content(fs, f"d/{name}")) for name in fs.list_directory("d")]

    assert history(7) == history(7)
    assert history(7) != history(8)


def test_crashed_copy_leaves_the_original_alone() -> None:
    fs, file = durable_file(b"old")
    file.write(b"new", 0)
    copy = fs.crashed_copy(random.Random(1), keep=Keep.NONE)
    assert content(copy) == b"old"
    copy.open("d/a").write(b"mine", 0)
    assert file.read(9, 0) == b"new"
    file.sync()
    assert outcomes(fs) == {b"new"}


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


def test_what_a_killed_process_did_not_sync_is_still_not_synced() -> None:
    fs = MemoryFileSystem()
    file = fs.open("/a", create=True)
    fs.sync_directory("/")
    file.write(b"lost", 0)
    lock = fs.lock("/lock")
    fs.crash(random.Random(1), keep=Keep.ALL)
    lock.close()
    again = fs.lock("/lock")
    assert fs.open("/a").read(10, 0) == b"lost", "the operating system has it"
    with pytest.raises(BlockingIOError):
        fs.lock("/lock")
    again.close()
    fs.crash(random.Random(1), keep=Keep.NONE)
    assert fs.open("/a").read(10, 0) == b""


def test_killed_process_gives_back_the_room_of_files_without_a_name() -> None:
    fs = MemoryFileSystem(capacity_bytes=100)
    file = fs.open("/a", create=True)
    file.write(bytes(60), 0)
    fs.remove("/a")
    assert fs.space("/").free_bytes == 40
    fs.crash(random.Random(1), keep=Keep.ALL)
    assert fs.space("/").free_bytes == 100
    file.close()
    assert fs.space("/").free_bytes == 100
