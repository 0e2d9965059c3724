"""A cluster with admin paths, and the ledgers that the captured requests ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from ledger_client import LedgerClient
from runtime.local_zookeeper import free_port
from tests.bookie_server.live import Process, daemon_process
from tests.http.exchanges import ask
from tests.quire.commands import Cluster, running_cluster, wait_until
from tests.support.marks import marked_ledger
from tests.support.zookeeper import fresh_root_path, shared_zookeeper
from wire.types import BookieId, DigestType, LedgerId

#: Ledgers of the capture that its requests name: id, bookies, entries, whether it stays open.
LEDGERS = (
    (0, 3, 300, False),
    (1, 3, 3, False),
    (2, 3, 3, False),
    (4, 3, 20, False),
    (5, 3, 2, False),
    (6, 3, 0, False),
    (8, 3, 10, True),
    (9, 3, 10, False),
    (10, 3, 1, False),
    (132, 3, 1, False),
    (140, 3, 1, True),
    (142, 3, 1, False),
)


class World:
    """Three bookies; autorecovery when it is wanted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.url = str(cluster.bookies[0]["http"])
        self._recovery = ExitStack()
        self.recovery_url: str | None = None

    @property
    def bookie_ids(self) -> list[str]:
        return [bookie["id"] for bookie in self.cluster.bookies]

    def start_recovery(self) -> str:
        """The auditor is elected when this returns. Its admin paths."""
        if self.recovery_url is None:
            self.recovery_url = self._recovery.enter_context(self.recovery(worker=False))
            path = "/api/v1/autorecovery/who_is_auditor"
            wait_until(lambda: ask(self.url, "GET", path).status == 200)
        return self.recovery_url

    @contextmanager
    def recovery(self, *, worker: bool) -> Iterator[str]:
        """An autorecovery process. Without a worker, ledgers that are marked stay so."""
        port, folder = free_port(), self.cluster.folder.parent
        conf = folder / "autorecovery.conf"
        text = self.cluster.conf(2).read_text()  # as Apache's, it takes the file of a bookie
        text = re.sub("(?m)^httpServerPort=.*$", f"httpServerPort={port}", text)
        conf.write_text(f"{text}quire_replicationWorkerEnabled={'true' if worker else 'false'}\n")
        with quire_daemon("autorecovery", conf, folder / "autorecovery.log"):
            yield f"http://127.0.0.1:{port}"

    def stop_recovery(self) -> None:
        self._recovery.close()
        self.recovery_url = None
        path = "/api/v1/autorecovery/who_is_auditor"
        wait_until(lambda: ask(self.url, "GET", path).status == 404)

    def close(self) -> None:
        self._recovery.close()


@contextmanager
def quire_daemon(command: str, conf: Path, log: Path) -> Iterator[Process]:
    with daemon_process("quire", conf, log, command) as process:
        yield process
        process.stop()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("http") / "data"
    zookeeper = f"{shared_zookeeper().address}{fresh_root_path()}"
    with running_cluster(folder, "--bookies", 3, "--zk", zookeeper) as running:
        trio.run(_write, running.uri)
        found = World(running)
        yield found
        found.close()


async def _write(uri: str) -> None:
    async with LedgerClient(uri) as client:
        for ledger_id, size, entries, stays_open in LEDGERS:
            ledger = await client.create(
                ensemble_size=size,
                write_quorum=size,
                ack_quorum=2,
                ledger_id=ledger_id,
                password=b"p",
                digest_type=DigestType.HMAC if ledger_id == 2 else DigestType.CRC32C,
                custom_metadata={"application": b"quire"},
            )
            if entries:
                await ledger.append_many(f"entry-{number}".encode() for number in range(entries))
            if not stays_open:
                await ledger.close()


@pytest.fixture
def marked(world: World) -> Iterator[World]:
    """Ledger 4 lacks a copy on the last bookie, says a mark."""
    with marked_ledger(world.cluster.uri, LedgerId(4), BookieId(world.bookie_ids[2])):
        yield world
