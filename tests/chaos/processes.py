"""One process of a chaos run: started on its host, stopped in every way there is."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.network import Network

ROOT: Final = Path(__file__).parent.parent.parent
HOOKS: Final = Path(__file__).parent / "sources"
START_SECONDS: Final = 240.0
STOP_SECONDS: Final = 60.0
_FAKETIME: Final = (
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/faketime",
    "/usr/lib64/faketime",
)
_LAST_WORDS_BYTES: Final = 4096


def clock_library() -> Path | None:
    """libfaketime, with which the clock of one process can be set; None if not installed."""
    for folder in _FAKETIME:
        found = Path(folder, "libfaketimeMT.so.1")
        if found.exists():
            return found
    return None


class Process:
    """A program that may be started many times, always on the same host and in the same folder."""

    def __init__(self, name: str, folder: Path, network: Network) -> None:
        self.name = name
        self.folder = folder
        self.starts = 0
        self.ended_by_itself: list[str] = []
        self._network = network
        self._popen: subprocess.Popen[bytes] | None = None
        self._is_meant_to_run = False
        self._clock = folder / "clock"
        folder.mkdir(parents=True, exist_ok=True)

    # ------------------------------------------------------------------ life

    @property
    def pid(self) -> int:
        assert self._popen is not None, f"{self.name} was never started"
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._popen is None else self._popen.poll()

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.name}.log"

    def launch(self, command: Sequence[str], *, environment: Mapping[str, str] = {}) -> int:
        """Start it; the descriptor on which a program that was given `{ready}` says READY."""
        assert not self.is_running, f"{self.name} runs already"
        reading, writing = os.pipe()
        words = [word.replace("{ready}", str(writing)) for word in command]
        with self.log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                [*self._network.prefix(self.name), *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                env={**os.environ, **self._network.environment(self.name), **environment},
            )
        os.close(writing)
        self.starts += 1
        self._is_meant_to_run = True
        return reading

    def start(self, command: Sequence[str], *, environment: Mapping[str, str] = {}) -> bool:
        """Start it and wait until it is ready; False if it ended instead."""
        reading = self.launch(command, environment=environment)
        try:
            found, _, _ = select.select([reading], [], [], START_SECONDS)
            if found and os.read(reading, 64) == b"READY\n":
                return True
        finally:
            os.close(reading)
        if not found:
            raise RuntimeError(f"{self.name} is not ready after {START_SECONDS:g} s")
        assert self._popen is not None
        self._popen.wait(STOP_SECONDS)
        self._is_meant_to_run = False
        return False

    def python(self, module: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", module, *arguments]

    def kill(self) -> None:
        self._is_meant_to_run = False
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end; kill it if it does not."""
        self._is_meant_to_run = False
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._popen is None:
            return
        self.signal(number)
        self.signal(signal.SIGCONT)
        try:
            self._popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def signal(self, number: signal.Signals) -> None:
        if self._popen is not None:
            self._popen.send_signal(number)  # does nothing to a process that has ended

    def notice_end(self) -> str | None:
        """What it said last, if it ended although nobody wanted that. Told once."""
        if not self._is_meant_to_run or self._popen is None or self._popen.poll() is None:
            return None
        self._is_meant_to_run = False
        words = f"exit code {self._popen.returncode}: {self.last_words()}"
        self.ended_by_itself.append(words)
        return words

    def last_words(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
            lines = log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    # ------------------------------------------------------------------ limits and clock

    def limit_files(self, spare: int | None) -> None:
        """So many descriptors above those in use; None: as many as we have."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = hard
        if spare is not None:
            limit = max(int(name) for name in os.listdir(f"/proc/{self.pid}/fd")) + 1 + spare
        self._limit(resource.RLIMIT_NOFILE, limit, hard)

    def limit_memory(self, spare_bytes: int | None) -> None:
        """So many bytes of address space above those in use; None: no limit."""
        limit = resource.RLIM_INFINITY
        if spare_bytes is not None:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + spare_bytes
        self._limit(resource.RLIMIT_AS, limit, resource.RLIM_INFINITY)

    def _limit(self, what: int, soft: int, hard: int) -> None:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            resource.prlimit(self.pid, what, (soft, hard))

    def clock_environment(self) -> dict[str, str]:
        """Lets `step_clock` move the wall clock of the next start, also while it runs."""
        library = clock_library()
        if library is None:
            return {}
        if not self._clock.exists():
            self.step_clock(0)
        return {
            "LD_PRELOAD": str(library),
            "PYTHONPATH": str(HOOKS),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "1",
            # Steps happen to wall clocks. The monotonic one is what histories are ordered by.
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step_clock(self, seconds: int) -> None:
        """So far from the machine's clock, from about a second from now on."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.rename(self._clock)

    def wait_stopped(self) -> None:
        """After a SIGSTOP: until no thread runs any more."""
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            states = set()
            for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
                with contextlib.suppress(OSError):
                    states.add(stat.read_text().rpartition(")")[2].split()[0])
            if states <= {"T"}:
                return
            time.sleep(0.01)
