"""A cluster on this machine: an embedded ZooKeeper, and bookies of ours, each a process."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trio

from metadata.cluster import init_new_cluster
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import LocalZookeeper, free_port
from tests.bookie_server.live import Process, bookie_process, write_conf

#: What no log of a bookie may hold, whatever its clients do.
_ALARMS = (" ERROR ", "Traceback", "CRITICAL")


class LocalBookie:
    """One bookie over all its lives: the same port, directories and configuration."""

    def __init__(self, folder: Path, uri: str, stack: ExitStack) -> None:
        self.folder = folder
        self.port = free_port()  # fixed, since a restarted bookie must be found where it was
        self._stack = stack
        self._logs: list[Path] = []
        self._process: Process | None = None
        self._seen = 0
        self._uri = uri
        folder.mkdir()

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.process.poll() is None

    def start(self, **changes: object) -> None:
        """Start its next life, with these changes to its configuration."""
        assert not self.is_running, "it runs already"
        settings = {"journalMaxSizeMB": 32, "dbStorage_writeCacheMaxSizeMb": 32} | changes
        conf = write_conf(self.folder, self._uri, self.port, **settings)
        name = f"bookie-{len(self._logs) + 1}.log"
        self._process = self._stack.enter_context(bookie_process(conf, log_name=name))
        self._logs.append(self._process.log)

    def kill(self) -> None:
        """As a crash would: kill -9."""
        assert self._process is not None, "it was not started"
        self._process.stop(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to end, as an operator would; the exit code."""
        assert self._process is not None, "it was not started"
        return self._process.stop()

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self._logs)

    def new_alarms(self) -> list[str]:
        """Lines in its logs since the last call that should make a human look."""
        text = self.log()
        fresh, self._seen = text[self._seen :], len(text)
        return [
            f"{self._logs[-1]}: {line}"
            for line in fresh.splitlines()
            if any(alarm in line for alarm in _ALARMS)
        ]


class LocalCluster:
    def __init__(self, uri: str, bookies: list[LocalBookie]) -> None:
        self.uri = uri
        self.bookies = bookies

    def bookie(self, bookie_id: str) -> LocalBookie:
        [found] = [bookie for bookie in self.bookies if bookie.bookie_id == bookie_id]
        return found

    def complaints(self) -> list[str]:
        """What is wrong with the bookies since the last call. Those that ended are started."""
        found = [line for bookie in self.bookies for line in bookie.new_alarms()]
        for bookie in self.bookies:
            if not bookie.is_running:
                found.append(f"bookie {bookie.bookie_id} has ended: see {bookie.folder}")
                bookie.start()
        return found


@contextmanager
def local_cluster(folder: Path, size: int) -> Iterator[LocalCluster]:
    """Everything started and ready; stopped properly at the end."""
    with ExitStack() as stack:
        server = stack.enter_context(LocalZookeeper(folder / "zookeeper", durable=False))
        uri = f"zk+hierarchical://{server.address}/ledgers"
        trio.run(_initialise, uri)
        bookies = [LocalBookie(folder / f"bookie-{n}", uri, stack) for n in range(size)]
        with ThreadPoolExecutor(size) as pool:
            list(pool.map(LocalBookie.start, bookies))
        yield LocalCluster(uri, bookies)
        codes = {bookie.bookie_id: bookie.stop() for bookie in bookies if bookie.is_running}
        assert set(codes.values()) <= {0}, f"exit codes {codes}: see {folder}"


async def _initialise(uri: str) -> None:
    parsed = parse_metadata_uri(uri)
    async with open_store(parsed) as store:
        await init_new_cluster(store, parsed, chance=random.Random(1))
