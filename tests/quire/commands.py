"""Calling `quire`, inside this process or as one of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.cli import main

ROOT = Path(__file__).parent.parent.parent
#: For a machine with much else to do; nothing here waits so long if all is well.
PATIENCE_SECONDS = 200.0
#: Small bookies: tests need no room for emergencies, and their disk may be full.
ENVIRONMENT = {**os.environ, "BK_quire_reserveMb": "0", "BK_journalMaxSizeMB": "8"}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that a failure must consist of."""
        (line,) = self.err.splitlines()
        assert line.startswith("quire: ")
        assert "Traceback" not in line
        return line

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def quire(*arguments: object) -> Result:
    """A command in this process: everything but signals is as in one of its own."""
    raw, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(map(str, arguments)))
    return Result(code, raw.getvalue().decode(), err.getvalue())


def quire_process(*arguments: object) -> Result:
    done = subprocess.run(
        [sys.executable, "-m", "quire", *map(str, arguments)],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Cluster:
    """A running `quire up`."""

    process: subprocess.Popen[str]
    folder: Path
    record: dict[str, Any]

    @property
    def uri(self) -> str:
        return str(self.record["metadataServiceUri"])

    @property
    def bookies(self) -> list[dict[str, Any]]:
        return list(self.record["bookies"])

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)

    def conf(self, number: int) -> Path:
        return self.folder / f"bookie-{number}" / "bk_server.conf"


@contextmanager
def running_cluster(folder: Path, *arguments: object, **settings: object) -> Iterator[Cluster]:
    """`quire up`, killed at the end if it still runs. Settings go to all of its processes."""
    environment = ENVIRONMENT | {f"BK_{key}": str(value) for key, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "quire", "up", "--dir", str(folder), *map(str, arguments)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield Cluster(process, folder, json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
