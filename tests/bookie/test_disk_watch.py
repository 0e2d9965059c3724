"""Disks that fill up: nothing is lost, and the bookie is back by itself."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from bookie.core.compaction import Kind
from bookie.core.disk_space import Level, Thresholds
from bookie.storage.disk_watch import DiskOptions, DiskWatch
from bookie.storage.reserve import Reserve
from runtime.memory_files import MemoryFileSystem
from tests.bookie.garbage_world import (
    check_alive,
    check_counts,
    check_no_leak,
    checkpoint,
    collect,
    drop,
    fill,
    log_files,
    options,
    payload,
)
from tests.bookie.machine import Machine
from wire.errors import Status
from wire.types import Flag

PRIORITY = int(Flag.HIGH_PRIORITY | Flag.RECOVERY_ADD)
RESERVE = 48 * 1024


def machine_with(reserve: int = 0, *, capacity: int = 2 << 20, journals: int = 8 << 20) -> Machine:
    """Journal and ledgers on disks of their own, with thresholds that suit their size."""
    limits = Thresholds(priority_bytes=64 * 1024)
    machine = Machine(options=options(disks=DiskOptions(thresholds=limits, reserve_bytes=reserve)))
    machine.files.mount("/disk/journal0", journals)
    machine.files.mount("/disk/ledgers0", capacity)
    machine.start()
    machine.settle()
    return machine


def is_read_only(machine: Machine) -> bool:
    return machine.engine.upkeep.disks.acceptance.read_only


def level_of(machine: Machine) -> Level:
    return machine.engine.upkeep.disks.verdict.level


def is_there(machine: Machine) -> bool:
    """Whether the reserve of the only directory is."""
    [garbage] = machine.engine.upkeep.garbage
    return garbage.reserve.is_there


def tick(machine: Machine, seconds: float = 10.0) -> None:
    machine.now += seconds
    machine.engine.tick()
    machine.settle()


def fill_until_full(machine: Machine, ledger_id: int = 1) -> int:
    """Add and measure until adds are refused; how many entries were taken."""
    for entry_id in range(20_000):
        added = [(entry_id, payload(ledger_id, entry_id))]
        if machine.add(ledger_id, added, None) == [Status.READ_ONLY]:
            return entry_id
        if entry_id % 10 == 9:
            tick(machine)
    raise AssertionError("the disk never got full")


def test_full_disk_makes_the_bookie_read_only_and_space_makes_it_writable_again() -> None:
    machine = machine_with()
    count = fill_until_full(machine)
    acceptance = machine.engine.upkeep.disks.acceptance
    assert level_of(machine) is Level.FULL
    assert "ledgers0" in acceptance.reason
    assert acceptance.accepts_priority
    assert machine.add(2, [(0, b"repair")], None, flags=PRIORITY) == [Status.OK]
    check_alive(machine, range(1, 2), range(count))
    drop(machine, 1)
    tick(machine)
    assert level_of(machine) is Level.NORMAL
    assert machine.add(3, [(0, b"new")], None) == [Status.OK]


def test_warning_begins_eager_compaction() -> None:
    machine = machine_with(capacity=1 << 20)
    fill(machine, range(1, 4), range(250))
    checkpoint(machine)
    drop(machine, 2)
    tick(machine)
    [directory] = machine.engine.directories
    before = len(log_files(directory))
    machine.files.set_capacity("/disk/ledgers0", directory.table.total_bytes() * 100 // 92)
    tick(machine)
    assert machine.engine.upkeep.disks.verdict.level in (Level.WARN, Level.NORMAL)
    [statistics] = machine.engine.upkeep.statistics()
    assert statistics.rounds[Kind.EAGER] == 1
    assert len(log_files(directory)) < before
    check_alive(machine, range(1, 4, 2), range(250))
    check_counts(machine)


def test_full_journal_disk_counts_too() -> None:
    machine = machine_with()
    machine.files.set_capacity("/disk/journal0", 1)
    tick(machine)
    assert is_read_only(machine)
    machine.files.set_capacity("/disk/journal0", 8 << 20)
    tick(machine)
    assert not is_read_only(machine)


def test_checkpoint_that_finds_no_room_keeps_everything_and_goes_on_by_itself() -> None:
    machine = machine_with()
    [directory] = machine.engine.directories
    fill(machine, range(1, 3), range(20))
    checkpoint(machine)
    used = 2 * 1024 * 1024 - machine.files.space("/disk/ledgers0").free_bytes
    machine.files.set_capacity("/disk/ledgers0", used + 100)
    accepted = 20
    for entry_id in range(20, 40):
        status = machine.add(1, [(entry_id, payload(1, entry_id))], entry_id)
        machine.settle()
        if status != [Status.OK]:
            break
        accepted += 1
    assert is_read_only(machine)
    assert not machine.engine.upkeep.disks.acceptance.accepts_priority
    assert set(range(20, accepted)) <= set(machine.durable)
    for _ in range(5):
        tick(machine)
    assert not directory.failed, "a full disk is no broken one"
    check_alive(machine, range(1, 2), range(accepted))
    machine.files.set_capacity("/disk/ledgers0", 4 << 20)
    for _ in range(2):
        tick(machine)
    assert not is_read_only(machine)
    assert machine.engine.statistics().generations_waiting == 0
    check_alive(machine, range(1, 2), range(accepted))
    machine.crash()
    machine.start()
    machine.settle()
    check_alive(machine, range(1, 2), range(accepted))
    check_counts(machine)
    collect(machine)
    check_no_leak(machine)


def test_checkpoints_that_fail_for_want_of_room_leave_nothing_behind() -> None:
    machine = machine_with()
    fill(machine, range(1, 2), range(20))
    checkpoint(machine)
    used = 2 * 1024 * 1024 - machine.files.space("/disk/ledgers0").free_bytes
    machine.files.set_capacity("/disk/ledgers0", used + 6000)
    machine.add(1, [(n, payload(1, n)) for n in range(20, 40)], None)
    checkpoint(machine)
    free = machine.files.space("/disk/ledgers0").free_bytes
    for _ in range(10):
        tick(machine)
    # But for the footer of the log that was full, which is there to stay.
    assert machine.files.space("/disk/ledgers0").free_bytes == free > 5800


def test_reserve_is_taken_when_there_is_room() -> None:
    machine = machine_with(RESERVE)
    assert not is_there(machine)
    tick(machine)
    assert is_there(machine)
    assert not machine.engine.upkeep.garbage[0].reserve.is_due
    machine.stop()
    machine.start()
    assert is_there(machine)


def test_reserve_is_given_up_for_a_checkpoint_and_taken_again_later() -> None:
    machine = machine_with(RESERVE)
    tick(machine)
    fill(machine, range(1, 2), range(20))
    checkpoint(machine)
    used = 2 * 1024 * 1024 - machine.files.space("/disk/ledgers0").free_bytes
    machine.files.set_capacity("/disk/ledgers0", used)
    machine.add(1, [(n, payload(1, n)) for n in range(20, 30)], None)
    checkpoint(machine)
    assert not is_there(machine)
    assert machine.engine.statistics().generations_waiting == 0
    tick(machine)
    assert not is_there(machine), "the disk is still full"
    machine.files.set_capacity("/disk/ledgers0", 4 << 20)
    tick(machine)
    assert is_there(machine)
    check_alive(machine, range(1, 2), range(30))


def test_reserve_lets_compaction_free_a_disk_that_is_full_to_the_last_byte() -> None:
    machine = machine_with(RESERVE)
    tick(machine)
    fill(machine, range(1, 5), range(60))
    checkpoint(machine)
    drop(machine, 2, 3, 4)
    used = 2 * 1024 * 1024 - machine.files.space("/disk/ledgers0").free_bytes
    machine.files.set_capacity("/disk/ledgers0", used)
    machine.engine.upkeep.compact(Kind.MAJOR)
    machine.settle()
    assert machine.files.space("/disk/ledgers0").free_bytes > RESERVE
    assert not is_there(machine)
    check_alive(machine, range(1, 2), range(60))
    check_counts(machine)
    check_no_leak(machine)


@pytest.mark.parametrize("power", [True, False])
def test_bookie_starts_on_a_full_disk_and_frees_it(power: bool) -> None:
    machine = machine_with(RESERVE)
    tick(machine)
    fill(machine, range(1, 5), range(60))
    checkpoint(machine)
    machine.add(1, [(n, payload(1, n)) for n in range(60, 80)], "last")
    while "last" not in machine.durable:
        assert machine.workers.step()
    machine.crash(power=power)
    files = machine.files
    used = 2 * 1024 * 1024 - files.space("/disk/ledgers0").free_bytes
    files.set_capacity("/disk/ledgers0", used)
    machine.start()
    machine.settle()
    assert is_read_only(machine)
    assert machine.add(1, [(80, b"")], None) == [Status.READ_ONLY]
    check_alive(machine, range(1, 2), range(80))
    assert machine.engine.statistics().generations_waiting == 0, "flushed with the reserve"
    drop(machine, 2, 3, 4)
    for _ in range(3):
        tick(machine)
    check_alive(machine, range(1, 2), range(80))
    assert not is_read_only(machine)
    assert machine.add(1, [(80, b"")], None) == [Status.OK]
    check_counts(machine)


def test_bookie_starts_on_a_full_disk_without_a_reserve() -> None:
    machine = machine_with()
    fill(machine, range(1, 3), range(60))
    checkpoint(machine)
    machine.add(1, [(n, payload(1, n)) for n in range(60, 80)], "last")
    while "last" not in machine.durable:
        assert machine.workers.step()
    machine.crash()
    used = 2 * 1024 * 1024 - machine.files.space("/disk/ledgers0").free_bytes
    machine.files.set_capacity("/disk/ledgers0", used)
    machine.start()
    machine.settle()
    assert is_read_only(machine)
    check_alive(machine, range(1, 2), range(80))
    machine.files.set_capacity("/disk/ledgers0", 4 << 20)
    for _ in range(3):
        tick(machine)
    assert machine.engine.statistics().generations_waiting == 0
    assert not is_read_only(machine)
    check_alive(machine, range(1, 2), range(80))


def test_journal_that_finds_no_room_makes_the_bookie_read_only_until_it_does() -> None:
    machine = machine_with()
    machine.stop()
    # Generations so large that no checkpoint gives the journal a file back.
    engine = replace(machine.options.engine, generation_bytes=1 << 20, write_cache_bytes=4 << 20)
    machine.options = replace(machine.options, engine=engine)
    machine.start()
    machine.settle()
    used = (8 << 20) - machine.files.space("/disk/journal0").free_bytes
    machine.files.set_capacity("/disk/journal0", used + 100)
    for count in range(200):
        if machine.add(1, [(count, payload(1, count))], count) != [Status.OK]:
            break
        machine.settle()
    else:
        raise AssertionError("the journal never ran out of room")
    reason = machine.engine.upkeep.disks.acceptance.reason
    assert "/disk/journal0" in reason
    assert machine.failures == []
    machine.files.set_capacity("/disk/journal0", 8 << 20)
    for _ in range(3):
        tick(machine)
    assert not is_read_only(machine)
    assert set(range(count)) <= set(machine.durable)
    check_alive(machine, range(1, 2), range(count))
    assert machine.add(1, [(count, b"on")], None) == [Status.OK]


def watch(files: MemoryFileSystem, **changes: object) -> tuple[DiskWatch, list[float]]:
    now = [0.0]
    disks = DiskWatch(
        files,
        journal_paths=["/a"],
        ledger_paths=["/b"],
        reserves=[Reserve(files, "/b", size=0)],
        options=DiskOptions(**changes),  # type: ignore[arg-type]
        clock=lambda: now[0],
    )
    return disks, now


def two_disks() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.mount("/a", 1 << 40)
    files.mount("/b", 1 << 40)
    return files


def test_disks_are_measured_every_ten_seconds() -> None:
    disks, now = watch(two_disks())
    assert not disks.tick()
    now[0] = 9.9
    assert not disks.tick()
    now[0] = 10.0
    assert disks.tick()
    assert not disks.tick()


def test_every_reason_to_stop_ends_by_itself_and_none_hides_another() -> None:
    files = two_disks()
    disks, _ = watch(files)
    seen: list[bool] = []
    disks.on_change = lambda acceptance: seen.append(acceptance.read_only)
    disks.note("/a", OSError(errno.ENOSPC, "full"))
    disks.note("/b", OSError(errno.EIO, "broken"))
    disks.note("/a", None)
    assert "broken" in disks.acceptance.reason
    disks.note("/b", None)
    assert seen == [True, True, True, False]
    disks.measure()
    assert len(seen) == 4, "no news is not told"


def test_trouble_in_between_does_not_bring_the_low_water_mark_into_play() -> None:
    """Being read-only for another reason must not keep a disk at 87 % from being writable."""
    files = two_disks()
    disks, _ = watch(files)
    file = files.open("/b/data", create=True)
    file.allocate(870)
    files.set_capacity("/b", 1000)
    disks.note("/b", OSError(errno.EIO, "broken"))
    disks.measure()
    disks.note("/b", None)
    disks.measure()
    assert not disks.acceptance.read_only


def test_disk_that_cannot_be_asked_counts_as_full() -> None:
    files = two_disks()
    disks, _ = watch(files)
    space = files.space

    def failing(path: str) -> object:
        if path == "/a":
            raise OSError(errno.EIO, "gone")
        return space(path)

    files.space = failing  # type: ignore[assignment, method-assign]
    disks.measure()
    assert disks.acceptance.read_only


def test_operator_can_forbid_read_only_for_want_of_space() -> None:
    files = two_disks()
    disks, _ = watch(files, read_only_when_full=False)
    files.set_capacity("/b", 0)
    disks.measure()
    assert disks.verdict.level is Level.FULL
    assert not disks.acceptance.read_only


def test_reserve_that_finds_no_room_leaves_nothing_behind() -> None:
    files = two_disks()
    files.set_capacity("/b", 1000)
    reserve = Reserve(files, "/b", size=2000)
    assert not reserve.restore()
    assert files.list_directory("/b") == []
    assert not reserve.release()
    files.set_capacity("/b", 3000)
    assert reserve.restore()
    assert not reserve.is_due
    assert Reserve(files, "/b", size=100).is_due, "another size was configured"
    assert reserve.release()
    assert files.space("/b").free_bytes == 3000
