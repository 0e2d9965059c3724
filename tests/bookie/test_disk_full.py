"""Real ENOSPC: file systems of a few megabytes, filled to the last page.

Whatever meets the full disk, a checkpoint, an index, a journal, a start: nothing acknowledged is
lost, the bookie says that it takes nothing more, and goes on by itself once there is room.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bookie.core.disk_space import Thresholds
from bookie.storage.disk_watch import DiskOptions
from bookie.storage.engine_values import EngineOptions
from bookie.storage.index import RocksIndex
from bookie.storage.index_interface import IndexFailedError
from bookie.storage.journal_options import JournalOptions
from bookie.storage.start import StoreOptions
from tests.bookie.disk_machine import DiskMachine
from tests.bookie.small_disk import SmallDisk, small_disk
from wire.errors import LedgerError, Status

PAGE = 4096


def _options(*, reserve_bytes: int = 0, watch: bool = False) -> StoreOptions:
    return StoreOptions(
        engine=EngineOptions(
            generation_bytes=64 << 10,
            write_cache_bytes=4 << 20,
            read_cache_bytes=1 << 20,
            log_bytes=512 << 10,
            reader_count=1,
        ),
        journal=JournalOptions(file_bytes=256 << 10, spare_files_max=1),
        disks=DiskOptions(
            reserve_bytes=reserve_bytes,
            check_seconds=0,
            read_only_when_full=watch,
            thresholds=Thresholds(priority_bytes=1 << 20),
        ),
    )


class Writer:
    """Adds numbered entries to one of three ledgers, and knows which are acknowledged."""

    def __init__(self, machine: DiskMachine) -> None:
        self.machine = machine
        self.next = 0
        self.ledgers: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        machine.on_durable = self._on_durable

    def add(self, count: int = 20) -> Status:
        numbers = range(self.next, self.next + count)
        ledger_id = 1 + self.next // count % 3
        entries = [(number, _payload(number)) for number in numbers]
        [status] = set(self.machine.add(ledger_id, entries, numbers))
        if status is Status.OK:
            self.ledgers.update(dict.fromkeys(numbers, ledger_id))
            self.next += count
        return status

    def expect_all(self) -> None:
        """Everything acknowledged is there."""
        for number in self.acknowledged:
            assert self.machine.read(self.ledgers[number], number) == _payload(number)

    def _on_durable(self, tokens: list[object]) -> None:
        for token in tokens:
            assert isinstance(token, range)
            self.acknowledged.update(token)


def _payload(number: int) -> bytes:
    return b"%d " % number * 100


def _ledgers_on(disk: SmallDisk, path: Path, options: StoreOptions) -> DiskMachine:
    machine = DiskMachine(path, options=options)
    machine.ledger_paths = [str(disk.path / "ledgers")]
    return machine


def _wait(machine: DiskMachine, seconds: float = 60.0) -> None:
    """Let time pass, as the bookie sees it."""
    machine.now += seconds
    machine.engine.tick()
    machine.settle()


def _accepts(machine: DiskMachine) -> bool:
    return not machine.engine.upkeep.disks.acceptance.read_only


def _write_and_die(machine: DiskMachine, writer: Writer) -> None:
    """The last entries are in the journal alone when it dies."""
    for _ in range(10):
        assert writer.add() is Status.OK
        machine.settle()
    assert len(writer.acknowledged) == writer.next
    machine.die()


def test_flush_that_meets_a_full_disk_is_repeated_when_there_is_room(tmp_path: Path) -> None:
    """With more and more pages left: the log's header, its runs, the index, each stumbles once."""
    stumbled = []
    with small_disk(tmp_path, megabytes=24) as disk:
        machine = _ledgers_on(disk, tmp_path, _options())
        machine.start()
        writer = Writer(machine)
        for pages in (0, 1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64):
            machine.troubles.clear()
            disk.fill(leave_bytes=pages * PAGE)
            for _ in range(8):
                writer.add()
                machine.settle()
            machine.engine.checkpoint()
            machine.settle()
            assert len(writer.acknowledged) == writer.next, "the journal has room"
            if machine.troubles:
                stumbled.append(pages)
                assert not _accepts(machine)
                assert writer.add() is Status.READ_ONLY
                _wait(machine)
                assert not _accepts(machine), "still no room"
            writer.expect_all()
            disk.free()
            _wait(machine)
            assert machine.engine.directories[0].trouble is None
            assert not machine.engine.directories[0].failed
            assert _accepts(machine)
            assert machine.engine.statistics().generations_waiting == 0
            writer.expect_all()
        assert len(stumbled) >= 6
        machine.stop()
        machine.start()
        assert machine.store is not None
        assert machine.store.replayed.entries == 0
        writer.expect_all()
        machine.stop()


def test_index_that_failed_serves_reads_until_there_is_room(tmp_path: Path) -> None:
    """RocksDB could be closed on a full disk and not opened again: it stays as it is."""
    with small_disk(tmp_path, megabytes=24) as disk:
        machine = _ledgers_on(disk, tmp_path, _options())
        machine.start()
        writer = Writer(machine)
        index = machine.engine.directories[0].index
        assert isinstance(index, RocksIndex)
        for pages in range(2, 100):  # until the log still has room, and the index has none
            disk.fill(leave_bytes=pages * PAGE)
            assert writer.add(60) is Status.OK
            machine.engine.checkpoint()
            machine.settle()
            if isinstance(machine.engine.directories[0].trouble, IndexFailedError):
                break
            disk.free()
            _wait(machine)
        disk.fill()
        failed = index._db
        for _ in range(3):
            _wait(machine)
            assert index._db is failed
            writer.expect_all()
        disk.free()
        _wait(machine)
        assert machine.engine.directories[0].trouble is None
        assert index._db is not failed
        writer.expect_all()
        machine.stop()


