"""The demo, smaller than `make demo` runs it."""

from __future__ import annotations

import os
from pathlib import Path

from quire.demo import STAGES
from tests.quire.commands import quire_process


def test_demo_shows_every_stage_and_leaves_nothing_behind(tmp_path: Path) -> None:
    result = quire_process("demo", "--entries", 1000, "--dir", tmp_path)
    assert result.code == 0, result.err
    for number, stage in enumerate(STAGES, start=1):
        assert f"{number}. {stage.title}" in result.lines
    assert "all as written, none missing, none too many" in result.out
    assert "everything was verified, nothing is left running" in result.lines[-1]
    assert not (tmp_path / "cluster" / "cluster.json").exists()
    assert not _processes_naming(tmp_path)


def _processes_naming(folder: Path) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue  # it has ended meanwhile
        if str(folder) in command:
            found.append(command)
    return found
