"""Four of our bookies as processes, with the embedded ZooKeeper that all tests share."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trio

from metadata.cluster import init_new_cluster
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import free_port
from tests.bookie_server.live import Process, bookie_process, write_conf
from tests.support.zookeeper import fresh_root_path, opened_store, shared_zookeeper
from wire.types import BookieId

BOOKIES = 4


class LiveBookie:
    def __init__(self, folder: Path, uri: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.port = free_port()
        self.bookie_id = BookieId(f"127.0.0.1:{self.port}")
        self._conf = write_conf(folder, uri, self.port)
        self._stack = ExitStack()
        self._process: Process | None = None

    def start(self) -> None:
        self._process = self._stack.enter_context(bookie_process(self._conf))

    def kill(self) -> None:
        assert self._process is not None
        self._process.stop(signal.SIGKILL)
        self.end()

    def pause(self) -> None:
        """It keeps its connections and says nothing. Not for long: its session would expire."""
        assert self._process is not None
        self._process.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._stack.close()
        self._process = None


class LiveCluster:
    def __init__(self, uri: str, bookies: list[LiveBookie]) -> None:
        self.uri = uri
        self.bookies = {bookie.bookie_id: bookie for bookie in bookies}


@contextmanager
def live_cluster(folder: Path) -> Iterator[LiveCluster]:
    uri = f"zk://{shared_zookeeper().address}{fresh_root_path()}"

    async def make() -> None:
        async with opened_store() as store:
            await init_new_cluster(store, parse_metadata_uri(uri), chance=random.Random(1))

    trio.run(make)
    bookies = [LiveBookie(folder / f"bookie-{i}", uri) for i in range(BOOKIES)]
    try:
        with ThreadPoolExecutor(BOOKIES) as threads:
            list(threads.map(LiveBookie.start, bookies))
        yield LiveCluster(uri, bookies)
    finally:
        for bookie in bookies:
            bookie.end()
