"""Whose directories are these? Foreign, emptied, swapped, newer, half-made and busy ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bookie.storage.index_format import NewerFormatError
from bookie.storage.store_files import (
    NEW_STAMP,
    STAMP_NAME,
    Kind,
    Stamp,
    StoreError,
    StoreFiles,
    decode_stamp,
)
from runtime.memory_files import MemoryFileSystem
from runtime.memory_inodes import Keep
from tests.bookie.machine import KEY, Machine, PowerCut
from wire.errors import CorruptionError, LedgerError, Status


def stopped(*, journals: int = 1, directories: int = 2, seed: int = 0) -> Machine:
    """A machine whose bookie was stopped cleanly, with an entry of ledgers 1 to 8."""
    machine = Machine(seed, journals=journals, directories=directories)
    machine.start()
    for ledger_id in range(1, 9):
        machine.add(ledger_id, [(0, b"%d" % ledger_id)], None)
    machine.settle()
    machine.stop()
    return machine


def allow_expansion(machine: Machine) -> None:
    machine.options = replace(machine.options, allow_expansion=True)


def overwrite(files: MemoryFileSystem, path: str, data: bytes) -> None:
    file = files.open(path)
    file.truncate(0)
    file.write(data, 0)
    file.sync()
    file.close()


def check_all(machine: Machine) -> None:
    for ledger_id in range(1, 9):
        assert machine.read(ledger_id, 0) == b"%d" % ledger_id


def test_stamp_is_read_as_it_was_written() -> None:
    stamp = Stamp(Kind.LEDGERS, 3, bytes(range(16)))
    assert decode_stamp(stamp.encode(), "x") == stamp


@pytest.mark.parametrize("place", range(8))
def test_stamp_with_another_magic_is_none(place: int) -> None:
    data = bytearray(Stamp(Kind.JOURNAL, 0, bytes(16)).encode())
    data[place] ^= 1
    with pytest.raises(StoreError, match="no stamp"):
        decode_stamp(bytes(data), "x")


def test_damaged_stamp_fails_its_checksum() -> None:
    data = bytearray(Stamp(Kind.JOURNAL, 0, bytes(16)).encode())
    data[20] ^= 1
    with pytest.raises(CorruptionError, match="checksum"):
        decode_stamp(bytes(data), "x")


def test_newer_stamp_asks_for_the_release_that_wrote_it() -> None:
    data = bytearray(Stamp(Kind.JOURNAL, 0, bytes(16)).encode())
    data[9] = 2
    with pytest.raises(NewerFormatError, match="start the release that wrote it"):
        decode_stamp(bytes(data), "x")


def test_two_bookies_cannot_share_a_directory() -> None:
    machine = Machine()
    machine.start()
    other = Machine(1)
    other.files, other.indexes = machine.files, machine.indexes
    with pytest.raises(StoreError, match="is in use by another process"):
        other.start()
    machine.settle()
    machine.stop()
    other.start()


def test_directory_configured_twice_is_refused() -> None:
    machine = Machine()
    machine.ledger_paths.append(machine.ledger_paths[0])
    with pytest.raises(StoreError, match="configured twice"):
        machine.start()


def test_journal_and_ledgers_in_one_directory_are_refused() -> None:
    machine = Machine()
    machine.ledger_paths = list(machine.journal_paths)
    with pytest.raises(StoreError, match="configured twice"):
        machine.start()


def test_swapped_directories_are_put_back_by_the_operator() -> None:
    machine = stopped()
    machine.ledger_paths.reverse()
    with pytest.raises(StoreError, match="put the directories back in their order"):
        machine.start()
    machine.ledger_paths.reverse()
    machine.start()
    check_all(machine)


def test_journal_configured_as_ledger_directory_is_refused() -> None:
    machine = stopped(directories=1)
    machine.journal_paths, machine.ledger_paths = machine.ledger_paths, machine.journal_paths
    with pytest.raises(StoreError, match="was ledgers directory 0 and is configured as journal"):
        machine.start()


@pytest.mark.parametrize("which", ["journal", "ledgers"])
def test_directory_of_another_bookie_is_refused(which: str) -> None:
    machine = stopped(directories=1)
    machine.journal_paths, machine.ledger_paths = ["/disk/journalB"], ["/disk/ledgersB"]
    machine.start()
    machine.settle()
    machine.stop()
    if which == "journal":
        machine.ledger_paths = ["/disk/ledgers0"]
    else:
        machine.journal_paths = ["/disk/journal0"]
    with pytest.raises(StoreError, match="belongs to store"):
        machine.start()


@pytest.mark.parametrize("which", ["journal", "ledgers"])
def test_emptied_directory_is_refused(which: str) -> None:
    machine = stopped()
    paths = machine.journal_paths if which == "journal" else machine.ledger_paths
    paths[0] = "/disk/empty"
    with pytest.raises(StoreError, match="/disk/empty/current is empty"):
        machine.start()


def test_emptied_journal_is_refused_after_a_clean_stop_too() -> None:
    """New directories may be welcome and nothing left to replay: the mark still names a file."""
    machine = stopped()
    machine.journal_paths = ["/disk/empty"]
    allow_expansion(machine)
    with pytest.raises(LedgerError, match="missing"):
        machine.start()


def test_directory_with_somebody_elses_files_is_refused() -> None:
    machine = Machine()
    machine.files.make_directories("/disk/ledgers0/current")
    machine.files.open("/disk/ledgers0/current/precious.txt", create=True).close()
    with pytest.raises(StoreError, match=r"not empty \(it holds precious.txt\)"):
        machine.start()


def test_directory_that_lost_its_stamp_is_refused() -> None:
    machine = stopped()
    machine.files.remove(f"/disk/ledgers0/current/{STAMP_NAME}")
    allow_expansion(machine)
    with pytest.raises(StoreError, match="carries no stamp"):
        machine.start()


def test_what_a_file_system_and_a_cookie_leave_counts_as_empty() -> None:
    machine = Machine()
    machine.files.make_directories("/disk/ledgers0/current/lost+found")
    machine.files.open("/disk/ledgers0/current/VERSION", create=True).close()
    machine.start()


def test_missing_index_is_refused() -> None:
    machine = stopped(directories=1)
    del machine.indexes._disks["/disk/ledgers0/current/index"]
    with pytest.raises(CorruptionError, match="missing"):
        machine.start()


def test_index_of_an_earlier_copy_is_refused_and_goes_into_limbo_on_the_operators_word() -> None:
    machine = stopped(directories=1)
    disk = machine.indexes._disks["/disk/ledgers0/current/index"]
    machine.start()
    old = dict[bytes, bytes]()
    for entry_id in range(1, 4):
        machine.add(1, [(entry_id, b"newer")], None)
        machine.settle()
        machine.engine.checkpoint()
        machine.settle()
        old = old or dict(disk.durable)
    machine.crash()
    disk.durable = old
    with pytest.raises(CorruptionError, match="is at checkpoint"):
        machine.start()
    machine.options = replace(machine.options, accept_loss=True)
    for _ in range(3):
        machine.start()
        machine.settle()
        assert machine.read(1, 0) == b"1"
        assert machine.read(1, 4) is Status.UNKNOWN_LEDGER_STATE
        assert machine.add(1, [(4, b"late")], None) == [Status.FENCED]
        assert machine.store is not None
        assert machine.store.needs_integrity_check
        machine.crash()
        machine.options = replace(machine.options, accept_loss=False)  # once was enough


def test_refused_start_leaves_everything_unlocked_and_as_it_was() -> None:
    machine = stopped()
    machine.ledger_paths.reverse()
    for _ in range(2):
        with pytest.raises(StoreError):
            machine.start()
    machine.ledger_paths.reverse()
    machine.start()
    check_all(machine)


def test_first_start_can_die_anywhere_and_is_taken_up_again() -> None:
    for power in (False, True):
        for cut in range(power, 300, 3):
            machine = Machine(cut, journals=2, directories=2)
            machine.cut_after(cut)
            try:
                machine.start()
                machine.settle()
            except PowerCut:
                machine.crash(power=power)
            else:
                break
            machine.start()
            machine.add(1, [(0, b"one")], None)
            machine.settle()
            machine.crash(power=power)
            machine.start()
            assert machine.read(1, 0) == b"one"
        else:
            raise AssertionError("the start never came to its end")
        assert cut > 30


@pytest.mark.parametrize("cleanly", [False, True])
def test_start_with_new_directories_can_die_anywhere_and_is_taken_up_again(cleanly: bool) -> None:
    """After a clean stop also with a new journal."""
    for cut in range(cleanly, 300, 3):
        machine = Machine(cut, directories=2)
        machine.start()
        for ledger_id in range(1, 9):
            machine.add(ledger_id, [(0, b"%d" % ledger_id)], None)
        machine.engine.fence(8, KEY, "fence")
        machine.settle()
        if cleanly:
            machine.stop()
            machine.journal_paths.append("/disk/journal1")
        else:
            machine.crash()
        machine.ledger_paths.append("/disk/ledgers2")
        allow_expansion(machine)
        machine.cut_after(cut)
        try:
            machine.start()
            machine.settle()
        except PowerCut:
            machine.crash()
        else:
            assert cut > 30
            return
        machine.start()
        machine.settle()
        check_all(machine)
        assert machine.add(8, [(1, b"late")], None) == [Status.FENCED]
        assert machine.add(9, [(0, b"new")], None) == [Status.OK]
    raise AssertionError("the start never came to its end")


def test_new_directory_needs_leave() -> None:
    machine = stopped()
    machine.ledger_paths.append("/disk/ledgers2")
    with pytest.raises(StoreError, match="allowStorageExpansion=true"):
        machine.start()
    allow_expansion(machine)
    machine.start()
    check_all(machine)


def test_journals_join_and_leave_after_a_clean_stop_only() -> None:
    machine = stopped(journals=2)
    machine.journal_paths.pop()
    machine.start()
    check_all(machine)
    machine.crash(power=False)
    machine.journal_paths.append("/disk/journal2")
    allow_expansion(machine)
    with pytest.raises(StoreError, match="not stopped cleanly"):
        machine.start()
    machine.journal_paths.pop()
    machine.start()
    check_all(machine)


def test_journal_that_left_without_a_clean_stop_is_missed() -> None:
    machine = stopped(journals=2)
    machine.start()
    machine.crash(power=False)
    machine.journal_paths.pop()
    with pytest.raises(StoreError, match="put the old list back"):
        machine.start()


def test_stamp_that_nobody_synced_is_synced_before_it_gets_its_name() -> None:
    """The process died behind the write, the next one took over, then the power went."""
    for cut in range(30):
        machine = Machine()
        machine.cut_after(cut)
        with pytest.raises(PowerCut):
            machine.start()
        machine.crash(power=False)
        machine.start()
        machine.crash(keep=Keep.NONE)
        machine.start()


def test_torn_stamp_of_a_first_start_is_written_again() -> None:
    machine = Machine()
    machine.files.make_directories("/disk/journal0/current")
    machine.files.open(f"/disk/journal0/current/{NEW_STAMP}", create=True).close()
    machine.start()
    assert machine.files.exists(f"/disk/journal0/current/{STAMP_NAME}")


def test_stamp_that_a_killed_start_left_unsynced_is_synced_before_it_counts() -> None:
    """Seed 5743: the operating system had the stamp, the disk did not, and its name was final."""
    files = MemoryFileSystem()
    paths = ["/disk/journal"], ["/disk/ledgers"]
    first = StoreFiles(files, *paths, new_store_id=lambda: bytes(16))
    first.prepare()
    first.stamp()
    first.close()
    new = Stamp(Kind.LEDGERS, 1, bytes(16)).encode()
    files.make_directories("/disk/more/current")
    file = files.open("/disk/more/current/STORE.new", create=True)
    file.write(new, 0)
    file.close()
    files.sync_directory("/disk/more/current")
    second = StoreFiles(
        files, paths[0], [*paths[1], "/disk/more"], new_store_id=lambda: bytes(16),
        allow_expansion=True,
    )  # fmt: skip
    second.prepare()
    second.stamp()
    second.close()
    files.crash(random.Random(0), keep=Keep.NONE)
    assert files.open("/disk/more/current/STORE").read(100, 0) == new
