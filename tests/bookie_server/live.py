"""A bookie as a process of its own: real sockets, real files, a real ZooKeeper."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 60.0


def write_conf(folder: Path, uri: str, port: int, **changes: object) -> Path:
    """A configuration for a small bookie on loopback."""
    settings: dict[str, object] = {
        "metadataServiceUri": uri,
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        "bookiePort": port,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "journalMaxSizeMB": 8,
        "quire_reserveMb": 0,
        "diskUsageThreshold": 0.999,
        "diskUsageWarnThreshold": 0.999,
        "diskUsageLwmThreshold": 0.999,
        "minUsableSizeForHighPriorityWrites": 0,
        "zkTimeout": 4000,
    }
    settings |= changes
    path = folder / "bk_server.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m bookie` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "bookie", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=START_SECONDS,
    )  # fmt: skip


class Process:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def bookie_process(conf: Path, *, log_name: str = "bookie.log") -> Iterator[Process]:
    """Start a bookie and wait until it is ready; killed at the end if it still runs."""
    with daemon_process("bookie", conf, conf.parent / log_name) as process:
        yield process


@contextmanager
def daemon_process(module: str, conf: Path, log: Path, *arguments: str) -> Iterator[Process]:
    """Start a module as a daemon and wait until it is ready; killed at the end if it still runs."""
    reading, writing = os.pipe()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable, "-m", module, *arguments,
                "--conf", str(conf), "--ready-fd", str(writing),
            ],
            cwd=ROOT, stdout=output, stderr=output, pass_fds=(writing,),
        )  # fmt: skip
    os.close(writing)
    try:
        found, _, _ = select.select([reading], [], [], START_SECONDS)
        said = os.read(reading, 64) if found else b""
        assert said == b"READY\n", log.read_text()
        yield Process(process, log)
    finally:
        os.close(reading)
        if process.poll() is None:
            process.kill()
            process.wait()
