"""The bookie that a benchmark looks at, as a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

START_SECONDS: Final = 120.0


class BookieProcess:
    """The bookie under test, as its operator sees it, and what it tells about itself."""

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket, port: int) -> None:
        self.process = process
        self.port = port
        self._line = line

    @property
    def pid(self) -> int:
        return self.process.pid

    def statistics(self) -> dict[str, float]:
        self._line.send(b"?")
        data = b""
        while not data.endswith(b"\n"):
            chunk = self._line.recv(4096)
            if not chunk:
                raise RuntimeError("the bookie has ended; its log says why")
            data += chunk
        found: dict[str, float] = json.loads(data)
        return found

    def cpu(self) -> dict[str, float]:
        """Seconds by name of thread; threads of one name count together."""
        found: dict[str, float] = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                name = (task / "comm").read_text().strip()
                seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
            except OSError:
                continue  # ended meanwhile
            name = "loop" if int(task.name) == self.pid else name
            found[name] = found.get(name, 0.0) + seconds
        return found

    def memory_mib(self) -> float:
        """The most that was resident at any time."""
        return self._status_mib("VmHWM:")

    def resident_mib(self) -> float:
        return self._status_mib("VmRSS:")

    def _status_mib(self, name: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"/proc does not tell {name}")

    def settle(self) -> None:
        """Until what was added has left the write cache, but for the newest part of it."""
        while self.statistics()["generations_waiting"] > 0:
            time.sleep(0.05)

    def run(self, kind: str, **job: object) -> dict[str, Any]:
        """Run the load generator; what it found, and what that cost the bookie."""
        self.settle()
        before, cpu_before = self.statistics(), self.cpu()
        command = [sys.executable, "-m", "bench.bookie_load", str(self.port)]
        output = subprocess.run(
            [*command, json.dumps({"kind": kind, **job})], check=True, stdout=subprocess.PIPE
        ).stdout
        found: dict[str, Any] = json.loads(output)
        during = self.statistics()
        self.settle()
        cpu_after, after = self.cpu(), self.statistics()
        found["cpu"] = {name: cpu_after[name] - cpu_before.get(name, 0.0) for name in cpu_after}
        found["syncs"] = during["syncs"] - before["syncs"]
        found["journal_bytes"] = during["journal_bytes"] - before["journal_bytes"]
        found["lag_ms"] = max(during["loop_lag_worst_ms"], after["loop_lag_worst_ms"])
        return found


@contextmanager
def bookie_process(conf: Path, port: int) -> Iterator[BookieProcess]:
    ours, theirs = socket.socketpair()
    log = conf.with_suffix(".log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.bookie_process", str(conf), str(theirs.fileno())],
            stdout=output, stderr=output, pass_fds=(theirs.fileno(),),
        )  # fmt: skip
    theirs.close()
    try:
        ours.settimeout(START_SECONDS)
        if ours.recv(6) != b"READY\n":
            raise RuntimeError(f"the bookie did not start:\n{log.read_text()}")
        yield BookieProcess(process, ours, port)
    finally:
        ours.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
