"""Formats on disk: what older releases left is read, what newer ones left is refused in one line.

`formats/<version>/` keeps a store of every released format and a list of what it must hold.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from bookie.storage.consistency import check_directory
from bookie.storage.index import open_index
from bookie.storage.index_format import FORMAT_KEY
from bookie.storage.store_files import STAMP_NAME, decode_stamp
from tests.bookie.disk_machine import DiskMachine
from tests.bookie.formats.generate import HERE, MANIFEST, ODD_KEY, PACKED, lac_body, payload_of
from tests.bookie.machine import KEY
from wire.errors import LedgerError, Status

KEPT = sorted(path.name for path in HERE.iterdir() if (path / PACKED).exists())
V1 = "v1"


def _unpack(name: str, target: Path) -> DiskMachine:
    with tarfile.open(HERE / name / PACKED) as packed:
        packed.extractall(target, filter="data")
    return DiskMachine(target)


def _manifest(name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((HERE / name / MANIFEST).read_text())
    return manifest


def _expect(machine: DiskMachine, manifest: dict[str, Any]) -> None:
    for text, wanted in manifest.items():
        ledger_id = int(text)
        absent = Status.NO_ENTRY
        if wanted.get("limbo"):
            absent = Status.UNKNOWN_LEDGER_STATE
        elif wanted.get("dropped"):
            absent = Status.NO_LEDGER
        ids = {n for first, last, step in wanted["entries"] for n in range(first, last + 1, step)}
        for entry_id in range(300):
            here = payload_of(ledger_id, entry_id) if entry_id in ids else absent
            assert machine.read(ledger_id, entry_id) == here, (ledger_id, entry_id)
        ledger = machine.engine.ledger(ledger_id)
        assert ledger.fenced == wanted.get("fenced", False)
        assert ledger.limbo == wanted.get("limbo", False)
        assert (ledger.tombstone is not None) == wanted.get("dropped", False)
        lac = wanted.get("lac")
        assert ledger.explicit_lac == (None if lac is None else lac_body(ledger_id, lac))
        if ids:
            assert ledger.master_key == (ODD_KEY if wanted.get("odd_key") else KEY)


@pytest.mark.parametrize("name", KEPT)
def test_store_of_a_released_format_is_read_and_written(name: str, tmp_path: Path) -> None:
    machine = _unpack(name, tmp_path)
    manifest = _manifest(name)
    machine.start()
    assert machine.store is not None
    assert machine.store.replayed.entries > 0, "part of it is in the journal alone"
    _expect(machine, manifest)
    assert machine.add(1, [(220, payload_of(1, 220))], "more") == [Status.OK]
    assert machine.add(2, [(1, b"")], "fenced") == [Status.FENCED]
    assert machine.add(6, [(1, b"")], "dropped") == [Status.FENCED]
    machine.settle()
    manifest["1"]["entries"] = [[0, 220, 1]]
    machine.stop()
    machine.start()
    _expect(machine, manifest)
    index = machine.engine.directories[0].index
    store_id = machine.store.store_files.store_id
    report = check_directory(
        machine.files, f"{machine.ledger_paths[0]}/current", index, store_id=store_id
    )
    assert report.is_consistent, report.problems
    machine.stop()


def test_kept_stores_are_there_and_small() -> None:
    assert KEPT == [V1]
    assert all((HERE / name / PACKED).stat().st_size < 100_000 for name in KEPT)


# What a newer release would leave: the version raised, the checksum right again.


def _raise_version(path: Path, at: int, *, crc_at: int | None, size: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + 2] = (9).to_bytes(2, "big")
    if crc_at is not None:
        data[crc_at : crc_at + 4] = crc32c(bytes(data[size:crc_at])).to_bytes(4, "big")
    path.write_bytes(data)


def _newest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern))


def _newer_journal(path: Path) -> Path:
    file = _newest(path, "journal0/current/*.jnl")
    _raise_version(file, 8, crc_at=4092)
    return file


def _newer_log(path: Path) -> Path:
    file = _newest(path, "ledgers0/current/*.log")
    _raise_version(file, 8, crc_at=4092)
    return file


def _newer_mark(path: Path) -> Path:
    file = path / "ledgers0/current/mark"
    _raise_version(file, 8, crc_at=4092)
    _raise_version(file, 4096 + 8, crc_at=4096 + 4092, size=4096)
    return file


def _newer_stamp(path: Path) -> Path:
    file = path / "ledgers0/current" / STAMP_NAME
    _raise_version(file, 8, crc_at=32)
    return file


def _newer_index(path: Path) -> Path:
    stamp = path / "ledgers0/current" / STAMP_NAME
    store_id = decode_stamp(stamp.read_bytes(), str(stamp)).store_id
    folder = path / "ledgers0/current/index"
    index = open_index(str(folder), store_id=store_id)
    index.apply([(FORMAT_KEY, (9).to_bytes(2, "big"))])
    index.flush()
    index.close()
    return folder


@pytest.mark.parametrize(
    "change", [_newer_journal, _newer_log, _newer_mark, _newer_stamp, _newer_index]
)
@pytest.mark.parametrize("clean", [False, True])
def test_newer_format_is_refused_in_one_line(
    change: Callable[[Path], Path], clean: bool, tmp_path: Path
) -> None:
    machine = _unpack(V1, tmp_path)
    if clean:
        machine.start()
        machine.add(1, [(220, payload_of(1, 220))], "more")
        machine.stop()
    path = change(tmp_path)
    with pytest.raises(LedgerError) as caught:
        machine.start()
    message = str(caught.value)
    assert str(path) in message
    assert "9" in message
    assert "start the release that wrote it" in message
    assert "\n" not in message


# A second store, whose files get among those of the first.

_FOREIGN = {
    "journal": "journal0/current/0000000000000004.jnl",
    "log": "ledgers0/current/00000002.log",
    "stamp": f"ledgers0/current/{STAMP_NAME}",
    "index": "ledgers0/current/index",
}


@pytest.mark.parametrize("kind", _FOREIGN)
def test_file_of_another_store_is_refused(kind: str, tmp_path: Path) -> None:
    machine = _unpack(V1, tmp_path / "ours")
    other = DiskMachine(tmp_path / "other")
    other.random.seed(99)
    other.start()
    for n in range(5):
        other.add(1, [(n, b"x" * 8000)], n)
        other.settle()
    other.die()
    target = tmp_path / "ours" / _FOREIGN[kind]
    source = tmp_path / "other" / _FOREIGN[kind]
    if not source.exists():  # journal files are numbered on as they are used
        source = _newest(source.parent, f"*{source.suffix}")
        target.unlink()
        target = target.parent / source.name
    if target.is_dir():
        target.rename(tmp_path / "old index")
        source.rename(target)
    else:
        target.write_bytes(source.read_bytes())
    with pytest.raises(LedgerError, match=r"belongs to store|directories of two bookies") as caught:
        machine.start()
    assert str(target.parent if kind == "stamp" else target) in str(caught.value)
    assert "\n" not in str(caught.value)


# Damage: each file kind in turn, cut short or with one bit flipped in its header.


@pytest.mark.parametrize("damage", ["cut", "flipped"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("journal0/current/0000000000000004.jnl", "restore it"),
        (f"journal0/current/{STAMP_NAME}", "put the right one back|restore it"),
        (f"ledgers0/current/{STAMP_NAME}", "put the right one back|restore it"),
        ("ledgers0/current/index/CURRENT", "rebuild the index from the entry logs"),
        ("ledgers0/current/index/MANIFEST-*", "rebuild the index from the entry logs"),
    ],
)
def test_damaged_file_is_named_with_its_remedy(
    name: str, remedy: str, damage: str, tmp_path: Path
) -> None:
    machine = _unpack(V1, tmp_path)
    [path] = tmp_path.glob(name)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: min(len(data) - 5, 1000)])
    else:
        data[12] ^= 0x10
        path.write_bytes(data)
    with pytest.raises(LedgerError, match=remedy) as caught:
        machine.start()
    named = path.parent if path.parent.name == "index" else path
    assert str(named) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_both_mark_slots_damaged_are_named_with_the_remedy(tmp_path: Path) -> None:
    machine = _unpack(V1, tmp_path)
    path = tmp_path / "ledgers0/current/mark"
    path.write_bytes(b"\1" * 8192)
    with pytest.raises(LedgerError, match=r"both mark slots .* are damaged: .* removing the file"):
        machine.start()
    path.unlink()
    machine.start()
    _expect(machine, _manifest(V1))
    machine.stop()


def test_damaged_log_is_reported_and_its_entries_answered_with_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A log is no reason to stay away: the other logs are served, and clients use other bookies."""
    machine = _unpack(V1, tmp_path)
    machine.start()
    for entry_id in (220, 221):  # the journal may still hold the last block
        machine.add(1, [(entry_id, b"in the newest log")], "more")
        machine.settle()
    machine.stop()
    path = _newest(tmp_path, "ledgers0/current/*.log")
    data = bytearray(path.read_bytes())
    data[12] ^= 0x10
    path.write_bytes(data)
    machine.start()
    assert machine.read(1, 220) is Status.IO_ERROR
    assert any(str(path) in record.getMessage() for record in caplog.records)
    assert machine.read(1, 199) == payload_of(1, 199)
    machine.stop()
