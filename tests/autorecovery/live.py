"""Autorecovery as processes of their own, on real bookies and a real ZooKeeper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bookie_server.live import ROOT, START_SECONDS, Process, daemon_process


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
    with daemon_process("autorecovery", conf, conf.with_suffix(".log")) as process:
        yield process
