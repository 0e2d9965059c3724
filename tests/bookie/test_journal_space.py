"""The journal when files run out, the disk is full, or the disk is dead."""

from __future__ import annotations

import errno

import pytest

from bookie.storage.journal_format import JournalError, file_name
from tests.bookie.journal_world import DIRECTORY, FILE_BYTES, World, fill_file, numbers, read_back


def test_files_below_the_mark_are_kept_for_reuse_up_to_the_limit() -> None:
    world = World()
    for start in range(0, 600, 100):
        fill_file(world, start)
    assert world.journal.statistics().file_count == 7
    world.journal.release(6)
    world.run()
    assert world.files.list_directory(DIRECTORY) == list(map(file_name, (4, 5, 6, 7)))
    assert world.journal.statistics().file_count == 4


def test_a_failed_write_is_the_end() -> None:
    world = World()
    world.add(1)
    world.run()
    world.files.fail("write", path="*.jnl")
    world.add(2)
    world.run()
    world.journal.retry()
    world.run()
    assert world.durable == [1]
    assert len(world.failures) == 1
    assert world.journal.failure is world.failures[0]
    with pytest.raises(JournalError, match="nothing more is acknowledged"):
        world.add(3)


def test_a_failed_sync_is_the_end() -> None:
    world = World()
    world.add(1, deferred=True)
    world.run()
    world.files.fail("sync", path="*.jnl")
    world.add(2)
    world.run()
    assert world.durable == [1]
    assert len(world.failures) == 1


def test_an_error_of_the_disk_while_preparing_is_the_end_too() -> None:
    world = World()
    world.files.fail("write", path="*.tmp")
    world.add(1)
    world.run()  # goes to the file that was ready; the next one cannot be prepared
    assert world.durable == [1]
    assert len(world.failures) == 1


def test_a_full_disk_is_reported_and_appends_wait_until_there_is_room() -> None:
    world = World()
    fill_file(world, 0)
    fault = world.files.fail("allocate", error=errno.ENOSPC, times=None)
    world.add(15)
    world.run()  # goes to file 2, which was ready; file 3 cannot be prepared
    assert world.durable == list(range(16))
    assert [shortage is None for shortage in world.shortages] == [False]
    assert not world.journal.statistics().stalled

    for number in range(16, 31):
        world.add(number)
        world.run()
    assert world.journal.statistics().stalled
    assert world.durable == list(range(30))
    world.add(31)
    world.journal.retry()
    world.run()
    assert world.durable == list(range(30))
    assert len(world.shortages) == 1  # said once
    assert not [name for name in world.files.list_directory(DIRECTORY) if "tmp" in name]

    fault.clear()
    world.journal.retry()
    world.run()
    assert world.durable == list(range(32)) == numbers(read_back(world.files)[0])
    assert [shortage is None for shortage in world.shortages] == [False, True]
    assert not world.journal.statistics().stalled
    assert world.failures == []


def test_released_files_end_a_shortage() -> None:
    world = World()
    fill_file(world, 0)
    world.files.fail("allocate", error=errno.ENOSPC, times=None)
    fill_file(world, 100)
    world.add(200)
    world.run()
    assert world.journal.statistics().stalled
    world.journal.release(2)
    world.run()
    assert world.durable[-1] == 200


def test_an_oversized_record_waits_for_room_as_well() -> None:
    world = World()
    world.run()
    world.files.set_capacity("", 5 * FILE_BYTES)
    world.add(1, size=10 * FILE_BYTES)
    world.run()
    assert world.journal.statistics().stalled
    assert world.durable == []
    assert world.failures == []
    world.files.set_capacity("", 50 * FILE_BYTES)
    world.journal.retry()
    world.run()
    assert world.durable == [1]
