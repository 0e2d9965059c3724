"""One local cluster for all tests of commands."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from random import Random

import pytest
import trio

from ledger_client import LedgerClient
from ledger_client.core.placement import Cluster, DefaultPolicy
from tests.quire.commands import Cluster as LocalCluster
from tests.quire.commands import quire, running_cluster, wait_until
from tests.support.marks import marked_ledger
from tests.support.zookeeper import fresh_root_path, shared_zookeeper
from wire.types import BookieId, LedgerId

ENTRIES = 30
PASSWORD = b"hidden word"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four bookies, of which the last has stopped; ledger 0 on all four, 1 and 2 on two of them.

    The dead one is among these two, so that copies of all ledgers are missing. Those of ledgers 1
    and 2 can be restored; for ledger 0 there are not enough bookies.
    """
    folder = tmp_path_factory.mktemp("cluster") / "data"
    zookeeper = f"{shared_zookeeper().address}{fresh_root_path()}"
    with running_cluster(folder, "--bookies", 4, "--zk", zookeeper) as running:
        trio.run(_write, running.uri, [bookie["id"] for bookie in running.bookies])
        os.kill(running.bookies[3]["pid"], signal.SIGTERM)
        wait_until(lambda: _state(running, 3) == "absent")
        yield running


class _Chosen(DefaultPolicy):
    """Bookies in an order of preference."""

    def __init__(self, preferred: list[BookieId]) -> None:
        self._preferred = preferred

    def new_ensemble(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        candidates: Collection[BookieId],
        cluster: Cluster,
        chance: Random,
    ) -> tuple[BookieId, ...] | None:
        return tuple(self._preferred[:ensemble_size])


async def _write(uri: str, bookies: list[BookieId]) -> None:
    async with LedgerClient(uri, policy=_Chosen(bookies[::-1])) as client:
        ledger = await client.create(
            ensemble_size=4, write_quorum=4, ack_quorum=4, password=PASSWORD,
            custom_metadata={"application": b"tests"},
        )  # fmt: skip
        assert ledger.id == 0
        await ledger.append_many([f"entry {number}".encode() for number in range(ENTRIES)])
        await ledger.close()
        for _ in range(2):
            small = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=1)
            await small.append_many([b"one", b"two"])
            await small.close()


def _state(running: LocalCluster, number: int) -> str:
    rows = quire("bookies", "list", "--uri", running.uri, "--json").json
    wanted = running.bookies[number]["id"]
    return str(next(row["state"] for row in rows if row["bookie"] == wanted))


@pytest.fixture
def marked(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with a mark on ledger 0, as an auditor would have made it."""
    with marked_ledger(cluster.uri, LedgerId(0), BookieId(cluster.bookies[3]["id"])):
        yield cluster
