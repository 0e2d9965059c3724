"""Rebuilding an index from the entry logs: all entries back, nothing taken on trust."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bookie.storage.consistency import check_directory
from bookie.storage.entry_log_format import Footer, RunHeader
from bookie.storage.entry_log_inspect import entry_logs, inspect_log_header, inspect_runs
from bookie.storage.index_format import REBUILT_KEY
from bookie.storage.index_interface import DamagedIndexError
from bookie.storage.journal_chain import find_chain
from bookie.storage.journal_files import journal_file_ids
from bookie.storage.rebuild import RebuildReport, rebuild_index
from bookie.storage.store_files import StoreError
from tests.bookie.disk_machine import DiskMachine
from tests.bookie.machine import KEY, Machine
from wire.errors import Status
from wire.types import Flag

OTHER_KEY = b"another ledger's key"


def _fill(machine: Machine) -> None:
    """Several logs of several ledgers, with gaps, batches, copies, a fence and explicit LACs."""
    machine.start()
    for ledger_id in (1, 2, 3):
        for first in range(0, 500, 50):
            ids = range(first, first + 50, ledger_id)
            machine.add(ledger_id, [(n, _payload(ledger_id, n)) for n in ids], "a")
        ids = range(490, 540)
        machine.add_batch(ledger_id, [(n, _payload(ledger_id, n)) for n in ids], "b")
    machine.settle()
    machine.engine.fence(2, KEY, "c")
    machine.engine.write_lac(3, KEY, bytes(8) + (77).to_bytes(8, "big"), "d")
    machine.engine.checkpoint()
    machine.settle()


def _payload(ledger_id: int, entry_id: int) -> bytes:
    return b"%d/%d " % (ledger_id, entry_id) * (entry_id % 7)


def _ids(ledger_id: int) -> list[int]:
    return sorted({*range(490, 540), *(n for f in range(0, 500, 50)
                                       for n in range(f, f + 50, ledger_id))})  # fmt: skip


def _rebuild(machine: Machine, number: int = 0, *, dry_run: bool = False) -> RebuildReport:
    memory = not isinstance(machine, DiskMachine)
    return rebuild_index(
        machine.files,
        machine.journal_paths,
        machine.ledger_paths,
        number,
        open_index=machine._open_index,
        rename_index=machine.indexes.rename if memory else None,
        dry_run=dry_run,
    )


def _destroy(machine: Machine, number: int = 0) -> None:
    path = f"{machine.ledger_paths[number]}/current/index"
    if not isinstance(machine, DiskMachine):
        machine.indexes.rename(path, f"/destroyed/{number}")
        return
    for name in os.listdir(path):
        if name.startswith("MANIFEST") or name.endswith(".sst"):
            with open(os.path.join(path, name), "r+b") as file:
                file.write(os.urandom(64))
    with pytest.raises(DamagedIndexError):
        machine.start()


def _expect_all(machine: Machine) -> None:
    for ledger_id in (1, 2, 3):
        for entry_id in _ids(ledger_id):
            assert machine.read(ledger_id, entry_id) == _payload(ledger_id, entry_id)
        assert machine.read(ledger_id, 20_000) is Status.UNKNOWN_LEDGER_STATE
        ledger = machine.engine.ledger(ledger_id)
        assert ledger.fenced
        assert ledger.limbo
        assert ledger.master_key == KEY


def _store_id(machine: Machine) -> bytes:
    _, path = entry_logs(machine.files, f"{machine.ledger_paths[0]}/current")[0]
    return inspect_log_header(machine.files, path).store_id


@pytest.fixture(params=["memory", "disk"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(seed=4) if request.param == "memory" else DiskMachine(tmp_path)


def test_rebuilt_index_finds_every_checkpointed_entry_and_trusts_no_absence(
    machine: Machine,
) -> None:
    _fill(machine)
    machine.stop()
    _destroy(machine)
    report = _rebuild(machine)
    assert report.problems == []
    assert report.ledgers == 3
    assert report.keyless_ledgers == 0
    machine.start()
    assert machine.store is not None
    assert machine.store.needs_integrity_check
    _expect_all(machine)
    assert machine.add(1, [(10_000, b"new")], "e") == [Status.FENCED]
    recovery = Flag.RECOVERY_ADD
    assert machine.add(1, [(10_000, b"new")], "f", flags=recovery) == [Status.OK]
    assert machine.add(1, [(1, b"")], "g", key=OTHER_KEY, flags=recovery) == [Status.UNAUTHORIZED]
    machine.settle()
    assert machine.durable[-1] == "f"
    machine.stop()
    machine.start()
    _expect_all(machine)
    assert machine.read(1, 10_000) == b"new"


def test_rebuilt_index_agrees_with_the_logs_to_the_byte(machine: Machine) -> None:
    _fill(machine)
    machine.stop()
    _destroy(machine)
    report = _rebuild(machine)
    path = f"{machine.ledger_paths[0]}/current"
    machine.start()
    assert machine.store is not None
    index = machine.engine.directories[0].index
    assert not index.get(REBUILT_KEY)
    checked = check_directory(
        machine.files, path, index, store_id=machine.store.store_files.store_id
    )
    assert checked.is_consistent, checked.problems
    assert checked.dead_runs == 0
    assert checked.runs >= report.runs > 10
    assert report.logs > 2


def test_old_index_is_kept_under_another_name(tmp_path: Path) -> None:
    machine = DiskMachine(tmp_path)
    _fill(machine)
    machine.stop()
    current = tmp_path / "ledgers0" / "current"
    for number in (1, 2):
        before = sorted(os.listdir(current / "index"))
        report = _rebuild(machine)
        assert report.set_aside == [str(current / f"index.old-{number}")]
        assert sorted(os.listdir(current / f"index.old-{number}")) == before
    machine.start()
    _expect_all(machine)
    machine.stop()


def test_missing_index_directory_is_rebuilt_too(tmp_path: Path) -> None:
    machine = DiskMachine(tmp_path)
    _fill(machine)
    machine.stop()
    shutil.rmtree(tmp_path / "ledgers0" / "current" / "index")
    assert _rebuild(machine).set_aside == []
    machine.start()
    _expect_all(machine)
    machine.stop()


def test_dry_run_tells_the_same_and_changes_nothing(tmp_path: Path) -> None:
    machine = DiskMachine(tmp_path)
    _fill(machine)
    machine.stop()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    dry = _rebuild(machine, dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    real = _rebuild(machine)
    dry.set_aside = real.set_aside
    assert dry == real


def test_rebuilt_states_are_fenced_and_in_limbo_before_any_start() -> None:
    machine = Machine(seed=2)
    _fill(machine)
    machine.stop()
    _destroy(machine)
    _rebuild(machine)
    path = "/disk/ledgers0/current/index"
    index = machine.indexes.open(path, store_id=_store_id(machine))
    states = dict(index.ledger_states())
    assert set(states) == {1, 2, 3}
    assert all(state.fenced and state.limbo for state in states.values())
    index.close()


def test_journal_with_a_gap_is_replayed_from_behind_it() -> None:
    """Files that do not lead up to the end are of no use; the rebuild says so."""
    machine = Machine(seed=6)
    machine.start()
    for n in range(120):
        machine.add(1, [(n, b"x" * 1000)], n)
        machine.settle()
    machine.crash()
    ids = journal_file_ids(machine.files, "/disk/journal0/current")
    chain = find_chain(machine.files, "/disk/journal0/current", _store_id(machine))
    assert len(chain.file_ids) >= 2
    assert chain.older_file_ids == ()
    broken = chain.file_ids[0]
    file = machine.files.open(f"/disk/journal0/current/{broken:016x}.jnl")
    file.write(bytes(4), 4096 + 2 * 4096)  # the third page: a block that others follow
    file.sync()
    file.close()
    assert broken in ids
    _destroy(machine)
    report = _rebuild(machine)
    assert report.mark is not None
    assert report.mark.journals[0].file_id == chain.file_ids[1]
    [problem] = report.problems
    assert f"{broken:016x}" in problem
    machine.start()
    assert all(machine.read(1, n) == b"x" * 1000 for n in range(120))


def test_journal_is_replayed_after_a_rebuild_and_its_ledgers_are_in_limbo() -> None:
    """Entries and states that no checkpoint has written come from the journal. Its records of
    before must not lift the limbo, and a ledger that no log knows is in limbo as well."""
    machine = Machine(seed=1)
    _fill(machine)
    machine.engine.set_limbo(1, True, "on")
    machine.engine.set_limbo(1, False, "off")
    machine.add(3, [(600, b"late")], "x")
    machine.add(9, [(0, b"only in the journal")], "y")
    machine.settle()
    assert machine.durable[-1] == "y"
    machine.crash(power=False)
    _destroy(machine)
    _rebuild(machine)
    machine.start()
    assert machine.store is not None
    assert machine.store.replayed.entries > 0
    _expect_all(machine)
    assert machine.read(3, 600) == b"late"
    assert machine.read(9, 0) == b"only in the journal"
    assert machine.read(9, 1) is Status.UNKNOWN_LEDGER_STATE
    assert machine.add(9, [(1, b"")], "z") == [Status.FENCED]
    machine.crash(power=True)
    machine.start()
    _expect_all(machine)
    assert machine.read(9, 0) == b"only in the journal"
    assert machine.read(9, 1) is Status.UNKNOWN_LEDGER_STATE


def test_limbo_can_be_lifted_after_a_rebuild_and_stays_so() -> None:
    machine = Machine(seed=1)
    _fill(machine)
    machine.stop()
    _destroy(machine)
    _rebuild(machine)
    machine.start()
    machine.settle()
    machine.engine.set_limbo(1, False, "checked")
    machine.settle()
    machine.crash()
    machine.start()
    assert machine.read(1, 10_000) is Status.NO_ENTRY
    assert machine.read(2, 10_000) is Status.UNKNOWN_LEDGER_STATE


def test_journal_is_replayed_from_where_it_still_begins() -> None:
    """The first files of the journal have long been used again; the mark must not ask for them."""
    machine = Machine(seed=6)
    machine.start()
    for n in range(400):
        machine.add(1, [(n, b"x" * 1000)], n)
        machine.settle()
    names = machine.files.list_directory("/disk/journal0/current")
    first = min(int(name[:16], 16) for name in names if name.endswith(".jnl"))
    assert first > 3
    machine.crash()
    _destroy(machine)
    report = _rebuild(machine)
    assert report.mark is not None
    assert report.mark.journals[0].file_id >= first
    assert report.mark.journals[0].block_sequence > 1
    machine.start()
    assert all(machine.read(1, n) == b"x" * 1000 for n in range(400))


def test_logs_without_footers_are_rebuilt_from_their_runs() -> None:
    machine = Machine(seed=2)
    _fill(machine)
    machine.crash()  # the newest log is open
    for _, path in entry_logs(machine.files, "/disk/ledgers0/current")[:-1]:
        [*_, footer] = inspect_runs(machine.files, path)
        assert not isinstance(footer, RunHeader)
        file = machine.files.open(path)
        file.truncate(file.size() - 5)  # a torn tail
        file.sync()
        file.close()
    _destroy(machine)
    report = _rebuild(machine)
    machine.start()
    for ledger_id in (1, 2, 3):
        for entry_id in _ids(ledger_id):
            assert machine.read(ledger_id, entry_id) == _payload(ledger_id, entry_id)
    assert report.problems == []
    assert report.keyless_ledgers == 3
    for _, path in entry_logs(machine.files, "/disk/ledgers0/current")[: report.logs]:
        [*_, footer] = inspect_runs(machine.files, path)
        assert isinstance(footer, Footer), "the start has written it"


def test_log_that_ends_within_a_run_is_reported_and_not_cut_off() -> None:
    machine = Machine(seed=2)
    _fill(machine)
    machine.crash()
    _, path = entry_logs(machine.files, "/disk/ledgers0/current")[0]
    runs = [run for run in inspect_runs(machine.files, path) if isinstance(run, RunHeader)]
    file = machine.files.open(path)
    file.write(b"\0\0\0\0", runs[2].offset)
    size = file.size()
    file.close()
    _destroy(machine)
    report = _rebuild(machine)
    [problem] = report.problems
    assert f"{runs[2].offset}.." in problem
    machine.start()
    assert machine.files.open(path, read_only=True).size() == size
    assert machine.read(runs[1].ledger_id, runs[1].first) == _payload(
        runs[1].ledger_id, runs[1].first
    )


def test_damaged_runs_are_skipped_and_reported() -> None:
    machine = Machine(seed=2)
    _fill(machine)
    machine.stop()
    _, path = entry_logs(machine.files, "/disk/ledgers0/current")[0]
    runs = [run for run in inspect_runs(machine.files, path) if isinstance(run, RunHeader)]
    lost = runs[1]
    file = machine.files.open(path)
    file.write(b"\xff", lost.body_offset + 30)
    file.sync()
    file.close()
    _destroy(machine)
    report = _rebuild(machine)
    [problem] = report.problems
    assert f"entries {lost.first}..{lost.last} of ledger {lost.ledger_id}" in problem
    assert path in problem
    machine.start()
    found = machine.read(lost.ledger_id, lost.first)
    assert found in (Status.UNKNOWN_LEDGER_STATE, _payload(lost.ledger_id, lost.first))
    assert machine.read(runs[2].ledger_id, runs[2].first) == _payload(
        runs[2].ledger_id, runs[2].first
    )


def test_file_that_is_no_log_is_set_aside_and_not_deleted() -> None:
    machine = Machine(seed=2)
    _fill(machine)
    machine.stop()
    _, path = entry_logs(machine.files, "/disk/ledgers0/current")[1]
    file = machine.files.open(path)
    file.write(b"garbage!", 0)
    file.close()
    _destroy(machine)
    report = _rebuild(machine)
    assert f"{path}.old-1" in report.set_aside
    assert any("is no entry log" in problem and path in problem for problem in report.problems)
    assert machine.files.exists(f"{path}.old-1")
    assert not machine.files.exists(path)
    machine.start()
    machine.stop()


def test_one_of_two_directories_is_rebuilt_and_the_other_stays_as_it_is(tmp_path: Path) -> None:
    machine = DiskMachine(tmp_path, journals=2, directories=2)
    _fill(machine)
    homes = {ledger_id: machine.engine.ledger(ledger_id).home for ledger_id in range(1, 20)}
    [other] = [n for n in range(4, 20) if homes[n] != homes[1]][:1]
    machine.add(other, [(0, b"there")], "o")
    machine.settle()
    machine.stop()
    _destroy(machine, homes[1])
    _rebuild(machine, homes[1])
    machine.start()
    for ledger_id in (1, 2, 3):
        for entry_id in _ids(ledger_id):
            assert machine.read(ledger_id, entry_id) == _payload(ledger_id, entry_id)
    assert machine.read(1, 10_000) is Status.UNKNOWN_LEDGER_STATE
    assert machine.read(other, 0) == b"there"
    assert machine.read(other, 1) is Status.NO_ENTRY
    machine.stop()


def test_rebuild_of_nothing_is_refused(tmp_path: Path) -> None:
    machine = DiskMachine(tmp_path)
    with pytest.raises(StoreError, match="no store to rebuild"):
        _rebuild(machine)


def test_rebuild_of_a_running_bookie_is_refused() -> None:
    machine = Machine()
    _fill(machine)
    with pytest.raises(StoreError, match="in use by another process"):
        _rebuild(machine)


def test_rebuild_is_told_step_by_step() -> None:
    machine = Machine(seed=2)
    _fill(machine)
    machine.stop()
    seen: list[tuple[int, int, int]] = []
    rebuild_index(
        machine.files,
        machine.journal_paths,
        machine.ledger_paths,
        0,
        open_index=machine._open_index,
        dry_run=True,
        on_progress=lambda done, total, runs: seen.append((done, total, runs)),
    )
    total = len(entry_logs(machine.files, "/disk/ledgers0/current"))
    assert [done for done, _, _ in seen] == list(range(1, total + 1))
    assert seen[-1][2] > seen[0][2] > 0
