"""What only the memory twin does: crash."""

from __future__ import annotations

import random

import pytest

from runtime.memory_files import MemoryFileSystem
from runtime.memory_inodes import SECTOR_BYTES, Keep
from tests.runtime.memory_disks import SEEDS, content, durable_file, listings, outcomes


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
