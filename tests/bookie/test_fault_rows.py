"""Rows of the fault catalogue that a bookie's storage must survive, one small test for each.

The numbers are those of the catalogue. Each test was seen to fail with its guard taken out.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from bookie.core.runs import SPAN_MAX
from bookie.storage import log_table
from bookie.storage.disk_watch import DiskOptions
from bookie.storage.entry_log_format import HEADER_BYTES
from bookie.storage.journal_reader import JournalReplay
from bookie.storage.journal_records import check_records
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.store_files import StoreError
from runtime.memory_inodes import Keep
from tests.bookie.machine import (
    KEY,
    Machine,
    PowerCut,
    add_frames,
    entry_of,
    requests,
    small_options,
)
from wire.errors import Status
from wire.scan_v2 import AddRun
from wire.types import Flag

RECOVERY = int(Flag.RECOVERY_ADD)
DEFERRED = int(Flag.DEFERRED_SYNC)


def running(machine: Machine | None = None) -> Machine:
    machine = machine or Machine()
    machine.start()
    machine.settle()
    return machine


def checkpoint(machine: Machine) -> None:
    machine.engine.checkpoint()
    machine.settle()


def restart(machine: Machine, *, power: bool = False) -> None:
    machine.crash(power=power)
    machine.start()


def jam(machine: Machine, directory: int) -> None:
    """From now on this ledger directory takes nothing more."""
    path = f"/disk/ledgers{directory}/*"
    machine.files.fail("create", "write", "sync", path=path, error=errno.ENOSPC, times=None)


def two_directories() -> tuple[Machine, int, int]:
    """A machine with a ledger in each of its directories: (machine, ledger of 0, ledger of 1)."""
    # Without the disks' opinion: a full directory must not keep the test from adding.
    disks = DiskOptions(read_only_when_full=False, check_seconds=1e9)
    machine = running(Machine(directories=2, options=small_options(disks=disks)))
    homes = {machine.engine.ledger(ledger_id).home: ledger_id for ledger_id in range(1, 8)}
    return machine, homes[0], homes[1]


def log_paths(directory: LedgerDirectory, machine: Machine) -> list[str]:
    names = machine.files.list_directory(directory.path)
    return [f"{directory.path}/{name}" for name in names if name.endswith(".log")]


def test_f20_no_answer_to_a_fence_before_it_is_durable() -> None:
    machine = running()
    assert machine.engine.fence(1, KEY, "first") == (Status.OK, True)
    assert machine.engine.fence(1, KEY, "second") == (Status.OK, True), "it waits for the first"
    assert machine.durable == []
    machine.settle()
    assert machine.durable == ["first", "second"]
    assert machine.engine.fence(1, KEY, "third") == (Status.OK, False)
    restart(machine, power=True)
    assert machine.add(1, [(0, b"late")], None) == [Status.FENCED]


def test_f20_fence_of_a_ledger_that_limbo_has_fenced_waits_too() -> None:
    machine = running()
    machine.engine.set_limbo(1, True, "limbo")
    assert machine.engine.fence(1, KEY, "fence") == (Status.OK, True)
    machine.settle()
    assert machine.durable == ["limbo", "fence"]
    machine.engine.set_limbo(1, False, "over")
    machine.settle()
    restart(machine, power=True)
    assert machine.add(1, [(0, b"late")], None) == [Status.FENCED]


def test_f22_fence_of_a_ledger_never_stored_survives_in_the_journal_alone() -> None:
    machine = running()
    machine.engine.fence(1, KEY, "fence")
    while "fence" not in machine.durable:
        assert machine.workers.step()
    assert machine.engine.directories[0].index.ledger_state(1) is None, "not in the index yet"
    restart(machine, power=True)
    assert machine.add(1, [(0, b"late")], None) == [Status.FENCED]
    assert machine.add(1, [(0, b"recovered")], None, flags=RECOVERY) == [Status.OK]


def test_f23_fence_and_first_add_have_one_order() -> None:
    machine = running()
    assert machine.add(1, [(0, b"before")], "add") == [Status.OK]
    machine.engine.fence(1, KEY, "fence")
    assert machine.add(1, [(1, b"after")], None) == [Status.FENCED]
    machine.settle()
    assert machine.durable[:2] == ["add", "fence"]
    assert machine.read(1, 0) == b"before"
    restart(machine, power=True)
    assert machine.read(1, 0) == b"before"
    assert machine.read(1, 1) is Status.NO_ENTRY


def test_f24_wiped_bookie_is_refused_while_any_directory_remembers() -> None:
    machine, _, _ = two_directories()
    machine.stop()
    machine.ledger_paths[0] = "/disk/wiped"
    with pytest.raises(StoreError, match="ledger directory /disk/wiped/current is empty"):
        machine.start()


@pytest.mark.parametrize("allow_expansion", [False, True])
def test_f25_emptied_journal_is_refused_even_where_new_directories_are_welcome(
    allow_expansion: bool,
) -> None:
    machine = running()
    machine.add(1, [(0, b"acknowledged")], "token")
    machine.settle()
    machine.crash()
    machine.journal_paths = ["/disk/emptied"]
    machine.options = replace(machine.options, allow_expansion=allow_expansion)
    with pytest.raises(StoreError, match="acknowledged entries may be lost"):
        machine.start()


@pytest.mark.parametrize("fault", ["body", "header", "missing", "unreadable"])
def test_f27_unreadable_log_is_an_error_and_never_a_missing_entry(fault: str) -> None:
    machine = running()
    machine.add(1, [(n, b"x" * 50) for n in range(3)], None)
    machine.settle()
    directory = machine.engine.directories[0]
    machine.stop()
    [path] = log_paths(directory, machine)
    if fault == "body":
        for offset in range(HEADER_BYTES + 56, HEADER_BYTES + 56 + 3 * 86):
            machine.files.flip(path, offset)
    elif fault == "header":
        machine.files.flip(path, 3)
    elif fault == "missing":
        machine.files.remove(path)
    running(machine)
    if fault == "unreadable":
        machine.files.fail("read", path=path, times=None)
    for entry_id in range(3):
        assert machine.read(1, entry_id) is Status.IO_ERROR
    assert machine.read_batch(1, 0) is Status.IO_ERROR
    assert machine.read(1, 3) is Status.NO_ENTRY
    assert machine.damage


def test_f28_crash_with_one_of_two_directories_flushed_loses_nothing() -> None:
    """Also in the very first life, when the other directory has no checkpoint at all yet."""
    machine, zero, one = two_directories()
    machine.crash()
    machine = Machine(directories=2, options=machine.options)
    machine.start()
    machine.opened["/disk/ledgers1/current/index"].stalls = 1 << 30
    machine.add(zero, [(0, b"zero")], None)
    machine.add(one, [(0, b"one")], None)
    machine.engine.fence(one, KEY, "fence")
    machine.settle()  # in blocks of the journal that the mark of the other directory passes
    checkpoint(machine)
    marks = [directory.mark.checkpoint for directory in machine.engine.directories]
    assert marks[0] > marks[1] == 0
    assert "fence" in machine.durable
    machine.crash()
    machine.start()
    assert machine.read(zero, 0) == b"zero"
    assert machine.read(one, 0) == b"one"
    assert machine.add(one, [(1, b"late")], None) == [Status.FENCED]


def test_f29_journal_is_kept_for_the_directory_that_is_furthest_behind() -> None:
    machine, zero, one = two_directories()
    behind = machine.engine.directories[1]
    jam(machine, 1)
    for n in range(60):
        machine.engine.set_read_only(False, accepts_priority=True)
        assert machine.add(zero, [(n, b"z" * 3000)], None) == [Status.OK]
        assert machine.add(one, [(n, b"o" * 3000)], None) == [Status.OK]
        checkpoint(machine)
    for _ in range(3):  # it completes one checkpoint of many, so that something can be trimmed
        before = behind.mark.checkpoint
        machine.files._faults.clear()
        machine.engine.tick()
        while behind.mark.checkpoint == before:
            assert machine.workers.step()
        jam(machine, 1)
        machine.settle()
    marks = [directory.mark.journals[0].file_id for directory in machine.engine.directories]
    assert marks[0] > marks[1] + 3, "one directory is whole journal files ahead"
    for _ in range(2):
        for n in range(60):
            assert machine.read(zero, n) == b"z" * 3000
            assert machine.read(one, n) == b"o" * 3000
        machine.crash()
        machine.files._faults.clear()
        machine.start()


def test_f35_f36_dropped_ledger_refuses_its_writer_and_takes_repairs() -> None:
    machine = running()
    machine.add(1, [(0, b"old")], None)
    machine.engine.drop([1], 0)
    machine.settle()
    for _ in range(2):
        assert machine.read(1, 0) is Status.NO_LEDGER
        assert machine.add(1, [(1, b"zombie")], None) == [Status.FENCED]
        restart(machine)
    assert machine.add(1, [(0, b"repaired")], None, flags=RECOVERY) == [Status.OK]
    machine.settle()
    restart(machine, power=True)
    assert machine.read(1, 0) == b"repaired"


def test_f57_ledger_in_limbo_serves_what_it_has_and_denies_nothing() -> None:
    machine = running()
    machine.add(1, [(0, b"here")], None)
    machine.engine.set_limbo(1, True, "limbo")
    machine.settle()
    for _ in range(2):
        assert machine.read(1, 0) == b"here"
        assert machine.read(1, 1) is Status.UNKNOWN_LEDGER_STATE
        assert machine.read(1, -1) is Status.UNKNOWN_LEDGER_STATE
        assert machine.add(1, [(1, b"late")], None) == [Status.FENCED]
        restart(machine)


def test_f62_fence_in_the_journal_alone_outlives_the_eviction_of_its_ledger() -> None:
    machine = running()
    machine.engine.fence(1, KEY, "fence")
    while "fence" not in machine.durable:
        assert machine.workers.step()
    assert machine.engine.directories[0].index.ledger_state(1) is None, "not in the index yet"
    for ledger_id in range(2, 200):
        machine.engine.ledger(ledger_id)
    assert machine.engine.statistics().ledgers_in_memory < 20, "others were forgotten"
    assert machine.add(1, [(0, b"late")], None) == [Status.FENCED]


@pytest.mark.parametrize("stride", [1, 3, SPAN_MAX - 1, SPAN_MAX, SPAN_MAX + 1])
def test_f64_every_entry_of_a_wide_batch_is_found(stride: int) -> None:
    machine = running()
    ids = range(0, 3000 * stride, stride)
    assert machine.add_batch(1, [(n, b"%d" % n) for n in ids], None) is Status.OK
    checkpoint(machine)
    assert machine.engine.statistics().write_cache_bytes == 0
    assert all(machine.read(1, n) == b"%d" % n for n in ids)
    if stride > 1:
        assert all(machine.read(1, n + 1) is Status.NO_ENTRY for n in ids[::100])


def test_f65_log_that_rolls_within_a_checkpoint_is_not_collected() -> None:
    """Garbage is collected before every operation that the checkpoint makes on files."""
    options = small_options()
    engine = replace(options.engine, generation_bytes=1 << 20, write_cache_bytes=8 << 20)
    machine = running(Machine(options=replace(options, engine=engine)))
    [garbage] = machine.engine.upkeep.garbage
    rounds = 0

    def collect(operation: str, path: str) -> None:
        nonlocal rounds
        if path.endswith(".log") and operation in ("write", "sync", "create"):
            machine.files.on_operation = None
            garbage.remove_dead_logs()
            while garbage.step():
                rounds += 1
            machine.files.on_operation = collect

    for ledger_id in range(40):
        machine.add(ledger_id, [(0, b"x" * 3000)], None)
    machine.files.on_operation = collect
    checkpoint(machine)
    machine.files.on_operation = None
    assert rounds > 3
    assert len(log_paths(machine.engine.directories[0], machine)) > 2, "the log has rolled"
    assert all(machine.read(ledger_id, 0) == b"x" * 3000 for ledger_id in range(40))


def test_f66_counts_agree_with_the_keys_after_a_crash_between_two_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A count that fell behind its keys would reach zero while runs still live."""
    monkeypatch.setattr(log_table, "PIECE_CHANGES", 4)
    for cut in range(200):
        machine = running()
        for n in range(3):
            for ledger_id in range(1, 5):
                machine.add(ledger_id, [(n * 5000, b"x" * 100)], None)
        machine.settle()
        machine.cut_after(cut)
        try:
            checkpoint(machine)
        except PowerCut:
            machine.crash(keep=Keep.ALL, keep_pieces=lambda count: count)
            machine.start()
        else:
            assert cut > 10
            return
        [directory] = machine.engine.directories
        for log_id in directory.table.ids():
            runs = [
                run
                for ledger_id in range(1, 5)
                for run in directory.index.runs_from(ledger_id, 0, count_max=100)
                if run.log_id == log_id
            ]
            assert directory.table.live_bytes(log_id) == sum(run.body_bytes for run in runs)
        machine.settle()
        machine.engine.drop([1, 2, 3], 0)
        machine.settle()
        assert all(machine.read(4, n * 5000) == b"x" * 100 for n in range(3))
    raise AssertionError("the checkpoint never came to its end")


