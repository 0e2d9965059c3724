"""Spark scans beside the workload: a job now and then that reads closed ledgers."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final

import trio

from ledger_client import LedgerClient
from tests.chaos.cluster import ChaosCluster
from tests.chaos.history import History
from tests.chaos.processes import ROOT, Process
from tests.chaos.writers import PASSWORD
from wire.errors import LedgerError

_EVERY_SECONDS: Final = 150.0
_LEDGERS_MAX: Final = 4  # the newest: old ones may be deleted before Spark has started


class SparkScans:
    """One job at a time, in a process on a host of its own; what it read goes into the history."""

    def __init__(self, cluster: ChaosCluster, folder: Path, *, is_on: bool) -> None:
        self._cluster = cluster
        self._is_on = is_on
        self._next = time.monotonic() + 30.0
        self._job: subprocess.Popen[str] | None = None
        self.done = 0
        if is_on:
            cluster.network.add_host("spark")
            self._folder = folder / "spark"
            self._folder.mkdir(exist_ok=True)
            (self._folder / "password").write_bytes(PASSWORD + b"\n")
            self._history = History(folder / "history", "spark-1")
            self._process = Process("spark", self._folder, cluster.network)

    def look(self) -> None:
        if not self._is_on:
            return
        if self._job is not None:
            if self._job.poll() is not None:
                self._collect()
        elif time.monotonic() >= self._next:
            self._begin()

    def end(self) -> None:
        if self._job is not None:
            try:
                self._job.wait(180.0)
            except subprocess.TimeoutExpired:
                self._job.kill()
            self._collect()

    def _begin(self) -> None:
        self._next = time.monotonic() + _EVERY_SECONDS
        ledgers = trio.run(self._closed)
        if not ledgers:
            return
        credentials = f"file:{self._folder / 'password'}"
        job = ("--uri", self._cluster.uri, "--ledgers", ",".join(map(str, ledgers)))
        command = self._process.python("spark.jobs.count", *job, "--credentials", credentials)
        with (self._folder / "spark.log").open("ab") as log:
            self._job = subprocess.Popen(
                [*self._cluster.network.prefix("spark"), *command],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    async def _closed(self) -> list[int]:
        found = []
        try:
            async with LedgerClient(self._cluster.uri) as client:
                async for ledger_id in client.list():
                    metadata = await client.metadata(ledger_id)
                    if metadata.is_closed and (metadata.last_entry_id or -1) >= 0:
                        found.append(int(ledger_id))
        except LedgerError:
            return []  # deleted meanwhile, or ZooKeeper is away: next time
        return found[-_LEDGERS_MAX:]

    def _collect(self) -> None:
        """A job that failed was struck by a fault, and says so in its log."""
        job, self._job = self._job, None
        assert job is not None
        assert job.stdout is not None
        text = job.stdout.read()
        if job.wait() != 0:
            self._history.note("scan failed")
            return
        self.done += 1
        for line in text.splitlines():
            ledger_id, entries, nbytes, checksum = map(int, line.split())
            facts = {"entries": entries, "nbytes": nbytes, "checksum": checksum}
            self._history.note("scanned", ledger_id, **facts)
