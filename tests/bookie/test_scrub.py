"""Scrub: what has rotted is found before anybody asks for it."""

from __future__ import annotations

from bookie.core.compaction import Kind
from bookie.storage.garbage_values import GarbageOptions, Phase
from bookie.storage.index_format import LogState
from bookie.storage.scrub import ScrubReport
from tests.bookie.garbage_world import (
    check_alive,
    check_counts,
    checkpoint,
    compact,
    drop,
    fill,
    never,
    options,
    payload,
    runs_of,
)
from tests.bookie.machine import Machine
from wire.errors import Status


def filled(garbage: GarbageOptions | None = None) -> Machine:
    machine = Machine(options=options(garbage=garbage))
    machine.start()
    machine.settle()
    fill(machine, range(1, 3), range(60))
    checkpoint(machine)
    return machine


def scrub(machine: Machine, *, everything: bool = True) -> ScrubReport:
    machine.engine.upkeep.scrub(everything=everything)
    machine.settle()
    report = machine.engine.upkeep.statistics()[0].scrub
    assert report is not None
    return report


def test_scrub_of_a_healthy_store_reads_all_of_it_and_finds_nothing() -> None:
    machine = filled()
    [directory] = machine.engine.directories
    report = scrub(machine)
    sealed = directory.table.uses()
    assert report.is_complete
    assert report.logs == report.logs_total == len(sealed) > 2
    assert report.bytes == sum(log.live_bytes for log in sealed)
    assert report.damaged_runs == report.unreadable_logs == 0
    assert machine.damage == []


def test_scrub_flags_what_rotted_and_only_that() -> None:
    machine = filled()
    [directory] = machine.engine.directories
    log_id = directory.table.uses()[1].log_id
    bad = next(run for run in runs_of(directory) if run.log_id == log_id)
    machine.files.flip(f"{directory.path}/{log_id:08x}.log", bad.body_offset + 40)
    report = scrub(machine)
    assert report.damaged_runs == 1
    [error] = machine.damage
    assert f"ledger {bad.ledger_id}" in str(error)
    assert [run.key for run in runs_of(directory) if run.is_damaged] == [bad.key]
    log = directory.table.get(log_id)
    assert log is not None
    assert log.state is LogState.DAMAGED
    check_counts(machine)
    for ledger_id in (1, 2):
        for entry_id in range(60):
            hit = ledger_id == bad.ledger_id and bad.first <= entry_id <= bad.last
            wanted = Status.IO_ERROR if hit else payload(ledger_id, entry_id)
            assert machine.read(ledger_id, entry_id) == wanted
    scrub(machine)
    assert len(machine.damage) == 1, "it is reported once"


def test_damage_in_what_is_dead_is_nobodys_business() -> None:
    machine = filled()
    [directory] = machine.engine.directories
    sealed = {log.log_id for log in directory.table.uses()}
    dead = next(run for run in runs_of(directory) if run.ledger_id == 1 and run.log_id in sealed)
    drop(machine, 1)
    machine.files.flip(f"{directory.path}/{dead.log_id:08x}.log", dead.body_offset + 40)
    assert scrub(machine).damaged_runs == 0


def test_one_log_a_day_takes_its_turn_also_across_restarts() -> None:
    machine = filled()
    [directory] = machine.engine.directories
    ids = sorted(log.log_id for log in directory.table.uses())
    seen = []
    for turn in range(len(ids) + 1):
        machine.now += 86400
        machine.engine.upkeep.tick()
        machine.settle()
        [statistics] = machine.engine.upkeep.statistics()
        assert statistics.scrub is not None
        assert statistics.scrub.logs_total == 1
        [directory] = machine.engine.directories
        cursor = directory.index.get(b"Sscrubbed-log")
        assert cursor is not None
        seen.append(int.from_bytes(cursor, "big"))
        if turn % 2:
            machine.stop()
            machine.start()
            machine.settle()
            ids += [log.log_id for log in machine.engine.directories[0].table.uses()]
    assert seen[:3] == sorted(set(ids))[:3]
    assert len(set(seen)) >= 3


def test_scrub_is_slow_by_design_and_others_go_first() -> None:
    machine = filled(
        GarbageOptions(rules=never(), compaction_bytes_per_second=0, scrub_bytes_per_second=4096)
    )
    machine.engine.upkeep.scrub(everything=True)
    machine.settle()
    [statistics] = machine.engine.upkeep.statistics()
    assert statistics.phase is Phase.SCRUBBING
    assert statistics.scrub is not None
    assert not statistics.scrub.is_complete
    assert statistics.scrub.bytes < 16 * 1024
    drop(machine, 1)
    compact(machine, Kind.MAJOR)
    [statistics] = machine.engine.upkeep.statistics()
    assert statistics.ledgers_deleted == 1
    assert statistics.rounds[Kind.MAJOR] == 1
    for _ in range(100):
        machine.now += 1
        machine.engine.upkeep.tick()
        machine.settle()
    [statistics] = machine.engine.upkeep.statistics()
    assert statistics.scrub is not None
    assert statistics.scrub.is_complete
    check_alive(machine, range(2, 3), range(60))


def test_unreadable_log_is_counted_and_passed_over() -> None:
    machine = filled()
    [directory] = machine.engine.directories
    log_id = directory.table.uses()[0].log_id
    fault = machine.files.fail("read", path=f"*/{log_id:08x}.log", times=None)
    report = scrub(machine)
    fault.clear()
    assert (report.unreadable_logs, report.damaged_runs) == (1, 0)
    assert report.is_complete
    check_alive(machine, range(1, 3), range(60))