@pytest.mark.parametrize("cleanly", [False, True])
def test_f67_directory_added_later_hides_nothing(cleanly: bool) -> None:
    machine = running(Machine(directories=2))
    for ledger_id in range(1, 40):
        machine.add(ledger_id, [(0, b"%d" % ledger_id)], None)
    for ledger_id in range(1, 40, 2):
        machine.engine.fence(ledger_id, KEY, "fence")
    checkpoint(machine)
    for ledger_id in range(40, 60):  # these only reach the journal
        machine.add(ledger_id, [(0, b"%d" % ledger_id)], "late")
    while machine.durable.count("late") < 20:
        assert machine.workers.step()
    if cleanly:
        machine.stop()
    else:
        machine.crash()
    machine.ledger_paths.append("/disk/ledgers2")
    machine.options = replace(machine.options, allow_expansion=True)
    for _ in range(2):
        machine.start()
        machine.settle()
        for ledger_id in range(1, 60):
            assert machine.read(ledger_id, 0) == b"%d" % ledger_id
            fenced = ledger_id < 40 and ledger_id % 2
            added = machine.add(ledger_id, [(1, b"more")], None)
            assert added == [Status.FENCED if fenced else Status.OK]
        machine.settle()
        machine.crash()
    machine.start()
    homes = {machine.engine.ledger(ledger_id).home for ledger_id in range(100, 200)}
    assert homes == {0, 1, 2}, "new ledgers go to the new directory too"


