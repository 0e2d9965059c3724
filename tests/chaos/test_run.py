"""Short runs with fixed faults: a good build loses nothing, and a broken one is caught.

What is injected is fixed; how long everything takes is not, and decides nothing: bounds are there
against waiting for ever.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.processes import ROOT

PATIENCE_SECONDS = 1500


def chaos(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--dir", str(folder), "--minutes", "0", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip


@pytest.mark.timeout(PATIENCE_SECONDS)
def test_nothing_is_lost_under_fixed_faults(tmp_path: Path) -> None:
    script = "power,cut-client-bookie,torn,kill-leader"
    size = ("--bookies", "4", "--clients", "2")
    done = chaos(tmp_path, "--seed", "5", "--script", script, *size)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["lost"] == 0
    assert figures["confirmed"] > 0
    assert sum(kind["injected"] for kind in figures["kinds"]) == 4


@pytest.mark.timeout(PATIENCE_SECONDS)
def test_a_build_that_acknowledges_before_it_syncs_is_caught(tmp_path: Path) -> None:
    size = ("--bookies", "3", "--clients", "1", "--heal-seconds", "5")
    done = chaos(tmp_path, "--seed", "5", "--broken", "--script", "power", *size)
    assert done.returncode == 1, done.stdout + done.stderr
    # Found, not only out of reach: a ledger that is too short, or a bookie that denies an entry.
    found = r"VIOLATION: (lost: ledger \d+: \d+ was confirmed, it ends at|denied: ledger \d+)"
    assert re.search(found, done.stdout), done.stdout
    assert f"history, logs and disks are in {tmp_path}; seed 5" in done.stdout
    assert list((tmp_path / "history").glob("*.jsonl"))
    assert (tmp_path / "b1" / "b1.log").exists()
