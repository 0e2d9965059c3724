"""One local cluster for all tests of commands."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import trio

from ledger_client import LedgerClient
from tests.quire.commands import Cluster, quire, running_cluster, wait_until
from tests.support.zookeeper import fresh_root_path, shared_zookeeper

ENTRIES = 30
PASSWORD = b"hidden word"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four bookies, of which the last has stopped; one ledger, number 0, on all four."""
    folder = tmp_path_factory.mktemp("cluster") / "data"
    zookeeper = f"{shared_zookeeper().address}{fresh_root_path()}"
    with running_cluster(folder, "--bookies", 4, "--zk", zookeeper) as running:
        trio.run(_write, running.uri)
        os.kill(running.bookies[3]["pid"], signal.SIGTERM)
        wait_until(lambda: _state(running, 3) == "absent")
        yield running


async def _write(uri: str) -> None:
    async with LedgerClient(uri) as client:
        ledger = await client.create(
            ensemble_size=4, write_quorum=4, ack_quorum=4, password=PASSWORD,
            custom_metadata={"application": b"tests"},
        )  # fmt: skip
        assert ledger.id == 0
        await ledger.append_many([f"entry {number}".encode() for number in range(ENTRIES)])
        await ledger.close()


def _state(running: Cluster, number: int) -> str:
    rows = quire("bookies", "list", "--uri", running.uri, "--json").json
    wanted = running.bookies[number]["id"]
    return str(next(row["state"] for row in rows if row["bookie"] == wanted))