def test_f68_add_that_waited_is_judged_when_it_is_taken() -> None:
    machine = running()
    frames = add_frames([entry_of(1, 0, b"parked")], key=KEY)
    [parked] = requests(frames)
    assert isinstance(parked, AddRun)
    machine.engine.fence(1, KEY, "fence")
    machine.settle()
    assert machine.engine.add_run(parked) is Status.FENCED
    assert not machine.engine.commit("parked"), "nothing of it goes to the journal"
    assert machine.read(1, 0) is Status.NO_ENTRY


def test_f69_rotten_run_header_of_an_unsealed_log_hides_nothing_behind_it() -> None:
    machine = running()
    for n in range(4):
        machine.add(1, [(n * 5000, b"%d" % n * 100)], None)
        checkpoint(machine)
    [directory] = machine.engine.directories
    [path] = log_paths(directory, machine)
    runs = directory.index.runs_from(1, 0, count_max=10)
    machine.files.flip(path, runs[1].offset + 10)
    size = len(machine.files.open(path).read(1 << 20, 0))
    restart(machine)
    machine.settle()
    for n in range(4):
        assert machine.read(1, n * 5000) == b"%d" % n * 100, "also what the bad header stands for"
    assert len(machine.files.open(path).read(1 << 20, 0)) >= size, "nothing was cut off"


