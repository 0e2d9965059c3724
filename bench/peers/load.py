"""The two load generators as processes: commands in, figures out."""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.peers.jars import NEWEST, ROOT, compile_java, write_logging
from runtime.java import find_java

_SOURCE: Final = ROOT / "bench" / "java" / "Load.java"
_END_SECONDS: Final = 30.0


class LoadFailedError(Exception):
    """A generator could not do what it was told, or has ended; with the end of its log."""


class LoadProcess(ABC):
    """A context manager; the process ends when its standard input does."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / f"{type(self).__name__}.log"
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """What to run."""

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(self, name: str, **given: object) -> dict[str, float]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = " ".join(f"{key}={value}" for key, value in given.items())
        self._process.stdin.write(f"{name} {words}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            said = self._log.read_text(errors="replace")[-1500:]
            raise LoadFailedError(f"{type(self).__name__} failed at {name} {words}:\n{line}{said}")
        found: dict[str, float] = json.loads(line)
        return found

    def memory_mib(self) -> float:
        """The most that was resident at any time."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        [size] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(size) / 1024


class OurLoad(LoadProcess):
    def _command(self) -> list[str]:
        return [sys.executable, "-m", "bench.peers.our_load"]


class JavaLoad(LoadProcess):
    def _command(self) -> list[str]:
        return [
            str(find_java().path),
            *("-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:-UsePerfData"),
            *("-Dio.netty.leakDetectionLevel=disabled",),
            write_logging(self._folder),
            *("-cp", compile_java(_SOURCE, NEWEST), "Load"),
        ]
