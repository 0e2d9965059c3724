"""The client refuses to run on somebody else's `wire`, `runtime` or `metadata`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def import_client(first_on_path: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{first_on_path}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, "-c", "import ledger_client"],
        cwd=first_on_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["wire", "runtime", "metadata"])
def test_client_names_the_stranger_it_found(tmp_path: Path, name: str) -> None:
    stranger = tmp_path / f"{name}.py"
    stranger.write_text("")
    result = import_client(tmp_path)
    assert result.returncode != 0
    assert f"`{name}`" in result.stderr
    assert str(stranger) in result.stderr


def test_client_loads_beside_its_own_siblings(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert import_client(tmp_path / "empty").returncode == 0