def test_f69_copies_that_come_back_do_not_go_into_the_log_that_lost_them() -> None:
    """Nothing in a log with a rotten header can be read (simulation, outer ring, seed 2565)."""
    machine = running()
    machine.add(1, [(0, b"copy")], None)
    checkpoint(machine)
    [directory] = machine.engine.directories
    [path] = log_paths(directory, machine)
    machine.files.flip(path, 600)
    assert machine.read(1, 0) is Status.IO_ERROR
    directory.distrust(0)  # of damage in another log the first one is not forgotten
    for _ in range(2):
        assert machine.add_entry(1, 0, b"copy", None, flags=RECOVERY) is Status.OK
        checkpoint(machine)
        assert machine.read(1, 0) == b"copy"
    assert len(log_paths(directory, machine)) == 2, "one damage, one new log"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("keep", [Keep.ALL, Keep.NONE])
def test_f70_deferred_entries_outlive_the_process_and_forced_ones_a_power_loss(
    force: bool, keep: Keep
) -> None:
    machine = running()
    machine.add_entry(1, 0, b"deferred", "written", flags=DEFERRED)
    machine.settle()
    assert machine.durable == ["written"]
    if force:
        machine.engine.force(1, "forced")
        machine.settle()
        assert machine.durable == ["written", "forced"]
    machine.crash(keep=keep, keep_pieces=lambda count: 0)
    machine.start()
    survives = force or keep is Keep.ALL
    assert machine.read(1, 0) == (b"deferred" if survives else Status.NO_LEDGER)


