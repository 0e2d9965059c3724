"""Settings of the whole process, seen from inside a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ASK = """
import os
from runtime.process import yield_processors
yield_processors({niceness})
yield_processors(1)  # never back to a better one
group = open("/proc/self/autogroup").read() if os.path.exists("/proc/self/autogroup") else ""
print(os.getpriority(os.PRIO_PROCESS, 0), group)
"""


def ask(niceness: int, *, own_session: bool) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", _ASK.format(niceness=niceness)],
        cwd=ROOT, capture_output=True, text=True, check=True, start_new_session=own_session,
    )  # fmt: skip
    priority, _, group = done.stdout.partition(" ")
    return int(priority), group.strip()


@pytest.mark.parametrize("own_session", [False, True])
def test_background_process_lets_others_go_first(own_session: bool) -> None:
    priority, group = ask(15, own_session=own_session)
    assert priority == 15
    if own_session and "nice" in group:
        assert group.endswith("nice 15")


def test_session_of_somebody_else_is_left_alone() -> None:
    path = Path("/proc/self/autogroup")
    before = path.read_text() if path.exists() else ""
    ask(15, own_session=False)
    assert (path.read_text() if path.exists() else "") == before
