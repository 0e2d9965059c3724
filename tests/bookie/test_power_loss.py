"""Power loss under `journalSyncData=false` (F26): what may be lost is never denied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.storage.journal_options import JournalOptions
from runtime.memory_inodes import Keep
from tests.bookie.machine import Machine, PowerCut, small_options
from tests.bookie.test_fault_rows import checkpoint, restart, running
from wire.errors import Status


def unsynced(boot_ids: bool = True) -> Machine:
    """Entry 1:0 is in the index; 1:1 and all of ledger 2 are acknowledged and in no sync's care."""
    journal = JournalOptions(file_bytes=32 * 1024, sync_data=False)
    machine = Machine(options=replace(small_options(), journal=journal))
    machine.knows_boot = boot_ids
    running(machine)
    machine.add(1, [(0, b"old")], None)
    checkpoint(machine)
    machine.add(1, [(1, b"new")], None)
    machine.add(2, [(0, b"other")], "acknowledged")
    machine.step(1)
    assert "acknowledged" in machine.durable
    return machine


def is_in_doubt(machine: Machine) -> bool:
    """Whether the loss is told, and nothing that may be lost is denied."""
    assert machine.store is not None
    in_doubt = machine.store.has_forgotten and machine.store.needs_integrity_check
    assert machine.read(1, 0) == b"old"
    if in_doubt:
        assert machine.read(1, 1) in (b"new", Status.UNKNOWN_LEDGER_STATE)
        assert machine.add(1, [(2, b"late")], None) == [Status.FENCED]
    else:
        assert machine.read(1, 1) == b"new"
        assert machine.read(2, 0) == b"other"
    return in_doubt


@pytest.mark.parametrize("keep", [Keep.NONE, Keep.SOME, Keep.ALL])
def test_f26_power_loss_without_syncs_denies_nothing_in_any_later_life(keep: Keep) -> None:
    machine = unsynced()
    machine.crash(keep=keep)
    for _ in range(3):
        machine.start()
        assert is_in_doubt(machine)
        machine.settle()
        machine.crash(power=False)


def test_f26_killed_process_without_syncs_has_lost_nothing() -> None:
    machine = unsynced()
    restart(machine)
    assert not is_in_doubt(machine)


def test_f26_where_nobody_knows_the_boot_every_crash_counts_as_a_power_loss() -> None:
    machine = unsynced(boot_ids=False)
    restart(machine)
    assert is_in_doubt(machine)


def test_f26_clean_stop_without_syncs_has_lost_nothing() -> None:
    machine = unsynced()
    machine.stop()
    machine.crash(keep=Keep.NONE)
    machine.start()
    assert not is_in_doubt(machine)


def test_f26_start_that_dies_at_any_moment_leaves_the_doubt_to_the_next() -> None:
    for operations in range(200):
        machine = unsynced()
        machine.crash(keep=Keep.NONE)
        machine.cut_after(operations)
        try:
            machine.start()
        except PowerCut:
            machine.crash(power=False)
            machine.start()
            assert is_in_doubt(machine)
        else:
            break
    else:
        raise AssertionError("200 operations and no end of the start")
    assert operations > 20


def test_f26_syncs_from_now_on_take_the_doubt_away_when_the_journal_is_synced() -> None:
    """Whenever the power goes: what replay found is on disk by then, or it is in doubt."""
    doubts = 0
    for operations in range(300):
        machine = unsynced()
        machine.crash(power=False)
        machine.options = small_options()
        machine.cut_after(operations)
        try:
            machine.start()
            machine.settle()
        except PowerCut:
            pass
        else:
            break
        machine.crash(keep=Keep.NONE)
        machine.start()
        doubts += is_in_doubt(machine)
    else:
        raise AssertionError("300 operations and no end of the start")
    assert doubts > 10
    machine.crash(keep=Keep.NONE)
    machine.start()
    assert not is_in_doubt(machine)
