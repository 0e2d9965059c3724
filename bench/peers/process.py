"""A bookie over all its lives, of either make, and what the kernel says about its process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from itertools import pairwise
from pathlib import Path
from typing import Final

import trio

from bench.peers.jars import ROOT
from metadata.connect import open_store
from metadata.paths import ClusterPaths
from metadata.store import SessionId
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import free_port
from wire.types import BookieId

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.01
_HOST: Final = "127.0.0.1"


class BookieFailedToStartError(Exception):
    """The process ended, or was not registered in time; the message names its log."""


class PeerBookie(ABC):
    """The same port, directories and configuration in every life. Stopped by its process id.

    It is ready once it accepts connections and is registered: the same for both makes, so that
    their starts can be compared.
    """

    #: What no log of it may hold, whatever its clients do.
    alarms: tuple[str, ...] = ()
    #: Lines that look like it and are its way of saying that all is well.
    forgiven: tuple[str, ...] = ()
    is_ours: bool
    good_codes: tuple[int, ...] = (0,)

    def __init__(self, folder: Path, uri: str, **settings: object) -> None:
        self.folder = folder
        self.port = free_port()  # fixed, since a restarted bookie must be found where it was
        self.start_seconds = 0.0  # how long the latest start took
        self.is_changed = False  # whether its latest start was with changes
        self._uri = uri
        self._settings = settings
        self._logs: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._seen = 0
        folder.mkdir(parents=True)

    @property
    def bookie_id(self) -> str:
        return f"{_HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    # ------------------------------------------------------------------ lives

    def start(self, **changes: object) -> None:
        """Start its next life, with these changes to its configuration, and wait for it."""
        assert not self.is_running, "it runs already"
        self.is_changed = bool(changes)
        trio.run(self._start, self._settings | changes)

    async def _start(self, settings: dict[str, object]) -> None:
        uri = parse_metadata_uri(self._uri)
        async with open_store(uri) as store:
            paths, name = ClusterPaths(uri.root), BookieId(self.bookie_id)
            nodes = [paths.registration(name, readonly=readonly) for readonly in (False, True)]

            async def owners() -> set[SessionId]:
                stats = [await store.exists(node) for node in nodes]
                return {stat.owner for stat in stats if stat is not None and stat.owner}

            before = await owners()  # of a life that was killed, not expired yet
            started = time.perf_counter()
            self._launch(settings)
            while not (self._accepts() and await owners() - before):
                if not self.is_running:
                    raise BookieFailedToStartError(f"the bookie has ended: see {self._logs[-1]}")
                if time.perf_counter() - started > START_SECONDS:
                    self.kill()
                    raise BookieFailedToStartError(f"it is not registered: see {self._logs[-1]}")
                await trio.sleep(_POLL_SECONDS)
            self.start_seconds = time.perf_counter() - started

    def _launch(self, settings: dict[str, object]) -> None:
        conf = self.folder / "bk_server.conf"
        common: dict[str, object] = {
            "metadataServiceUri": self._uri,
            "journalDirectories": self.folder / "journal",
            "ledgerDirectories": self.folder / "ledgers",
            "bookiePort": self.port,
            "advertisedAddress": _HOST,
            "allowLoopback": "true",
            "diskUsageThreshold": 0.999,
            "diskUsageWarnThreshold": 0.999,
            "diskUsageLwmThreshold": 0.999,
            "zkTimeout": 4000,
        }
        lines = (f"{key}={value}\n" for key, value in (common | settings).items())
        conf.write_text("".join(lines))
        log = self.folder / f"bookie-{len(self._logs) + 1}.log"
        self._logs.append(log)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command(conf),
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    @abstractmethod
    def _command(self, conf: Path) -> list[str]:
        """What to run."""

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((_HOST, self.port)) == 0

    def kill(self) -> None:
        """As a crash would: kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, as an operator would."""
        code = self._end(signal.SIGTERM)
        assert code in self.good_codes, f"it ended with code {code}: see {self._logs[-1]}"

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None, "it was not started"
        self._process.send_signal(number)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    # ------------------------------------------------------------------ what it says

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self._logs)

    def new_alarms(self) -> list[str]:
        """Lines in its logs since the last call that should make a human look."""
        text = self.log()
        fresh, self._seen = text[self._seen :], len(text)
        lines = fresh.splitlines()
        # An exception is named on the line below the one that reports it.
        return [
            f"{self._logs[-1]}: {line} {below}"
            for line, below in pairwise([*lines, ""])
            if any(alarm in line for alarm in self.alarms)
            and not any(words in line or words in below for words in self.forgiven)
        ]

    # ------------------------------------------------------------------ what the kernel says

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def memory_mib(self) -> float:
        """The most that was resident at any time of this life."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("/proc does not tell VmHWM")


def cpu_seconds(pid: int) -> float:
    """All threads of a process; those that have ended count, too."""
    # utime and stime are fields 14 and 15; the name in field 2 may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class OurBookie(PeerBookie):
    alarms = (" ERROR ", "Traceback", "CRITICAL")
    is_ours = True

    def __init__(self, folder: Path, uri: str, **settings: object) -> None:
        ours = {"quire_reserveMb": 0, "minUsableSizeForHighPriorityWrites": 0}
        super().__init__(folder, uri, **(ours | settings))

    def _command(self, conf: Path) -> list[str]:
        return [sys.executable, "-m", "bookie", "--conf", str(conf)]
