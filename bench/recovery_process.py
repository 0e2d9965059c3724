"""An autorecovery process of either make, and what can be seen of its work from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peers.jars import NEWEST, ROOT, resolve_jars, write_logging
from bench.peers.java_bookie import DEFAULT_JVM
from bench.peers.process import STOP_SECONDS, cpu_seconds
from runtime.java import find_java
from runtime.local_zookeeper import free_port

_OPEN: Final = (
    *("--add-opens", "java.base/java.io=ALL-UNNAMED"),
    *("-Dio.netty.leakDetectionLevel=disabled", "-Dio.netty.tryReflectionSetAccessible=true"),
)


class AutorecoveryProcess:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"autorecovery has ended: see {self.log}")

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def memory_mib(self) -> float:
        """The most that was resident at any time."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("/proc does not tell VmHWM")


@contextmanager
def autorecovery(
    folder: Path, uri: str, make: str, **settings: object
) -> Iterator[AutorecoveryProcess]:
    """Start it with its default settings; stopped by its process id at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    conf = folder / f"{make}.conf"
    common: dict[str, object] = {
        "metadataServiceUri": uri,
        "bookiePort": free_port(),
        "advertisedAddress": "127.0.0.1",
        "zkTimeout": 10_000,
    }
    if make == "apache":
        common |= {"allowLoopback": "true", "httpServerEnabled": "false"}
        command = [
            str(find_java().path),
            *DEFAULT_JVM,
            *_OPEN,
            write_logging(folder),
            *("-cp", f"{resolve_jars(NEWEST)}/*"),
            *("org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf", str(conf)),
        ]
    else:
        command = [sys.executable, "-m", "autorecovery", "--conf", str(conf)]
    conf.write_text("".join(f"{key}={value}\n" for key, value in (common | settings).items()))
    log = folder / f"{make}-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield AutorecoveryProcess(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
