"""A cluster of one bookie on this machine, as a process, and how it is stopped."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from pathlib import Path

import trio

from metadata.cluster import init_new_cluster
from metadata.paths import ClusterPaths
from metadata.store import MetadataStore
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import free_port
from tests.bookie_server.live import STOP_SECONDS, Process, write_conf
from tests.support.zookeeper import fresh_root_path
from wire.types import BookieId

#: How soon ZooKeeper gives up on a bookie that was stopped.
SESSION_MS = 2000


class Site:
    """A cluster with one bookie on this machine."""

    def __init__(
        self,
        folder: Path,
        address: str,
        session_ms: int = SESSION_MS,
        changes: Mapping[str, object] | None = None,
    ) -> None:
        self.uri = f"zk://{address}{fresh_root_path()}"
        self.port = free_port()
        self.conf = write_conf(folder, self.uri, self.port, zkTimeout=session_ms, **changes or {})
        root = ClusterPaths(parse_metadata_uri(self.uri).root)
        self.registration = root.registration(BookieId(f"127.0.0.1:{self.port}"), readonly=False)

    async def initialise(self, store: MetadataStore) -> None:
        await init_new_cluster(store, parse_metadata_uri(self.uri), chance=random.Random(1))


async def stop(bookie: Process, number: signal.Signals = signal.SIGTERM) -> int:
    """Send the signal at this very moment, and wait for the end; the exit code."""
    bookie.process.send_signal(number)
    return await trio.to_thread.run_sync(bookie.process.wait, STOP_SECONDS)


def memory_mib(pid: int) -> float:
    """The most memory that a process has ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
