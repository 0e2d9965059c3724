"""Starting child processes, waiting until they are ready, ending them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import trio

from wire.errors import LedgerError

START_SECONDS: Final = 120.0  # a replay of a large journal takes its time
STOP_SECONDS: Final = 60.0
#: Threads that may wait for the end of one child: whoever watches it, and whoever stops it, twice.
_WAITERS: Final = 4
_LOG_TAIL_BYTES: Final = 64 * 1024
_LOG_HINT: Final = "(its log:"
_ROOT: Final = Path(__file__).resolve().parent.parent


class ProcessError(LedgerError):
    """A process could not be started, or ended when it should not."""


class Lifeline:
    """The pipe that tells children, by its end, that we are gone."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()

    def close(self) -> None:
        os.close(self.reading)
        os.close(self._writing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One row of a table of processes: `python -m module arguments`, and where it lives."""

    name: str
    folder: Path
    module: str
    arguments: tuple[str, ...]
    #: The program takes `--ready-fd N` and writes READY there.
    announces: bool = True
    #: Beside the environment of ours.
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.name}.log"


class Child:
    """One running program. Start it from a thread that stays, best the main one.

    The kernel ties the child to the thread that started it; a worker thread that ends would take
    the child with it.
    """

    def __init__(self, program: Program, lifeline: Lifeline) -> None:
        self.program = program
        self._ready, writing = os.pipe()
        self._limiter = trio.CapacityLimiter(_WAITERS)
        self.is_stopping = False  # its end is no news to whoever stops it
        announce = ("--ready-fd", str(writing)) if program.announces else ()
        command = module_command(
            program.module, *program.arguments, *announce, lifeline=lifeline.reading
        )
        try:
            program.folder.mkdir(parents=True, exist_ok=True)
            with program.log_path.open("ab") as log:
                self._log_start = log.tell()
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(writing, lifeline.reading),
                    env={**child_environment(), **dict(program.environment)},
                    start_new_session=True,  # a Ctrl-C is for us; we stop the child in our turn
                )
        except OSError as error:
            os.close(self._ready)
            raise ProcessError(f"cannot start {program.name}: {error}") from error
        finally:
            os.close(writing)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    async def wait_ready(self) -> None:
        """Until it says so. If it ends instead, the error is its own last line."""
        if not self.program.announces:
            return
        said = b""
        with trio.move_on_after(START_SECONDS) as patience:
            await trio.lowlevel.wait_readable(self._ready)
            said = os.read(self._ready, 64)
        if said == b"READY\n":
            return
        if patience.cancelled_caught:
            raise ProcessError(
                f"{self.program.name} is not ready after {START_SECONDS:g} s: "
                f"see {self.program.log_path}"
            )
        await self.wait()
        words = self.last_words()
        # A child with children of its own may have named the log that tells more.
        hint = "" if _LOG_HINT in words else f" {_LOG_HINT} {self.program.log_path})"
        raise ProcessError(words + hint)

    async def wait(self) -> int:
        """Until it has ended; its exit code, negative for a signal."""
        wait = self.process.wait
        return await trio.to_thread.run_sync(wait, abandon_on_cancel=True, limiter=self._limiter)

    async def stop(self, timeout_seconds: float = STOP_SECONDS) -> bool:
        """Ask it to end, insist if it does not; whether asking was enough. Idempotent."""
        self.is_stopping = True
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a paused process cannot end
        with trio.move_on_after(timeout_seconds) as patience:
            await self.wait()
        if patience.cancelled_caught:
            self.send(signal.SIGKILL)
            await self.wait()
        return not patience.cancelled_caught

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)  # does nothing to a process that has ended

    def close(self) -> None:
        """Give back what is ours; the process has ended, or ends with us. Idempotent."""
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1

    def last_words(self) -> str:
        """The last line that this run wrote, as the reason of its end."""
        with self.program.log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, log.tell() - _LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        last = said[-1].removeprefix("quire: ") if said else "it said nothing"
        return f"{self.program.name} ended: {last}"


def module_command(module: str, *arguments: str, lifeline: int) -> Sequence[str]:
    """The command line of a module that is to end with this process."""
    tie = (str(os.getpid()), str(lifeline))
    return (sys.executable, "-m", "quire.child", *tie, module, *arguments)


def child_environment() -> Mapping[str, str]:
    """Ours, and our own packages in front: children run what we are, wherever they start."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def is_alive(pid: int) -> bool:
    """Whether a process of this number exists and is more than a name in the table."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's, but there
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return not Path("/proc/self").exists()  # no such file system here: believe the signal
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def is_ours(pid: int, mention: str) -> bool:
    """Whether a process lives and its command line mentions this; numbers are given out again."""
    if not is_alive(pid):
        return False
    try:
        return mention in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return not Path("/proc/self").exists()  # no such file system here: better too careful
