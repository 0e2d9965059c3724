"""The transcript in the README: run as it stands, its output compared in shape."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.quire.commands import ENVIRONMENT, PATIENCE_SECONDS, ROOT

_README = (ROOT / "README.md").read_text()


def transcript() -> list[tuple[str, list[str]]]:
    """Commands, each with what it says."""
    (block,) = re.findall(r"^```console\n(.*?)^```$", _README, re.MULTILINE | re.DOTALL)
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty folder to work in; a cluster that is left there is stopped."""
    yield tmp_path
    if (tmp_path / "quire-data" / "cluster.json").exists():
        _run("quire down", tmp_path)


def test_newcomer_sees_what_the_readme_shows(place: Path) -> None:
    for command, wanted in transcript():
        done = _run(command, place)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert _shape(done.stdout.splitlines()) == _shape(wanted), command


def test_readme_opens_with_the_two_commands_and_names_pages_that_exist() -> None:
    assert _README.index("make demo") < _README.index("make test") < _README.index("Quire is")
    pages = re.findall(r"\]\(([\w./-]+)\)", _README)
    assert len(pages) > 10
    assert not [page for page in pages if not (ROOT / page).exists()]


def _run(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
    return subprocess.run(
        ["bash", "-c", command], cwd=place, env={**ENVIRONMENT, "PATH": path},
        capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip


def _shape(lines: list[str]) -> list[str]:
    """Without addresses, process ids, paths and the widths of columns.

    Payloads are compared as they are: they come from the commands, not from the machine.
    """
    found = []
    for line in lines:
        text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", line)
        text = re.sub(r"/[^\s\"]*(?=quire-data)", "FOLDER/", text)
        text = re.sub(r"(\"pid\": )\d+|(?<=ADDRESS) +\d+", r"\1PID", text)
        text = text.replace("ended, still registered", "ended")
        text = " ".join(re.sub(r"─+", "", text).split())
        if text:
            found.append(text)
    return found
