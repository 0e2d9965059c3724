"""Compaction: what lives is moved, what is dead goes, and no crash turns one into the other."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookie.core.compaction import Kind, Rules
from bookie.storage.garbage_values import GarbageOptions, Phase
from bookie.storage.index_format import LogState
from bookie.storage.index_interface import Change
from tests.bookie.garbage_world import (
    RECOVERY,
    check_alive,
    check_counts,
    check_dropped,
    check_no_leak,
    checkpoint,
    collect,
    compact,
    drop,
    fill,
    half_empty,
    log_files,
    options,
    payload,
    runs_of,
    with_log_bytes,
)
from tests.bookie.machine import Machine, PowerCut
from wire.errors import Status


def test_compaction_keeps_what_lives_and_removes_the_sources() -> None:
    machine = half_empty()
    [directory] = machine.engine.directories
    before = log_files(directory)
    written = {(run.first, run.last): (run.sequence, run.value) for run in runs_of(directory)}
    compact(machine)
    after = log_files(directory)
    assert len(after) < len(before)
    assert not set(after) & {log.log_id for log in directory.table.uses() if not log.live_bytes}
    moved = {(run.first, run.last): (run.sequence, run.value) for run in runs_of(directory)}
    assert moved == written, "a copy has the value and the write sequence of its original"
    check_alive(machine, range(1, 2), range(30))
    check_dropped(machine, 2, 3, 4, 5)
    check_counts(machine)
    check_no_leak(machine)
    [statistics] = machine.engine.upkeep.statistics()
    assert statistics.rounds[Kind.MAJOR] == 1
    assert statistics.bytes_copied > 0
    assert statistics.bytes_reclaimed > 32 * 1024
    assert statistics.phase is Phase.IDLE


def test_compacted_entries_survive_a_clean_stop_and_a_crash() -> None:
    machine = half_empty()
    compact(machine)
    machine.stop()
    machine.start()
    machine.settle()
    check_alive(machine, range(1, 2), range(30))
    check_counts(machine)
    check_no_leak(machine)
    machine.crash()
    machine.start()
    machine.settle()
    check_alive(machine, range(1, 2), range(30))
    check_no_leak(machine)


def test_compaction_log_stays_open_across_sources_and_is_sealed_when_full() -> None:
    machine = Machine(options=options())
    machine.start()
    machine.settle()
    fill(machine, range(1, 4), range(100))
    checkpoint(machine)
    drop(machine, 2, 3)
    [directory] = machine.engine.directories
    compact(machine)
    assert len(directory.table.uses(LogState.COMPACTION)) == 1
    sealed = {log.log_id for log in directory.table.uses()}
    copies = {run.log_id for run in runs_of(directory)}
    assert len(copies & sealed) >= 2
    for log_id in copies & sealed:
        assert directory.logs.get(log_id).read_footer() is not None
    assert all(log.bytes <= 40 * 1024 for log in directory.table.uses())
    check_counts(machine)


def test_minor_compaction_leaves_what_only_a_major_one_takes() -> None:
    rules = Rules(minor_threshold=0.02, major_threshold=0.5)
    machine = half_empty(garbage=GarbageOptions(rules=rules, compaction_bytes_per_second=0))
    [directory] = machine.engine.directories
    before = log_files(directory)
    compact(machine, Kind.MINOR)
    assert log_files(directory) == before
    compact(machine, Kind.MAJOR)
    assert len(log_files(directory)) < len(before)


def test_rounds_begin_by_the_clock() -> None:
    machine = half_empty()
    [garbage] = machine.engine.upkeep.garbage

    def rounds() -> list[int]:
        machine.engine.tick()
        machine.settle()
        return [garbage.statistics().rounds[kind] for kind in (Kind.MINOR, Kind.MAJOR)]

    machine.now += 3599
    assert rounds() == [0, 0]
    machine.now += 2
    assert rounds() == [1, 0]
    assert rounds() == [1, 0]
    machine.now += 86400
    assert rounds() == [1, 1]
    machine.now += 10
    assert rounds() == [1, 1], "a major round has done what a minor one would"


def test_suspended_compaction_waits_until_it_is_allowed_again() -> None:
    machine = half_empty()
    upkeep = machine.engine.upkeep
    upkeep.suspend(Kind.MAJOR)
    compact(machine)
    [statistics] = upkeep.statistics()
    assert statistics.rounds[Kind.MAJOR] == 0
    drop(machine, 1)  # deletions are not held up
    check_dropped(machine, 1)
    assert upkeep.statistics()[0].ledgers_deleted == 5
    upkeep.allow(Kind.MAJOR)
    machine.settle()
    assert upkeep.statistics()[0].rounds[Kind.MAJOR] == 1


def damaged_run(machine: Machine) -> tuple[str, int, int]:
    """Let a byte of a body of ledger 1 rot; the log's path and the entries that are hit."""
    [directory] = machine.engine.directories
    sealed = {log.log_id for log in directory.table.uses()}
    run = next(run for run in runs_of(directory) if run.log_id in sealed)
    path = f"{directory.path}/{run.log_id:08x}.log"
    machine.files.flip(path, run.body_offset + run.body_bytes - 1)
    return path, run.first, run.last


