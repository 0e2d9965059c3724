"""Replay and start: what the journals hold comes back, bounded, repeatable, and never guessed."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from bookie.storage.disk_watch import DiskOptions
from bookie.storage.journal_format import JournalDamageError, JournalError, file_name
from bookie.storage.ledgers import Ledgers
from bookie.storage.memory_index import MemoryIndexes
from bookie.storage.replay import DamagedJournalError
from runtime.memory_files import CAPACITY_BYTES
from tests.bookie.machine import KEY, Machine, PowerCut, small_options
from wire.errors import CorruptionError, Status
from wire.types import Flag

RECOVERY = int(Flag.RECOVERY_ADD)
JOURNAL = "/disk/journal0/current"
BLOCK = 4096


def journaled(*, journals: int = 1, directories: int = 1, entries: int = 6) -> Machine:
    """A machine that died with entries of ledger 1, a block for each, in its journal alone."""
    machine = Machine(journals=journals, directories=directories)
    machine.start()
    machine.settle()
    for entry_id in range(entries):
        machine.add(1, [(entry_id, b"%d" % entry_id)], entry_id)
        machine.settle()
    assert machine.durable == list(range(entries))
    machine.crash(power=False)
    return machine


def check_entries(machine: Machine, count: int) -> None:
    for entry_id in range(count):
        assert machine.read(1, entry_id) == b"%d" % entry_id


def test_everything_is_back_before_the_first_request() -> None:
    machine = journaled()
    machine.start()
    assert machine.store is not None
    assert machine.store.replayed.entries == 6
    check_entries(machine, 6)


def test_replay_is_repeated_as_often_as_it_is_cut_short() -> None:
    machine = journaled(entries=20)
    for cut in range(0, 400, 7):
        machine.cut_after(cut)
        try:
            machine.start()
            machine.settle()
        except PowerCut:
            machine.crash()
        else:
            break
    else:
        raise AssertionError("replay never came to its end")
    machine.keep_power()
    assert cut > 20
    check_entries(machine, 20)


def test_nothing_is_replayed_after_a_clean_stop() -> None:
    machine = journaled()
    machine.start()
    machine.settle()
    machine.stop()
    machine.start()
    assert machine.store is not None
    assert machine.store.replayed.blocks == 0
    check_entries(machine, 6)


def test_long_journal_is_replayed_in_bounded_memory() -> None:
    options = small_options()
    large = replace(options.engine, generation_bytes=1 << 20, write_cache_bytes=4 << 20)
    machine = Machine(options=replace(options, engine=large))
    machine.start()
    for entry_id in range(300):
        machine.add(1, [(entry_id, b"x" * 1000)], None)
        machine.settle()
    machine.crash(power=False)
    machine.options = options  # generations of 4 KiB
    machine.start()
    assert machine.engine.statistics().write_cache_bytes < 8 * 1024
    assert [machine.read(1, n) for n in range(300)] == [b"x" * 1000] * 300


def test_long_replay_on_a_full_disk_stays_in_memory_and_is_flushed_when_there_is_room() -> None:
    disks = DiskOptions(check_seconds=1)
    machine = Machine(options=replace(small_options(), disks=disks))
    machine.files.mount("/disk/ledgers0")
    machine.start()
    machine.settle()
    for entry_id in range(30):
        machine.add(1, [(entry_id, b"x" * 1000)], None)
    while machine.engine.journals[0].pending_bytes:
        assert machine.workers.step()
    machine.crash(power=False)
    used = CAPACITY_BYTES - machine.files.space("/disk/ledgers0").free_bytes
    machine.files.set_capacity("/disk/ledgers0", used)
    machine.start()
    machine.settle()
    assert machine.add(1, [(30, b"more")], None) == [Status.READ_ONLY]
    assert [machine.read(1, n) for n in range(30)] == [b"x" * 1000] * 30
    machine.files.set_capacity("/disk/ledgers0", CAPACITY_BYTES)
    for _ in range(3):
        machine.now += 2
        machine.engine.tick()
        machine.settle()
    assert machine.engine.statistics().generations_waiting == 0
    assert machine.add(1, [(30, b"more")], None) == [Status.OK]
    assert [machine.read(1, n) for n in range(30)] == [b"x" * 1000] * 30


def test_error_of_the_ledger_disk_during_replay_stops_the_start() -> None:
    machine = journaled(entries=60)
    machine.files.fail("write", path="*.log", error=errno.EIO, times=None)
    with pytest.raises(OSError, match="error"):
        machine.start()
    machine.files._faults.clear()
    machine.crash()
    machine.start()
    check_entries(machine, 60)


@pytest.mark.parametrize("journals", [1, 2, 3])
@pytest.mark.parametrize("directories", [1, 2])
def test_states_are_replayed_in_order(journals: int, directories: int) -> None:
    machine = Machine(journals=journals, directories=directories)
    machine.start()
    machine.settle()
    for ledger_id in range(8):
        machine.add(ledger_id, [(0, b"x")], None)
        machine.engine.write_lac(ledger_id, KEY, bytes(15) + bytes([ledger_id]) + b"d", None)
        machine.engine.fence(ledger_id, KEY, None)
        machine.engine.set_limbo(ledger_id, True, None)
        if ledger_id % 2:
            machine.engine.set_limbo(ledger_id, False, None)
    while any(journal.pending_bytes for journal in machine.engine.journals):
        assert machine.workers.step()
    for _ in range(3):
        machine.crash()
        machine.start()
        for ledger_id in range(8):
            ledger = machine.engine.ledger(ledger_id)
            assert ledger.fenced
            assert ledger.limbo is (ledger_id % 2 == 0)
            assert ledger.explicit_lac == bytes(15) + bytes([ledger_id]) + b"d"
            assert machine.read(ledger_id, 0) == b"x"
        machine.step(10)


def test_torn_tail_is_the_end_and_damage_before_it_is_not() -> None:
    machine = journaled()
    machine.files.flip(f"{JOURNAL}/{file_name(1)}", BLOCK * 6 + 20)  # the last of six blocks
    machine.start()
    check_entries(machine, 5)
    assert machine.read(1, 5) is Status.NO_ENTRY, "nothing behind it bears witness"
    machine = journaled()
    machine.files.flip(f"{JOURNAL}/{file_name(1)}", BLOCK * 3 + 20)
    with pytest.raises(DamagedJournalError, match="accept the loss"):
        machine.start()


def test_accepted_damage_puts_every_ledger_in_limbo_for_good() -> None:
    machine = journaled(directories=2)
    machine.start()
    machine.settle()
    for ledger_id in range(10, 30):
        machine.add(ledger_id, [(0, b"old")], None)
    machine.engine.checkpoint()
    machine.settle()
    for entry_id in range(6, 12):
        machine.add(1, [(entry_id, b"%d" % entry_id)], None)
        machine.settle()
    [file_id] = {d.mark.journals[0].file_id for d in machine.engine.directories}
    machine.crash(power=False)
    damage(machine, file_id)
    with pytest.raises(DamagedJournalError):
        machine.start()
    machine.options = replace(machine.options, accept_loss=True)
    for _ in range(3):
        machine.start()
        assert machine.store is not None
        assert machine.store.needs_integrity_check
        check_entries(machine, 6)
        assert machine.read(1, 11) is Status.UNKNOWN_LEDGER_STATE
        assert machine.add(1, [(12, b"late")], None) == [Status.FENCED]
        for ledger_id in range(10, 30):
            assert machine.read(ledger_id, 0) == b"old"
            assert machine.read(ledger_id, 1) is Status.UNKNOWN_LEDGER_STATE
        machine.settle()
        machine.crash()
        machine.options = replace(machine.options, accept_loss=False)


def damage(machine: Machine, file_id: int) -> None:
    """Flip a bit in the block before the last one of a journal file."""
    path = f"{JOURNAL}/{file_name(file_id)}"
    file = machine.files.open(path)
    blocks = [
        offset
        for offset in range(BLOCK, file.size(), BLOCK)
        if file.read(4, offset) == b"JBLK" and int.from_bytes(file.read(8, offset + 16)) == file_id
    ]
    file.close()
    machine.files.flip(path, blocks[-2] + 60)


def test_limbo_is_lifted_ledger_by_ledger() -> None:
    machine = journaled()
    machine.start()
    machine.settle()
    machine.engine.set_limbo(1, True, None)
    machine.engine.set_limbo(1, False, "lifted")
    machine.settle()
    machine.crash()
    machine.start()
    assert machine.read(1, 99) is Status.NO_ENTRY
    assert machine.add(1, [(6, b"late")], None) == [Status.FENCED], "the fence stays"


def test_missing_journal_file_is_refused() -> None:
    machine = journaled()
    machine.files.remove(f"{JOURNAL}/{file_name(1)}")
    with pytest.raises(JournalError, match="it is missing"):
        machine.start()


def test_record_that_nobody_knows_stops_the_start() -> None:
    """A newer release wrote it. The block is valid, so to pass over it would be to forget it."""
    machine = Machine()
    machine.start()
    machine.settle()
    record = (12).to_bytes(4, "big") + (0x7B7F0000).to_bytes(4, "big") + bytes(8)
    machine.engine.journals[0].append([record], len(record), 1, "token")
    machine.settle()
    machine.crash(power=False)
    with pytest.raises(JournalDamageError, match="newer release"):
        machine.start()


def test_journal_that_cannot_be_read_stops_the_start() -> None:
    machine = journaled()
    machine.files.fail("read", path=f"{JOURNAL}/*.jnl", times=None)
    with pytest.raises(OSError, match="error"):
        machine.start()
    machine.files._faults.clear()
    machine.start()
    check_entries(machine, 6)


def test_entries_of_a_dropped_ledger_are_passed_over() -> None:
    machine = Machine(directories=2)
    machine.start()
    machine.settle()
    homes = {machine.engine.ledger(ledger_id).home: ledger_id for ledger_id in range(1, 9)}
    dropped, other = homes[0], homes[1]
    machine.add(dropped, [(0, b"gone")], None)
    machine.add(other, [(0, b"here")], None)
    machine.settle()
    machine.engine.drop([dropped], 0)
    machine.settle()
    for _ in range(2):
        machine.crash(power=False)
        machine.start()
        assert machine.read(dropped, 0) is Status.NO_LEDGER
        assert machine.read(other, 0) == b"here"


def test_ledger_that_came_back_is_replayed_from_there() -> None:
    machine = Machine()
    machine.start()
    machine.add(1, [(0, b"first life")], None)
    machine.engine.drop([1], 0)
    machine.settle()
    machine.add(1, [(1, b"second life")], "back", flags=RECOVERY)
    while "back" not in machine.durable:
        assert machine.workers.step()
    machine.crash()
    machine.start()
    assert machine.read(1, 0) is Status.NO_ENTRY
    assert machine.read(1, 1) == b"second life"


def test_one_damaged_mark_slot_is_made_up_for_and_two_stop_the_start() -> None:
    machine = journaled()
    machine.start()
    for _ in range(2):
        machine.engine.checkpoint()
        machine.settle()
    machine.crash()
    machine.files.flip("/disk/ledgers0/current/mark", 100)
    machine.start()
    check_entries(machine, 6)
    machine.crash()
    machine.files.flip("/disk/ledgers0/current/mark", 4096 + 100)
    with pytest.raises(CorruptionError, match="both mark slots"):
        machine.start()


def test_progress_of_a_replay_is_told() -> None:
    machine = journaled()
    told: list[tuple[int, str]] = []
    machine.on_progress = lambda blocks, path: told.append((blocks, path))
    machine.start()
    assert told == [(n, JOURNAL) for n in range(1, 7)]


def test_ledger_that_no_index_knows_goes_where_its_block_is_still_needed() -> None:
    """A directory is added between two crashes, and each time only some directories checkpoint.

    By number alone the ledger would move to directory 0, which believes to have everything up to
    there; then directory 1 would move its mark on, and nobody would ask for the block again.
    """
    ledger_id = next(
        number for number in range(1, 1000) if (_home(number, 2), _home(number, 3)) == (1, 0)
    )
    machine = Machine(directories=2)
    machine.start()
    machine.settle()
    machine.add(ledger_id, [(0, b"kept")], "kept")
    _checkpoint_without(machine, "ledgers1")
    assert "kept" in machine.durable
    machine.ledger_paths.append("/disk/ledgers2")
    machine.options = replace(machine.options, allow_expansion=True)
    machine.start()
    _checkpoint_without(machine, "ledgers0")
    machine.start()
    assert machine.read(ledger_id, 0) == b"kept"


def _home(ledger_id: int, directories: int) -> int:
    indexes = [MemoryIndexes().open("x", store_id=bytes(16), create=True)] * directories
    return Ledgers(indexes, journal_count=1).get(ledger_id).home


def _checkpoint_without(machine: Machine, name: str) -> None:
    """Checkpoint in all directories but one, then crash."""
    fault = machine.files.fail("write", "create", path=f"*{name}*", times=None)
    machine.engine.checkpoint()
    machine.settle()
    fault.clear()
    machine.crash()
