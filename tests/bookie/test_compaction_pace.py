"""How fast compaction goes, and for what it waits."""

from __future__ import annotations

import pytest

from bookie.core.compaction import Kind
from bookie.storage.garbage_values import GarbageOptions, Phase
from tests.bookie.garbage_world import (
    check_alive,
    compact,
    half_empty,
    log_files,
    never,
    payload,
)


def test_compaction_keeps_to_its_budget() -> None:
    machine = half_empty(
        garbage=GarbageOptions(rules=never(), compaction_bytes_per_second=8 * 1024)
    )
    [garbage] = machine.engine.upkeep.garbage
    compact(machine)
    seconds = 0.0
    while not garbage.is_idle:
        statistics = garbage.statistics()
        assert statistics.phase is Phase.COMPACTING
        assert statistics.bytes_done <= statistics.bytes_total
        # Read and written bytes, the burst, and one run of debt.
        assert 2 * statistics.bytes_copied <= 8 * 1024 * (seconds + 0.25) + 2 * 8192
        machine.now += 0.1
        seconds += 0.1
        machine.engine.upkeep.tick()
        machine.settle()
    assert seconds > 3
    check_alive(machine, range(1, 2), range(30))


def test_compaction_waits_while_the_flush_is_behind() -> None:
    machine = half_empty()
    fault = machine.files.fail("write", path="*/mark", times=None)
    for entry_id in range(30, 80):
        machine.add(1, [(entry_id, payload(1, entry_id))], None)
    assert machine.engine.fill > 0.5
    compact(machine)
    assert machine.engine.upkeep.statistics()[0].rounds[Kind.MAJOR] == 0
    fault.clear()
    machine.engine.tick()
    machine.settle()
    assert machine.engine.upkeep.statistics()[0].rounds[Kind.MAJOR] == 1
    check_alive(machine, range(1, 2), range(80))


def test_compaction_waits_while_the_journal_is_slow() -> None:
    machine = half_empty()
    upkeep = machine.engine.upkeep
    for _ in range(10):  # among the hundreds that filled the logs
        upkeep.journal.note(0.3)
    machine.engine.tick()
    compact(machine)
    assert upkeep.statistics()[0].rounds[Kind.MAJOR] == 0
    for _ in range(10):
        machine.engine.tick()
        machine.settle()
    assert upkeep.statistics()[0].rounds[Kind.MAJOR] == 1
    check_alive(machine, range(1, 2), range(30))


def test_slow_journal_does_not_keep_a_full_disk_from_being_compacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = half_empty()
    upkeep = machine.engine.upkeep
    monkeypatch.setattr(type(upkeep.disks), "is_tight", True)
    for _ in range(10):
        upkeep.journal.note(0.3)
    machine.engine.tick()
    assert upkeep.journal.is_slow
    compact(machine)
    assert upkeep.statistics()[0].rounds[Kind.MAJOR] == 1


def test_writes_of_the_journal_are_what_is_watched() -> None:
    """A disk on which every write takes longer than the limit."""
    machine = half_empty(garbage=GarbageOptions(rules=never(), journal_seconds_max=1e-9))
    times = iter(range(1000, 100_000))
    [journal] = machine.engine.journals
    journal._clock = lambda: float(next(times))
    machine.add(1, [(1000, payload(1, 1000))], None)
    machine.settle()
    machine.engine.tick()
    assert machine.engine.upkeep.journal.is_slow


def test_round_ends_when_its_time_is_over() -> None:
    machine = half_empty(
        garbage=GarbageOptions(rules=never(), compaction_bytes_per_second=0, round_seconds_max=5)
    )
    [directory] = machine.engine.directories
    before = len(log_files(directory))
    machine.engine.upkeep.compact(Kind.MAJOR)
    while machine.workers.step():
        machine.now += 1
    after = len(log_files(directory))
    assert 1 < after < before
    assert machine.engine.upkeep.statistics()[0].rounds[Kind.MAJOR] == 1
