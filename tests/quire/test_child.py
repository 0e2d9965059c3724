"""The two ties between a child and its parent, each on its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quire.processes import (
    Child,
    Lifeline,
    ProcessError,
    Program,
    child_environment,
    module_command,
)
from tests.quire.commands import PATIENCE_SECONDS, ROOT

#: A module of the standard library that runs until it is ended.
WAITING = ("http.server", "--bind", "127.0.0.1", "0")


def test_child_ends_when_the_pipe_to_its_parent_does() -> None:
    """The parent lives, so the kernel's signal cannot be what ends the child."""
    lifeline = Lifeline()
    command = module_command(*WAITING, lifeline=lifeline.reading)
    with subprocess.Popen(
        command, cwd=ROOT, pass_fds=(lifeline.reading,), stderr=subprocess.DEVNULL
    ) as process:
        assert process.poll() is None
        lifeline.close()
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_child_whose_parent_is_gone_already_does_not_start() -> None:
    """Nobody would send the signal any more."""
    with Lifeline() as lifeline:
        command = list(module_command(*WAITING, lifeline=lifeline.reading))
        command[command.index(str(os.getpid()))] = "1"
        done = subprocess.run(command, cwd=ROOT, pass_fds=(lifeline.reading,), timeout=60)
        assert done.returncode == 1


async def test_program_that_ends_instead_of_being_ready_is_quoted(tmp_path: Path) -> None:
    program = Program(name="late", folder=tmp_path, module="quire", arguments=("bookie", "extra"))
    with Lifeline() as lifeline:
        child = Child(program, lifeline)
        with pytest.raises(
            ProcessError, match=r"^late ended: .*extra argument \(extra\)"
        ) as caught:
            await child.wait_ready()
        assert str(tmp_path / "late.log") in str(caught.value)
        child.close()


async def test_program_that_ignores_the_request_to_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(int(sys.argv[2]), b'READY\\n')\ntime.sleep(1000)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = Program(name="stubborn", folder=tmp_path, module="stubborn", arguments=())
    with Lifeline() as lifeline:
        child = Child(program, lifeline)
        await child.wait_ready()
        assert not await child.stop(timeout_seconds=0.1)
        assert child.process.returncode == -signal.SIGKILL
        child.close()


def test_packages_of_this_checkout_are_what_children_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import quire; print(quire.__file__)"],
        cwd=tmp_path, env=dict(child_environment()), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert Path(done.stdout.strip()).parent.parent == ROOT
