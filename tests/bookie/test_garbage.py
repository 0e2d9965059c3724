"""Dropping ledgers: what goes, what must not, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookie.core.compaction import Kind
from bookie.storage.garbage_values import GarbageOptions, Listing, Phase
from bookie.storage.index_format import LogState
from bookie.storage.index_interface import Change
from bookie.storage.log_table import PIECE_CHANGES, LogTable, Move
from bookie.storage.upkeep import Drop
from tests.bookie.garbage_world import (
    RECOVERY,
    check_alive,
    check_counts,
    check_dropped,
    check_no_leak,
    checkpoint,
    collect,
    drop,
    fill,
    log_files,
    options,
    payload,
    runs_of,
)
from tests.bookie.machine import KEY, Machine, PowerCut
from wire.errors import LedgerError, Status

WEEK = 7 * 86400.0


def running(**changes: object) -> Machine:
    machine = Machine(options=options(**changes))  # type: ignore[arg-type]
    machine.start()
    machine.settle()
    return machine


def listing(machine: Machine) -> Listing:
    found: list[Listing | LedgerError] = []
    machine.engine.upkeep.list_ledgers(found.append)
    machine.settle()
    [answer] = found
    assert isinstance(answer, Listing)
    return answer


def test_dropped_ledger_loses_its_runs_and_its_logs() -> None:
    machine = running()
    fill(machine, range(1, 3), range(60))
    [directory] = machine.engine.directories
    before = log_files(directory)
    assert len(before) > 3
    drop(machine, 1, 2)
    assert runs_of(directory) == []
    check_dropped(machine, 1, 2)
    check_counts(machine)
    check_no_leak(machine)
    assert len(log_files(directory)) == 1  # the one that is written to
    [statistics] = machine.engine.upkeep.statistics()
    assert statistics.logs_removed == len(before) - 1
    assert statistics.ledgers_deleted == 2
    assert statistics.phase is Phase.IDLE


def test_other_ledgers_of_a_log_stay() -> None:
    machine = running()
    fill(machine, range(1, 4), range(40))
    drop(machine, 1, 3)
    check_alive(machine, range(2, 3), range(40))
    check_counts(machine)


def test_runs_stay_until_the_tombstone_is_on_disk() -> None:
    machine = running()
    fill(machine, range(1, 2), range(40))
    checkpoint(machine)
    [directory] = machine.engine.directories
    fault = machine.files.fail("write", path="*/mark", times=None)
    machine.engine.drop([1], 0)
    machine.settle()
    assert runs_of(directory)
    fault.clear()
    machine.engine.tick()
    machine.settle()
    assert not runs_of(directory)


def test_adds_to_a_dropped_ledger_are_refused_and_recovery_adds_are_not() -> None:
    machine = running()
    fill(machine, range(1, 2), range(5))
    drop(machine, 1)
    assert machine.add(1, [(5, b"zombie")], None) == [Status.FENCED]
    assert machine.add(1, [(5, b"repair")], None, flags=RECOVERY) == [Status.OK]
    assert machine.read(1, 5) == b"repair"
    machine.settle()
    machine.crash()
    machine.start()
    assert machine.read(1, 5) == b"repair"
    check_counts(machine)


@pytest.mark.parametrize("restarts", [False, True])
def test_fence_stays_with_a_ledger_that_is_dropped_and_brought_back(restarts: bool) -> None:
    """Else a writer that was fenced would come back with the repair (seed 68879)."""
    machine = running()
    fill(machine, range(1, 2), range(5))
    machine.engine.fence(1, KEY, "fenced")
    machine.settle()
    drop(machine, 1)
    assert machine.add(1, [(5, b"repair")], None, flags=RECOVERY) == [Status.OK]
    machine.settle()
    if restarts:
        machine.crash()
        machine.start()
    assert machine.add(1, [(6, b"zombie")], None) == [Status.FENCED]
    assert machine.add(1, [(6, b"repair")], None, flags=RECOVERY) == [Status.OK]


@pytest.mark.parametrize("steps", range(0, 60, 2))
def test_repair_of_a_dropped_ledger_survives_its_deletion(steps: int) -> None:
    """The repair begins at every moment of the deletion; then a crash, and all goes on."""
    machine = Machine(steps, options=options())
    machine.start()
    machine.settle()
    fill(machine, range(1, 3), range(30))
    machine.engine.drop([1], 0)
    machine.step(steps)
    repaired = [(n, payload(1, n)) for n in range(30)]
    assert set(machine.add(1, repaired, "repaired", flags=RECOVERY)) == {Status.OK}
    machine.settle()
    assert "repaired" in machine.durable
    checkpoint(machine)
    check_alive(machine, range(1, 3), range(30))
    machine.crash(power=steps % 4 == 0)
    machine.start()
    machine.settle()
    machine.engine.resume_drop([1, 2])  # a collector in error: there is nothing to resume
    machine.settle()
    check_alive(machine, range(1, 3), range(30))
    check_counts(machine)


def test_deletion_ends_when_the_ledger_is_brought_back() -> None:
    machine = running()
    fill(machine, range(1, 2), range(10))
    machine.engine.drop([1], 0)
    tombstone = machine.engine.ledger(1).tombstone
    assert tombstone is not None
    while not machine.engine.upkeep._waiting:
        assert machine.workers.step()
    machine.add(1, [(3, payload(1, 3))], None, flags=RECOVERY)
    checkpoint(machine)
    [directory] = machine.engine.directories
    newer = [run.sequence > tombstone.sequence for run in runs_of(directory)]
    assert newer.count(True) == 1
    assert newer.count(False) > 0, "whoever sees an old entry now must not lose it"
    check_alive(machine, range(1, 2), range(10))


def test_unfinished_deletion_is_listed_after_a_restart_and_goes_on_when_told_to() -> None:
    machine = running()
    fill(machine, range(1, 4), range(40))
    checkpoint(machine)
    machine.engine.upkeep.garbage[0].delete = lambda ledger_id, sequence: None  # type: ignore[method-assign]
    drop(machine, 1)
    machine.crash()
    machine.start()
    machine.settle()
    [directory] = machine.engine.directories
    check_dropped(machine, 1)
    assert listing(machine) == Listing([2, 3], [1], [])
    assert any(run.ledger_id == 1 for run in runs_of(directory)), "nobody has confirmed it yet"
    machine.engine.resume_drop([1, 2])
    machine.settle()
    assert not any(run.ledger_id == 1 for run in runs_of(directory))
    assert listing(machine) == Listing([2, 3], [], [])
    check_alive(machine, range(2, 4), range(40))
    check_counts(machine)


def test_deletion_takes_runs_of_its_sequence_and_older_ones_only() -> None:
    """What a repair writes has a higher sequence, and survives whatever order things take."""
    machine = running()
    fill(machine, range(1, 2), range(20))
    checkpoint(machine)
    [directory] = machine.engine.directories
    sequence = directory.mark.checkpoint
    fill(machine, range(1, 2), range(20, 40))
    checkpoint(machine)
    machine.engine.upkeep.resume([Drop(1, 0, sequence)])
    machine.settle()
    left = runs_of(directory)
    assert left
    assert all(run.sequence > sequence for run in left)
    assert [machine.read(1, n) for n in (0, 19)] == [Status.NO_ENTRY] * 2
    check_alive(machine, range(1, 2), range(20, 40))
    check_counts(machine)


def test_resumed_deletion_spares_what_this_life_has_written() -> None:
    """A tombstone may reach the disk ahead of the checkpoint that it names; that number then
    belongs to a generation of the next life."""
    machine = running()
    fill(machine, range(1, 2), range(3))
    drop(machine, 1)
    machine.crash()
    machine.start()
    first = machine.engine.directories[0].mark.checkpoint + 1
    machine.settle()
    ledger = machine.engine.ledger(1)
    assert ledger.tombstone is not None
    ledger.tombstone = ledger.tombstone._replace(sequence=first)
    resumed: list[Drop] = []
    machine.engine.upkeep.resume = resumed.extend  # type: ignore[method-assign, assignment]
    machine.engine.resume_drop([1])
    assert resumed == [Drop(1, 0, first - 1)]


def test_replay_does_not_undo_a_drop() -> None:
    """The record that brought the ledger back stands in the block at which replay begins."""
    machine = running()
    fill(machine, range(1, 2), range(3))
    drop(machine, 1)
    machine.add(1, [(0, payload(1, 0))], None, flags=RECOVERY)
    machine.engine.drop([1], 0)
    machine.settle()
    machine.crash(power=False)
    machine.start()
    check_dropped(machine, 1)


def test_log_that_rolls_within_a_checkpoint_is_not_taken_for_dead() -> None:
    """Its runs have no keys yet when the garbage thread looks, in the middle of the checkpoint."""
    given = options()
    engine = replace(given.engine, generation_bytes=100 * 1024, write_cache_bytes=1 << 20)
    machine = Machine(options=replace(given, engine=engine))
    machine.start()
    machine.settle()
    [index] = machine.opened.values()
    [garbage] = machine.engine.upkeep.garbage
    apply = index.apply
    inside = False

    def meddling(piece: Sequence[Change]) -> None:
        nonlocal inside
        if not inside:
            inside = True
            garbage.remove_dead_logs()
            garbage.compact(Kind.MAJOR)
            while garbage.step():
                pass
            inside = False
        apply(piece)

    index.apply = meddling  # type: ignore[method-assign]
    fill(machine, range(1, 3), range(120))
    checkpoint(machine)
    assert len(log_files(garbage.directory)) > 3
    check_alive(machine, range(1, 3), range(120))
    check_counts(machine)


def test_log_whose_count_is_wrong_is_kept_by_its_keys() -> None:
    machine = running()
    fill(machine, range(1, 2), range(60))
    checkpoint(machine)
    [directory] = machine.engine.directories
    log_id = directory.table.uses()[0].log_id
    size = directory.table.live_bytes(log_id)
    directory.table.apply([(b"Stest", b"", {log_id: -size})])
    collect(machine)
    assert log_id in log_files(directory)
    check_alive(machine, range(1, 2), range(60))


def test_log_with_an_unreadable_header_is_kept_by_its_keys() -> None:
    machine = running()
    fill(machine, range(1, 2), range(60))
    checkpoint(machine)
    [directory] = machine.engine.directories
    log_id = directory.table.uses()[0].log_id
    directory.table.apply([(b"Stest", b"", {log_id: -directory.table.live_bytes(log_id)})])
    machine.files.flip(f"{directory.path}/{log_id:08x}.log", 4100, 0xFF)
    collect(machine)
    assert log_id in log_files(directory)
    machine.files.flip(f"{directory.path}/{log_id:08x}.log", 4100, 0xFF)
    check_alive(machine, range(1, 2), range(60))


def test_open_log_is_never_removed() -> None:
    machine = running()
    fill(machine, range(1, 2), range(3))
    checkpoint(machine)
    drop(machine, 1)
    [directory] = machine.engine.directories
    [log_id] = log_files(directory)
    log = directory.table.get(log_id)
    assert log is not None
    assert log.state is LogState.OPEN
    fill(machine, range(2, 3), range(3))
    checkpoint(machine)
    assert log_files(directory) == [log_id]
    check_alive(machine, range(2, 3), range(3))


def test_tombstone_is_forgotten_after_a_week_and_not_before() -> None:
    machine = running()
    fill(machine, range(1, 3), range(3))
    drop(machine, 1)
    checkpoint(machine)
    machine.now += WEEK - 1
    assert listing(machine) == Listing([2], [], [])
    assert machine.add(1, [(0, b"zombie")], None) == [Status.FENCED]
    machine.now += 2
    assert listing(machine) == Listing([2], [], [1])
    checkpoint(machine)
    [directory] = machine.engine.directories
    assert directory.index.ledger_state(1) is None
    assert listing(machine) == Listing([2], [], [])
    assert machine.add(1, [(0, b"new")], None) == [Status.OK]
    machine.settle()
    machine.crash()
    machine.start()
    assert machine.read(1, 0) == b"new"


def test_tombstone_of_a_ledger_that_came_back_is_not_forgotten_by_an_old_listing() -> None:
    machine = running()
    fill(machine, range(1, 2), range(3))
    drop(machine, 1)
    checkpoint(machine)
    machine.now += WEEK + 1
    machine.add(1, [(0, payload(1, 0))], None, flags=RECOVERY)
    machine.engine.forget([1], machine.now * 1000)
    checkpoint(machine)
    machine.crash()
    machine.start()
    assert machine.read(1, 0) == payload(1, 0)


def test_tombstone_stays_while_the_journal_may_be_replayed_past_it() -> None:
    machine = running()
    fill(machine, range(1, 2), range(3))
    drop(machine, 1)
    machine.now += WEEK + 1
    assert listing(machine).forgettable == []
    checkpoint(machine)
    assert listing(machine).forgettable == [1]


def test_listing_names_the_ledgers_of_all_directories() -> None:
    machine = Machine(options=options(), directories=3)
    machine.start()
    machine.settle()
    fill(machine, range(1, 30), range(1))
    checkpoint(machine)
    assert listing(machine).living == list(range(1, 30))


def test_listing_says_when_the_index_fails() -> None:
    machine = running()
    fill(machine, range(1, 3), range(3))
    found: list[Listing | LedgerError] = []
    [directory] = machine.engine.directories

    def broken() -> object:
        raise LedgerError("unreadable")

    directory.index.ledger_states = broken  # type: ignore[assignment, method-assign]
    machine.engine.upkeep.list_ledgers(found.append)
    machine.settle()
    assert isinstance(found[0], LedgerError)


def test_failing_index_is_reopened_by_the_flush_and_deletion_goes_on() -> None:
    machine = running()
    fill(machine, range(1, 3), range(40))
    checkpoint(machine)
    [directory] = machine.engine.directories
    [index] = machine.opened.values()
    machine.engine.drop([1], 0)
    while not machine.engine.upkeep.garbage[0]._drops:
        assert machine.workers.step()
    index.fails = True
    machine.settle()
    for _ in range(3):
        machine.engine.tick()
        machine.settle()
    assert not any(run.ledger_id == 1 for run in runs_of(directory))
    check_alive(machine, range(2, 3), range(40))
    check_counts(machine)


def test_busy_index_does_not_make_counts_wrong() -> None:
    machine = running()
    fill(machine, range(1, 400), range(1))
    [index] = machine.opened.values()
    apply = index.apply
    calls = 0

    def busy(piece: Sequence[Change]) -> None:
        nonlocal calls
        calls += 1
        index.stalls = calls % 2
        apply(piece)

    index.apply = busy  # type: ignore[method-assign]
    fill(machine, range(1, 400), range(1, 4))
    machine.engine.drop(range(1, 200), 0)
    machine.settle()
    check_counts(machine)


def test_pieces_are_bounded_and_never_part_an_old_key_from_its_new_one() -> None:
    machine = running()
    [directory] = machine.engine.directories
    table = LogTable(directory.index, sleep=lambda seconds: None)
    pieces: list[list[Change]] = []
    apply = directory.index.apply

    def noting(piece: Sequence[Change]) -> None:
        pieces.append(list(piece))
        apply(piece)

    directory.index.apply = noting  # type: ignore[method-assign]
    table.apply((f"S{n}".encode(), b"x", {}) for n in range(2500))
    full, rest = divmod(2500, PIECE_CHANGES)
    assert list(map(len, pieces)) == [PIECE_CHANGES] * full + [rest]
    pieces.clear()
    table.move(Move(f"S{n}".encode(), f"T{n}".encode(), b"x", {1: -1, 2: 1}) for n in range(2500))
    assert len(pieces) > 5
    for piece in pieces:
        assert len(piece) <= PIECE_CHANGES
        old, new = ({key[1:] for key, _ in piece if key[:1] == kind} for kind in (b"S", b"T"))
        assert old == new


def is_cut(machine: Machine) -> bool:
    """Let the workers go on until the power is cut, if it is."""
    try:
        machine.settle()
    except PowerCut:
        return True
    return False


@pytest.mark.parametrize("power", [True, False])
def test_crash_at_any_moment_of_a_deletion_is_harmless(power: bool) -> None:
    after, cut = 0, True
    while cut:
        machine = Machine(after, options=options())
        machine.start()
        machine.settle()
        fill(machine, range(1, 5), range(20))
        fill(machine, range(5, 6), range(80))
        machine.engine.drop([1, 3, 5], 0)
        machine.cut_after(after)
        cut = is_cut(machine)
        machine.crash(power=power)
        machine.start()
        machine.settle()
        check_alive(machine, range(2, 5, 2), range(20))
        check_counts(machine)
        found = listing(machine)
        machine.engine.resume_drop(found.unfinished)
        machine.engine.drop([ledger for ledger in (1, 3, 5) if ledger in found.living], 0)
        machine.settle()
        collect(machine)
        check_dropped(machine, 1, 3, 5)
        check_alive(machine, range(2, 5, 2), range(20))
        check_counts(machine)
        check_no_leak(machine)
        [directory] = machine.engine.directories
        assert {run.ledger_id for run in runs_of(directory)} == {2, 4}
        after += 1
    assert after > 40, "the history has become too short to say anything"


def test_garbage_options_are_those_of_the_manual() -> None:
    defaults = GarbageOptions()
    assert defaults.compaction_bytes_per_second == 32 << 20
    assert (defaults.rules.minor_threshold, defaults.rules.major_threshold) == (0.2, 0.5)
    assert defaults.tombstone_seconds == WEEK
