from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from bookie.storage.index_format import LogMark, NewerFormatError
from bookie.storage.mark_slots import (
    SLOT_BYTES,
    MarkSlots,
    RolledBackIndexError,
    SlotMark,
    check_against_index,
)
from runtime.memory_files import MemoryFileSystem
from runtime.memory_inodes import Keep
from wire.errors import CorruptionError

PATH = "/ledgers/mark"


def mark(checkpoint: int, *, clean: bool = False) -> SlotMark:
    return SlotMark(checkpoint, 3, 8192, 100 + checkpoint, 1_700_000_000_000, clean)


def file_system() -> MemoryFileSystem:
    files = MemoryFileSystem(logging=True)
    files.make_directories("/ledgers")
    return files


def open_slots(files: MemoryFileSystem) -> MarkSlots:
    return MarkSlots(files, "/ledgers")


def test_slot_has_the_documented_bytes() -> None:
    data = SlotMark(5, 6, 7, 8, 9, clean_shutdown=True).encode()
    assert data[:56] == b"BKPYMRK1" + bytes.fromhex(
        "0001 0001 00000000"
        "0000000000000005 0000000000000006 0000000000000007 0000000000000008 0000000000000009"
    )
    assert data[56:4092] == bytes(4036)
    assert data[4092:] == crc32c(data[:4092]).to_bytes(4, "big")


def test_newest_mark_is_read_back_whatever_slot_it_is_in() -> None:
    files = file_system()
    slots = open_slots(files)
    assert slots.read() is None
    for checkpoint in range(1, 6):
        slots.write(mark(checkpoint, clean=checkpoint == 3))
        assert open_slots(files).read() == mark(checkpoint, clean=checkpoint == 3)


def test_slots_take_turns_and_are_synced() -> None:
    files = file_system()
    slots = open_slots(files)
    assert files.log is not None
    files.log.clear()
    slots.write(mark(4))
    slots.write(mark(5))
    assert files.log == [
        f"write {PATH} 0+4096",
        f"sync {PATH}",
        f"write {PATH} 4096+4096",
        f"sync {PATH}",
    ]


def test_crash_leaves_this_mark_or_the_one_before() -> None:
    seen = set()
    for seed in range(60):
        files = file_system()
        slots = open_slots(files)
        slots.write(mark(1))
        slots.write(mark(2))

        def stop(operation: str, path: str) -> None:
            if operation == "sync":
                raise KeyboardInterrupt

        files.on_operation = stop
        with pytest.raises(KeyboardInterrupt):
            slots.write(mark(3))
        files.on_operation = None
        files.crash(random.Random(seed))
        found = open_slots(files).read()
        assert found in (mark(2), mark(3))
        seen.add(found)
    assert len(seen) == 2


def test_completed_write_survives_the_worst_crash() -> None:
    files = file_system()
    open_slots(files).write(mark(1))
    files.crash(random.Random(0), keep=Keep.NONE)
    assert open_slots(files).read() == mark(1)


def test_crash_while_the_file_is_made_is_no_damage() -> None:
    for seed in range(40):
        files = file_system()
        budget = [seed % 4]

        def stop(operation: str, path: str, budget: list[int] = budget) -> None:
            budget[0] -= 1
            if budget[0] < 0:
                raise KeyboardInterrupt

        files.on_operation = stop
        with pytest.raises(KeyboardInterrupt):
            open_slots(files).write(mark(1))
        files.on_operation = None
        files.crash(random.Random(seed))
        slots = open_slots(files)
        assert slots.read() is None
        slots.write(mark(1))
        assert open_slots(files).read() == mark(1)


def test_one_damaged_slot_leaves_the_other() -> None:
    files = file_system()
    slots = open_slots(files)
    slots.write(mark(1))
    slots.write(mark(2))
    for bit in range(0, SLOT_BYTES, 61):
        files.flip(PATH, bit)
        assert slots.read() == mark(1)
        files.flip(PATH, bit)
    assert slots.read() == mark(2)


def test_two_damaged_slots_are_not_taken_for_none() -> None:
    files = file_system()
    slots = open_slots(files)
    slots.write(mark(1))
    slots.write(mark(2))
    files.flip(PATH, 20)
    files.flip(PATH, SLOT_BYTES + 20)
    with pytest.raises(CorruptionError, match="both mark slots in /ledgers/mark"):
        slots.read()


def test_slot_of_a_newer_release_is_refused() -> None:
    files = file_system()
    slots = open_slots(files)
    data = bytearray(mark(2).encode())
    data[9] = 2
    data[4092:] = crc32c(data[:4092]).to_bytes(4, "big")
    files.open(PATH).write(bytes(data), 0)
    with pytest.raises(NewerFormatError):
        slots.read()


def test_index_that_lost_a_checkpoint_is_refused() -> None:
    check_against_index(None, None, PATH)
    check_against_index(None, LogMark(5, ()), PATH)
    check_against_index(mark(5), LogMark(5, ()), PATH)
    check_against_index(mark(4), LogMark(5, ()), PATH)
    for index_mark in LogMark(5, ()), None:
        with pytest.raises(RolledBackIndexError, match="checkpoint 6 was completed"):
            check_against_index(mark(6), index_mark, PATH)