def test_f72_repair_survives_a_deletion_that_a_crash_had_cut_in_half() -> None:
    for cut in range(400):
        machine = running()
        for n in range(6):
            machine.add(1, [(n, b"%d" % n * 300)], None)
            checkpoint(machine)
        machine.engine.drop([1], 0)
        machine.cut_after(cut)
        try:
            machine.settle()
        except PowerCut:
            machine.crash(power=False)
        else:
            assert cut > 8
            return
        machine.start()
        for n in range(0, 6, 2):
            machine.add(1, [(n, b"%d" % n * 300)], "repair", flags=RECOVERY)
        checkpoint(machine)
        machine.engine.resume_drop([1])
        machine.settle()
        machine.engine.list_ledgers(lambda found: None)
        checkpoint(machine)
        restart(machine)
        machine.settle()
        for n in range(0, 6, 2):
            assert machine.read(1, n) == b"%d" % n * 300
    raise AssertionError("the deletion never came to its end")


def test_f73_repaired_copy_is_served_in_place_of_the_damaged_one() -> None:
    machine = running()
    machine.add(1, [(0, b"precious")], None)
    checkpoint(machine)
    [path] = log_paths(machine.engine.directories[0], machine)
    machine.files.flip(path, HEADER_BYTES + 56 + 8)
    assert machine.read(1, 0) is Status.IO_ERROR
    machine.add(1, [(0, b"precious")], None, flags=RECOVERY)
    checkpoint(machine)
    restart(machine)
    machine.settle()
    assert machine.engine.statistics().write_cache_bytes == 0
    assert machine.read(1, 0) == b"precious"
    assert machine.read_batch(1, 0) == [b"precious"]


def test_f74_adds_of_every_protocol_version_are_replayed() -> None:
    machine = running()
    for version in (0, 1, 2):
        flags = RECOVERY if version else 0
        added = machine.add(version, [(0, b"v%d" % version)], version, version=version, flags=flags)
        assert added == [Status.OK]
    machine.add_entry(3, 0, b"v3", 3, key=b"a key of another length")
    machine.add_entry(4, 0, b"v3, deferred", 4, flags=DEFERRED)
    machine.add_batch(5, [(0, b"batch")], 5)
    while len(machine.durable) < 6:
        assert machine.workers.step()
    store_id = machine.store.store_files.store_id if machine.store else b""
    machine.crash(power=False)
    journal = JournalReplay(machine.files, "/disk/journal0/current", store_id, mark=None)
    assert sum(check_records(block.payload) for block in journal) == 7, "all in the one layout"
    machine.start()
    for ledger_id, payload in enumerate([b"v0", b"v1", b"v2", b"v3", b"v3, deferred", b"batch"]):
        assert machine.read(ledger_id, 0) == payload
    assert machine.add(3, [(1, b"other key")], None) == [Status.UNAUTHORIZED]
