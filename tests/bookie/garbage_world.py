"""What tests of garbage collection, compaction and scrub have in common."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from bookie.core.compaction import Kind, Rules
from bookie.storage.disk_watch import DiskOptions
from bookie.storage.entry_log_format import log_id_of_name
from bookie.storage.garbage_values import GarbageOptions
from bookie.storage.index_format import LogState
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.start import StoreOptions
from tests.bookie.machine import Machine, small_options
from wire.errors import Status
from wire.types import Flag

RECOVERY = int(Flag.RECOVERY_ADD)


def options(
    *, garbage: GarbageOptions | None = None, disks: DiskOptions | None = None
) -> StoreOptions:
    """Compaction without a limit of speed, unless a test wants one."""
    return small_options(
        garbage=garbage or GarbageOptions(compaction_bytes_per_second=0, scrub_bytes_per_second=0),
        disks=disks or DiskOptions(),
    )


def never() -> Rules:
    """Rules for tests that begin rounds themselves."""
    return Rules(minor_seconds=0, major_seconds=0, eager_seconds=0)


def payload(ledger_id: int, entry_id: int, size: int = 900) -> bytes:
    return f"{ledger_id}/{entry_id}:".encode().ljust(size, b"x")


def fill(machine: Machine, ledgers: range, entries: range, *, flags: int = 0) -> None:
    """Entries of several ledgers, mixed, so that they share their logs."""
    for entry_id in entries:
        for ledger_id in ledgers:
            added = [(entry_id, payload(ledger_id, entry_id))]
            assert machine.add(ledger_id, added, None, flags=flags) == [Status.OK]
        machine.settle()


def checkpoint(machine: Machine) -> None:
    machine.engine.checkpoint()
    machine.settle()


def drop(machine: Machine, *ledger_ids: int) -> None:
    """Drop ledgers and let everything happen that follows from it."""
    machine.engine.drop(ledger_ids, int(machine.now * 1000))
    machine.settle()


def compact(machine: Machine, kind: Kind = Kind.MAJOR) -> None:
    machine.engine.upkeep.compact(kind)
    machine.settle()


def check_alive(machine: Machine, ledgers: range, entries: range) -> None:
    for ledger_id in ledgers:
        for entry_id in entries:
            assert machine.read(ledger_id, entry_id) == payload(ledger_id, entry_id)


def check_dropped(machine: Machine, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        assert machine.read(ledger_id, 0) is Status.NO_LEDGER


def runs_of(directory: LedgerDirectory) -> list[IndexedRun]:
    """Every run that the index names."""
    runs = []
    for log_id in {*directory.table.ids(), *log_files(directory)}:
        for key in directory.index.run_keys(log_id).values():
            value = directory.index.get(key)
            assert value is not None
            runs.append(IndexedRun(key, value))
    return runs


def log_files(directory: LedgerDirectory) -> list[int]:
    names = directory._files.list_directory(directory.path)
    return [log_id for name in names if (log_id := log_id_of_name(name)) is not None]


def check_counts(machine: Machine) -> None:
    """The counts of living bytes are exactly those of the keys, in memory and in the index."""
    for directory in machine.engine.directories:
        living: Counter[int] = Counter()
        for run in runs_of(directory):
            living[run.log_id] += run.body_bytes
        table = directory.table
        assert living.keys() <= set(table.ids())
        for log_id, log in directory.index.logs():
            assert table.get(log_id) == log
        for log_id in table.ids():
            assert table.live_bytes(log_id) == living[log_id]


def check_no_leak(machine: Machine) -> None:
    """Every file is known, and none is kept that holds nothing, but for those being written."""
    for directory in machine.engine.directories:
        table = directory.table
        assert log_files(directory) == table.ids()
        for log in table.uses(LogState.SEALED, LogState.DAMAGED):
            assert log.live_bytes, f"log {log.log_id} is empty and still there"


def collect(machine: Machine) -> None:
    """One more round, as a collector would begin it."""
    machine.engine.upkeep.remove_dead_logs()
    machine.settle()


def with_log_bytes(given: StoreOptions, log_bytes: int) -> StoreOptions:
    return replace(given, engine=replace(given.engine, log_bytes=log_bytes))


def half_empty(machine: Machine | None = None, *, garbage: GarbageOptions | None = None) -> Machine:
    """Several sealed logs, of which little lives: ledger 1. Ledgers 2 to 5 were dropped."""
    machine = machine or Machine(options=options(garbage=garbage))
    machine.start()
    machine.settle()
    fill(machine, range(1, 6), range(30))
    checkpoint(machine)
    drop(machine, 2, 3, 4, 5)
    return machine
