"""Autorecovery as processes of their own, on real bookies and a real ZooKeeper."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bookie_server.live import ROOT, START_SECONDS, Process


def write_recovery_conf(folder: Path, uri: str, name: str, **changes: object) -> Path:
    settings: dict[str, object] = {
        "metadataServiceUri": uri,
        "bookieId": name,
        "zkTimeout": 4000,
        "openLedgerRereplicationGracePeriod": 1000,
        "auditorPeriodicCheckInterval": 0,
    }
    settings |= changes
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m autorecovery` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "autorecovery", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=START_SECONDS,
    )  # fmt: skip


@contextmanager
def recovery_process(conf: Path) -> Iterator[Process]:
    """Start autorecovery and wait until it is ready; killed at the end if it still runs."""
    log = conf.with_suffix(".log")
    reading, writing = os.pipe()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "autorecovery", "--conf", str(conf), "--ready-fd", str(writing)],
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