def test_damaged_run_stays_is_flagged_and_does_not_stop_the_others() -> None:
    machine = half_empty()
    [directory] = machine.engine.directories
    path, first, last = damaged_run(machine)
    compact(machine)
    [error] = machine.damage
    assert "CRC" in str(error)
    log_id = int(path[-12:-4], 16)
    log = directory.table.get(log_id)
    assert log is not None
    assert log.state is LogState.DAMAGED
    assert [run.is_damaged for run in runs_of(directory) if run.log_id == log_id] == [True]
    for entry_id in range(30):
        found = machine.read(1, entry_id)
        assert found == (Status.IO_ERROR if first <= entry_id <= last else payload(1, entry_id))
    check_counts(machine)
    [statistics] = machine.engine.upkeep.statistics()
    assert statistics.damaged_runs == 1
    before = log_files(directory)
    compact(machine)
    assert log_files(directory) == before, "a damaged log is left alone"
    assert len(machine.damage) == 1


def test_repaired_copy_is_served_in_place_of_the_damaged_run() -> None:
    machine = half_empty()
    _, first, last = damaged_run(machine)
    compact(machine)
    repaired = [(n, payload(1, n)) for n in range(first, last + 1)]
    machine.add(1, repaired, None, flags=RECOVERY)
    checkpoint(machine)
    machine.now += 120
    check_alive(machine, range(1, 2), range(30))
    compact(machine)
    check_alive(machine, range(1, 2), range(30))


def test_damaged_log_goes_with_the_ledger_of_its_damaged_run() -> None:
    machine = half_empty()
    path, _, _ = damaged_run(machine)
    compact(machine)
    drop(machine, 1)
    assert not machine.files.exists(path)
    check_no_leak(machine)


def test_run_with_a_bad_header_is_copied_by_what_the_index_knows() -> None:
    machine = half_empty()
    [directory] = machine.engine.directories
    sealed = {log.log_id for log in directory.table.uses()}
    run = next(run for run in runs_of(directory) if run.log_id in sealed)
    path = f"{directory.path}/{run.log_id:08x}.log"
    machine.files.flip(path, run.offset + 20)
    compact(machine)
    assert not machine.files.exists(path)
    assert machine.damage == []
    check_alive(machine, range(1, 2), range(30))
    check_counts(machine)


def test_missing_log_is_reported_and_does_not_stop_the_others() -> None:
    machine = half_empty()
    [directory] = machine.engine.directories
    sealed = {log.log_id for log in directory.table.uses()}
    run = next(run for run in runs_of(directory) if run.log_id in sealed)
    machine.files.remove(f"{directory.path}/{run.log_id:08x}.log")
    directory.logs.forget(run.log_id)
    compact(machine)
    assert machine.damage
    assert machine.engine.upkeep.statistics()[0].rounds[Kind.MAJOR] == 1
    assert machine.read(1, run.first) is Status.IO_ERROR
    check_counts(machine)


def test_log_that_cannot_be_read_now_is_passed_over() -> None:
    machine = half_empty()
    [directory] = machine.engine.directories
    sealed = sorted(log.log_id for log in directory.table.uses())
    path = f"{directory.path}/{sealed[0]:08x}.log"
    fault = machine.files.fail("read", path=path, times=None)
    compact(machine)
    fault.clear()
    [statistics] = machine.engine.upkeep.statistics()
    assert statistics.unreadable_logs == 1
    assert statistics.rounds[Kind.MAJOR] == 1
    assert machine.damage == []
    assert machine.files.exists(path)
    check_alive(machine, range(1, 2), range(30))
    compact(machine)
    assert not machine.files.exists(path)
    check_counts(machine)


def test_ledger_dropped_during_compaction_does_not_come_back() -> None:
    for steps in range(0, 60, 3):
        machine = half_empty(Machine(steps, options=options()))
        machine.engine.upkeep.compact(Kind.MAJOR)
        machine.step(steps)
        machine.engine.drop([1], 0)
        machine.settle()
        [directory] = machine.engine.directories
        assert runs_of(directory) == []
        check_counts(machine)
        collect(machine)
        check_no_leak(machine)


def test_run_deleted_between_its_copy_and_the_exchange_of_keys_stays_dead() -> None:
    given = options()
    engine = replace(given.engine, generation_bytes=1 << 20, write_cache_bytes=8 << 20)
    machine = Machine(options=with_log_bytes(replace(given, engine=engine), 2 << 20))
    machine.start()
    machine.settle()
    for entry_id in range(60):
        for ledger_id in (1, 2):
            machine.add(ledger_id, [(entry_id, bytes(40_000))], None)
    machine.engine.checkpoint()
    checkpoint(machine)
    drop(machine, 2)
    upkeep = machine.engine.upkeep
    upkeep.compact(Kind.EAGER)
    compactor = upkeep.garbage[0]._compactor
    while not compactor._moves:
        assert machine.workers.step()
    upkeep.suspend(Kind.MAJOR)
    drop(machine, 1)
    assert compactor._moves, "the copy is made, its key is not"
    upkeep.allow(Kind.MAJOR)
    machine.settle()
    [directory] = machine.engine.directories
    assert runs_of(directory) == []
    check_counts(machine)


