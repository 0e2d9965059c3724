"""Looking at a store from outside: logs, marks, files, one ledger, and the check of it all."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from bookie.storage.consistency import ConsistencyReport, check_directory
from bookie.storage.entry_log_format import Footer, RunHeader
from bookie.storage.entry_log_inspect import (
    EntrySummary,
    entry_logs,
    inspect_entries,
    inspect_log_header,
    inspect_runs,
)
from bookie.storage.entry_log_reader import Gap
from bookie.storage.index_format import log_key
from bookie.storage.indexed_run import mark_damaged
from bookie.storage.store_inspect import (
    FileKind,
    files_on_disk,
    inspect_ledger,
    kind_of,
    last_mark,
    read_slot,
)
from runtime.files import OSFileSystem
from tests.bookie.machine import Machine
from wire.errors import CorruptionError, Status

CURRENT = "/disk/ledgers0/current"
JOURNAL = "/disk/journal0/current"


def _machine() -> Machine:
    """A stopped store of a few logs, with striped entries, batches and copies."""
    machine = Machine(seed=3)
    machine.start()
    for ledger_id in (1, 2, 3):
        for first in range(0, 600, 100):
            ids = range(first, first + 100, ledger_id)
            machine.add(ledger_id, [(n, b"x" * (n % 90)) for n in ids], "a")
        machine.add_batch(ledger_id, [(n, b"y" * 40) for n in range(590, 640)], "b")
    machine.settle()
    machine.stop()
    return machine


def _check(machine: Machine) -> ConsistencyReport:
    machine.start()
    index = machine.engine.directories[0].index
    assert machine.store is not None
    store_id = machine.store.store_files.store_id
    return check_directory(machine.files, CURRENT, index, store_id=store_id)


@pytest.mark.parametrize("ids", [range(20), range(0, 40, 2)])
def test_check_finds_nothing_wrong_with_a_short_batch_of_equal_entries(ids: range) -> None:
    """Such a batch is indexed with the size of each record, where a rebuild would store one."""
    machine = Machine(seed=3)
    machine.start()
    machine.add_batch(1, [(n, b"y" * 40) for n in ids], "b")
    machine.settle()
    machine.stop()
    report = _check(machine)
    assert report.problems == []
    assert (report.runs, report.entries) == (1, 20)


def _flip(machine: Machine, path: str, offset: int) -> None:
    file = machine.files.open(path)
    [byte] = file.read(1, offset)
    file.write(bytes([byte ^ 0x40]), offset)
    file.close()


def _runs(machine: Machine, path: str) -> list[RunHeader]:
    return [run for run in inspect_runs(machine.files, path) if isinstance(run, RunHeader)]


def test_logs_show_header_runs_and_footer() -> None:
    machine = _machine()
    logs = entry_logs(machine.files, CURRENT)
    assert len(logs) > 2
    for log_id, path in logs:
        assert inspect_log_header(machine.files, path).log_id == log_id
        *runs, footer = inspect_runs(machine.files, path)
        assert isinstance(footer, Footer)
        headers = [run for run in runs if isinstance(run, RunHeader)]
        assert len(headers) == len(runs) == sum(t.run_count for t in footer.ledgers.values())
        assert headers[-1].end == footer.end_of_data


def test_log_without_its_tail_shows_a_gap_and_no_footer() -> None:
    machine = _machine()
    _, path = entry_logs(machine.files, CURRENT)[0]
    whole = _runs(machine, path)
    file = machine.files.open(path)
    file.truncate(whole[-1].end - 1)
    file.close()
    *runs, gap = inspect_runs(machine.files, path)
    assert runs == whole[:-1]
    assert isinstance(gap, Gap)
    assert (gap.offset, gap.end) == (whole[-1].offset, whole[-1].end - 1)


def test_entries_of_a_log_can_be_listed_by_ledger_and_id() -> None:
    machine = _machine()
    found: Counter[int] = Counter()
    for _, path in entry_logs(machine.files, CURRENT):
        for entry in inspect_entries(machine.files, path, ledger_id=2):
            assert isinstance(entry, EntrySummary)
            assert entry.ledger_id == 2
            found[entry.entry_id] += 1
        for entry in inspect_entries(machine.files, path, ledger_id=2, entry_id=4):
            assert isinstance(entry, EntrySummary)
            assert (entry.entry_id, entry.entry_bytes, entry.lac) == (4, 32 + 4, -1)
            data = machine.files.open(path, read_only=True).read(36, entry.offset)
            assert data[32:] == b"xxxx"
    assert set(found) == {*range(0, 600, 2), *range(590, 640)}


def test_damaged_run_is_shown_as_an_error_among_its_neighbours() -> None:
    machine = _machine()
    _, path = entry_logs(machine.files, CURRENT)[0]
    whole = _runs(machine, path)
    _flip(machine, path, whole[1].body_offset + 7)
    shown = list(inspect_entries(machine.files, path))
    errors = [entry for entry in shown if isinstance(entry, CorruptionError)]
    assert len(errors) == 1
    assert "CRC of its body" in str(errors[0])
    assert len(shown) - 1 == sum(run.entry_count for run in whole) - whole[1].entry_count


def test_last_mark_tells_index_and_slot() -> None:
    machine = _machine()
    slot = read_slot(machine.files, CURRENT)
    assert slot is not None
    index = machine.indexes.open(f"{CURRENT}/index", store_id=_store_id(machine))
    last = last_mark(machine.files, CURRENT, index)
    index.close()
    assert last.mark is not None
    assert last.slot == slot
    assert last.mark.checkpoint == slot.checkpoint == machine.checkpoints[-1]
    assert last.clean_shutdown
    assert not last.needs_integrity_check
    assert read_slot(machine.files, JOURNAL) is None
    assert not machine.files.exists(f"{JOURNAL}/mark")


def test_files_are_told_by_kind() -> None:
    machine = _machine()
    found = list(files_on_disk(machine.files, [JOURNAL, CURRENT]))
    kinds = Counter(file.kind for file in found)
    assert kinds[FileKind.LOG] == len(entry_logs(machine.files, CURRENT))
    assert kinds[FileKind.JOURNAL] >= 1
    assert kinds[FileKind.STAMP] == kinds[FileKind.LOCK] == 2
    assert kinds[FileKind.MARK] == 1
    assert not kinds[FileKind.OTHER]
    sizes = {file.byte_count for file in found if file.kind is FileKind.JOURNAL}
    assert sizes == {32 * 1024}
    names = {
        "index": FileKind.INDEX, "index.old-1": FileKind.OLD_INDEX, "next-7.tmp": FileKind.SPARE,
        "VERSION": FileKind.COOKIE, "reserve": FileKind.RESERVE, "0000001.log": FileKind.OTHER,
    }  # fmt: skip
    assert {name: kind_of(name) for name in names} == names


def test_size_of_a_directory_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "CURRENT").write_bytes(b"12345")
    [found] = files_on_disk(OSFileSystem(), [str(tmp_path)])
    assert (found.kind, found.byte_count) == (FileKind.INDEX, 5)


def test_ledger_is_described_by_state_runs_and_ranges() -> None:
    machine = _machine()
    index = machine.indexes.open(f"{CURRENT}/index", store_id=_store_id(machine))
    report = inspect_ledger(index, 2)
    assert report.state is not None
    assert not report.state.fenced
    assert report.entries == [*((n, n) for n in range(0, 590, 2)), (590, 639)]
    assert report.entry_count == 295 + 50
    assert sum(run.entry_count for run in report.runs) >= report.entry_count
    assert report.body_bytes == sum(run.body_bytes for run in report.runs)
    assert inspect_ledger(index, 9).state is None
    index.close()


def test_check_finds_nothing_wrong_in_a_sound_store() -> None:
    machine = _machine()
    report = _check(machine)
    assert report.is_consistent, report.problems
    assert report.entries >= 3 * 50 + 600 + 300 + 200
    assert report.dead_runs == report.damaged_runs == 0


def test_check_finds_every_kind_of_damage() -> None:
    """One fault at a time, in a fresh store; each is one problem, named, and nothing else."""
    rng = random.Random(2)
    for fault in ("body", "header", "missing", "live bytes", "value", "log record", "key"):
        machine = _machine()
        logs = entry_logs(machine.files, CURRENT)
        log_id, path = logs[1]
        run = rng.choice(_runs(machine, path)[:-1])
        index = machine.indexes.open(f"{CURRENT}/index", store_id=_store_id(machine))
        [indexed] = [r for r in index.runs() if (r.log_id, r.offset) == (log_id, run.offset)]
        log = dict(index.logs())[log_id]
        if fault == "body":
            _flip(machine, path, run.body_offset + 5)
        elif fault == "header":
            _flip(machine, path, run.offset + 9)
        elif fault == "missing":
            machine.files.remove(path)
        elif fault == "live bytes":
            changed = log._replace(live_bytes=log.live_bytes + 1)
            index.apply([(log_key(log_id), changed.encode())])
        elif fault == "value":
            index.apply([(indexed.key, indexed.value[:20] + b"\1" + indexed.value[21:])])
        elif fault == "log record":
            index.apply([(log_key(log_id), None)])
        else:
            key = indexed.key[:-8] + (indexed.location + 1).to_bytes(8, "big")
            index.apply([(indexed.key, None), (key, indexed.value)])
        report = check_directory(machine.files, CURRENT, index, store_id=_store_id(machine))
        assert len(report.problems) == 1, (fault, report.problems)
        assert f"{log_id:08x}" in report.problems[0]
        assert "\n" not in report.problems[0]
        index.close()


def test_check_counts_flagged_runs_and_dead_ones_and_complains_about_neither() -> None:
    machine = _machine()
    index = machine.indexes.open(f"{CURRENT}/index", store_id=_store_id(machine))
    flagged, dead = list(index.runs())[:2]
    log = dict(index.logs())[dead.log_id]
    lighter = log._replace(live_bytes=log.live_bytes - dead.body_bytes)
    index.apply([
        (flagged.key, mark_damaged(flagged.value)),
        (dead.key, None),
        (log_key(dead.log_id), lighter.encode()),
    ])  # fmt: skip
    report = check_directory(machine.files, CURRENT, index, store_id=_store_id(machine))
    assert report.is_consistent, report.problems
    assert (report.damaged_runs, report.dead_runs) == (1, 1)
    index.close()


def test_store_with_inspected_files_still_starts() -> None:
    machine = _machine()
    list(files_on_disk(machine.files, [JOURNAL, CURRENT]))
    machine.start()
    assert machine.read(1, 3) == b"xxx"
    assert machine.read(1, 1000) is Status.NO_ENTRY


def _store_id(machine: Machine) -> bytes:
    _, path = entry_logs(machine.files, CURRENT)[0]
    return inspect_log_header(machine.files, path).store_id