@pytest.mark.parametrize("pages", [0, 3, 20])
def test_bookie_that_dies_on_a_full_disk_starts_with_its_reserve(
    tmp_path: Path, pages: int
) -> None:
    with small_disk(tmp_path, megabytes=24) as disk:
        machine = _ledgers_on(disk, tmp_path, _options(reserve_bytes=2 << 20))
        reserve = disk.path / "ledgers" / "current" / "reserve"
        machine.start()
        writer = Writer(machine)
        _wait(machine)
        assert reserve.stat().st_size == 2 << 20
        _write_and_die(machine, writer)
        assert reserve.exists()
        disk.fill(leave_bytes=pages * PAGE)
        machine.start()
        machine.settle()
        assert not reserve.exists()
        writer.expect_all()
        disk.free()
        for _ in range(3):
            _wait(machine)
        assert _accepts(machine)
        assert reserve.stat().st_size == 2 << 20
        assert writer.add() is Status.OK
        machine.settle()
        machine.stop()
        machine.start()
        writer.expect_all()
        machine.stop()


def test_bookie_without_any_room_says_so_and_starts_once_there_is_some(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=24) as disk:
        machine = _ledgers_on(disk, tmp_path, _options())
        machine.start()
        writer = Writer(machine)
        _write_and_die(machine, writer)
        for _ in range(2):
            disk.fill()
            with pytest.raises((LedgerError, OSError), match="No space left") as caught:
                machine.start()
            assert str(disk.path) in str(caught.value)
            assert "rebuild" not in str(caught.value)
            assert "\n" not in str(caught.value)
            disk.free()
            machine.start()
            writer.expect_all()
            _write_and_die(machine, writer)


def test_reserve_is_given_up_before_entries_are_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=24) as disk:
        machine = _ledgers_on(disk, tmp_path, _options(reserve_bytes=2 << 20))
        machine.start()
        _wait(machine)
        writer = Writer(machine)
        disk.fill()
        for _ in range(8):
            assert writer.add() is Status.OK
            machine.settle()
        machine.engine.checkpoint()
        machine.settle()
        assert not (disk.path / "ledgers" / "current" / "reserve").exists()
        assert machine.engine.directories[0].trouble is None
        assert machine.engine.statistics().generations_waiting == 0
        writer.expect_all()
        machine.stop()


def test_full_journal_disk_holds_answers_back_until_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=8) as disk:
        machine = DiskMachine(tmp_path, options=_options())
        machine.journal_paths = [str(disk.path / "journal")]
        machine.start()
        writer = Writer(machine)
        assert writer.add() is Status.OK
        machine.settle()
        disk.fill()
        # No checkpoint trims the journal meanwhile: the bookie is not given the time.
        while writer.add() is Status.OK:
            machine.step(2)
            assert writer.next < 100_000
        assert not _accepts(machine)
        assert "no room for the next journal file" in machine.engine.upkeep.disks.acceptance.reason
        machine.settle()
        writer.expect_all()
        disk.free()
        for _ in range(3):
            _wait(machine)
        assert machine.failures == []
        assert len(writer.acknowledged) == writer.next
        assert _accepts(machine)
        assert writer.add() is Status.OK
        machine.settle()
        writer.expect_all()
        machine.die()
        machine.start()
        writer.expect_all()
        assert len(writer.acknowledged) == writer.next
        machine.stop()


def test_bookie_starts_on_a_full_journal_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=8) as disk:
        machine = DiskMachine(tmp_path, options=_options())
        machine.journal_paths = [str(disk.path / "journal")]
        machine.start()
        writer = Writer(machine)
        for _ in range(60):
            assert writer.add() is Status.OK
            machine.settle()
        machine.die()
        disk.fill()
        machine.start()
        machine.settle()
        writer.expect_all()
        disk.free()
        _wait(machine)
        assert writer.add() is Status.OK
        machine.settle()
        assert len(writer.acknowledged) == writer.next
        machine.stop()


def test_bookie_fills_its_one_disk_refuses_entries_and_takes_them_again(tmp_path: Path) -> None:
    """Journal, logs and index share a disk, as on a small machine; nobody else is on it."""
    with small_disk(tmp_path, megabytes=24) as disk:
        machine = DiskMachine(disk.path, options=_options(reserve_bytes=1 << 20, watch=True))
        machine.start()
        writer = Writer(machine)
        _wait(machine)
        ballast = disk.path / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 10 << 20)
        while writer.add(100) is Status.OK:
            _wait(machine, 0.1)
            assert writer.next < 1_000_000
        machine.settle()
        assert len(writer.acknowledged) == writer.next
        assert disk.free_bytes < 2 << 20
        writer.expect_all()
        ballast.unlink()
        for _ in range(3):
            _wait(machine)
        assert writer.add() is Status.OK
        machine.settle()
        machine.stop()
        machine.start()
        writer.expect_all()
        machine.stop()


def test_the_disk_is_really_full(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=2) as disk:
        disk.fill(leave_bytes=PAGE)
        with (disk.path / "more").open("wb", buffering=0) as file:
            assert file.write(bytes(PAGE)) == PAGE
            with pytest.raises(OSError, match="No space left") as caught:
                file.write(bytes(PAGE))
        assert caught.value.errno == errno.ENOSPC
        disk.free()
        assert disk.free_bytes > 1 << 20