def test_entries_are_readable_at_every_step_of_a_compaction() -> None:
    machine = half_empty()
    machine.engine.upkeep.compact(Kind.MAJOR)
    while machine.workers.step():
        found = machine.engine.read(1, 17)
        assert isinstance(found, bytes)
        assert found[32:] == payload(1, 17)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "sync-directory"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_error_of_the_compaction_log_costs_nothing(operation: str, error: int) -> None:
    machine = half_empty()
    [directory] = machine.engine.directories
    newest = max(log_files(directory))
    machine.files.fail(
        operation,  # type: ignore[arg-type]
        path=lambda path: path.endswith("ledgers0/current") or path[-12:] > f"{newest:08x}.log",
        error=error,
    )
    compact(machine)
    check_alive(machine, range(1, 2), range(30))
    check_counts(machine)
    assert machine.engine.upkeep.garbage[0].trouble is not None or operation == "sync-directory"
    compact(machine)
    collect(machine)
    check_alive(machine, range(1, 2), range(30))
    check_counts(machine)
    check_no_leak(machine)


@pytest.mark.parametrize("calls", range(12))
def test_failing_index_costs_nothing(calls: int) -> None:
    machine = half_empty(Machine(calls, options=options()))
    [index] = machine.opened.values()
    left = calls
    apply = index.apply

    def failing(piece: Sequence[Change]) -> None:
        nonlocal left
        left -= 1
        index.fails = index.fails or left == -1
        apply(piece)

    index.apply = failing  # type: ignore[method-assign]
    index.kept_by_reopen = lambda count: machine.random.randint(0, count)
    compact(machine)
    for _ in range(3):
        machine.now += 10
        machine.engine.tick()
        machine.settle()
    compact(machine)
    check_alive(machine, range(1, 2), range(30))
    check_counts(machine)
    collect(machine)
    check_no_leak(machine)


@pytest.mark.parametrize("power", [True, False])
def test_crash_at_any_moment_of_a_compaction_is_harmless(power: bool) -> None:
    after, cut = 0, True
    while cut:
        machine = half_empty(Machine(after, options=options()))
        machine.engine.upkeep.compact(Kind.MAJOR)
        machine.cut_after(after)
        try:
            machine.settle()
            cut = False
        except PowerCut:
            pass
        machine.crash(power=power)
        machine.start()
        machine.settle()
        check_alive(machine, range(1, 2), range(30))
        check_dropped(machine, 2, 3, 4, 5)
        check_counts(machine)
        compact(machine)
        check_alive(machine, range(1, 2), range(30))
        check_counts(machine)
        check_no_leak(machine)
        after += 3
    assert after > 100, "the history has become too short to say anything"


@pytest.mark.parametrize("seed", range(40))
def test_counts_and_contents_are_right_in_random_histories(seed: int) -> None:
    """Adds, drops, repairs, compactions, scrubs and crashes, against a plain dictionary."""
    chance = random.Random(seed)
    machine = Machine(seed, options=options(), directories=1 + seed % 2)
    machine.start()
    machine.settle()
    alive: dict[int, set[int]] = {}
    dropped: set[int] = set()
    for _ in range(40):
        act = chance.randrange(8)
        ledger_id = chance.randrange(1, 9)
        if act < 3 and (ledger_id not in dropped or act == 0):
            first = chance.randrange(40)
            entries = [(n, payload(ledger_id, n)) for n in range(first, first + 8)]
            flags = RECOVERY if ledger_id in dropped else 0
            assert set(machine.add(ledger_id, entries, None, flags=flags)) == {Status.OK}
            alive.setdefault(ledger_id, set()).update(n for n, _ in entries)
            dropped.discard(ledger_id)
        elif act == 3 and ledger_id in alive:
            machine.engine.drop([ledger_id], 0)
            del alive[ledger_id]
            dropped.add(ledger_id)
        elif act == 4:
            machine.engine.upkeep.compact(chance.choice(list(Kind)))
        elif act == 5:
            machine.engine.upkeep.scrub(everything=True)
        elif act == 6:
            machine.step(chance.randrange(30))
        elif chance.random() < 0.3:
            machine.settle()  # everything is acknowledged, all tombstones are checkpointed
            machine.crash(power=chance.random() < 0.5)
            machine.start()
    machine.settle()
    for ledger_id, entry_ids in alive.items():
        for entry_id in entry_ids:
            assert machine.read(ledger_id, entry_id) == payload(ledger_id, entry_id)
    check_dropped(machine, *dropped)
    check_counts(machine)
    assert machine.damage == []
