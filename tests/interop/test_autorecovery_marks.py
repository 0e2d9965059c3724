"""What auditors and workers tell each other in the metadata: marks, locks and the switch.

Apache's own manager of these, in its JVM, meets ours on the same nodes. No bookie is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from py4j.protocol import Py4JJavaError

from autorecovery.context import RecoveryContext
from bench.peers.cluster import bookies_on
from bench.peers.jars import NEWEST
from runtime.local_zookeeper import LocalZookeeper
from tests.interop.conftest import Peers, makers
from tests.interop.healing import looking
from tests.interop.java_client import JavaClient
from tests.interop.table import OURS
from wire.types import BookieId, LedgerId

TABLE = "What auditors and workers tell each other"
COLUMN = "Apache's and ours, on the same nodes"
A, B = BookieId("127.0.0.1:1"), BookieId("127.0.0.1:2")


class Marks:
    """Apache's manager of marks, in Python's values."""

    def __init__(self, client: JavaClient, manager: Any) -> None:
        self._client = client
        self._manager = manager

    def mark(self, ledger_id: int, missing: str) -> None:
        self._client.wait(self._manager.markLedgerUnderreplicatedAsync(ledger_id, [missing]))

    def missing(self, ledger_id: int) -> set[str]:
        info = self._manager.getLedgerUnreplicationInfo(ledger_id)
        return set(info.getReplicaList())

    def take(self) -> int:
        """-1 if there is nothing to take."""
        return int(self._manager.pollLedgerToRereplicate())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


@pytest.fixture(scope="module")
def uri(folder: Path, zookeeper: LocalZookeeper) -> Iterator[str]:
    """A client wants at least one bookie to be there."""
    uri = f"zk+hierarchical://{zookeeper.address}/marks"
    with bookies_on(folder / "marks", uri, makers(OURS, NEWEST)[:1]):
        yield uri


@pytest.fixture(scope="module")
def theirs(uri: str, peers: Peers) -> Iterator[Marks]:
    client = JavaClient(peers(NEWEST), uri, v2=False, settings={})
    factory = client.keeper.getMetadataClientDriver().getLedgerManagerFactory()
    manager = factory.newLedgerUnderreplicationManager()
    yield Marks(client, manager)
    manager.close()
    client.close()


@asynccontextmanager
async def ours(uri: str) -> AsyncIterator[RecoveryContext]:
    """With nothing marked, at the beginning and at the end."""
    async with looking(uri) as context:
        assert await context.marks.marked() == []
        yield context
        assert await context.marks.marked() == []


@pytest.mark.cell(TABLE, "marks of one are read, added to and deleted by the other", COLUMN)
def test_marks_are_shared(uri: str, theirs: Marks) -> None:
    async def main() -> None:
        async with ours(uri) as context:
            theirs.mark(1, A)
            await context.marks.mark(LedgerId(1), [B])
            mark = await context.marks.read_mark(LedgerId(1))
            assert mark is not None
            assert set(mark.content.replicas) == {A, B} == theirs.missing(1)
            await context.marks.mark(LedgerId(2), [A])
            theirs.mark(2, B)
            assert theirs.missing(2) == {A, B}
            taken = {theirs.take(), theirs.take()}
            assert taken == {1, 2}
            theirs.markLedgerReplicated(1)
            theirs.releaseUnderreplicatedLedger(2)
            lock = await context.marks.take(LedgerId(2))
            assert lock is not None
            assert await context.marks.finish(lock)

    trio.run(main)


@pytest.mark.cell(TABLE, "what one has locked the other leaves alone, and knows who has it", COLUMN)
def test_locks_are_respected(uri: str, theirs: Marks) -> None:
    async def main() -> None:
        async with ours(uri) as context:
            ledger_id = LedgerId(7)
            await context.marks.mark(ledger_id, [A])
            lock = await context.marks.take(ledger_id)
            assert lock is not None
            assert theirs.take() == -1
            assert theirs.isLedgerBeingReplicated(7)
            assert theirs.getReplicationWorkerIdRereplicatingLedger(7) is not None
            with pytest.raises(Py4JJavaError):
                theirs.acquireUnderreplicatedLedger(7)
            await context.marks.release(lock)
            assert not theirs.isLedgerBeingReplicated(7)
            assert theirs.take() == 7
            assert await context.marks.take(ledger_id) is None
            assert await context.marks.holder(ledger_id) is not None
            theirs.markLedgerReplicated(7)

    trio.run(main)


@pytest.mark.cell(TABLE, "a mark that was renewed meanwhile outlives the repair", COLUMN)
def test_renewed_mark_outlives_the_repair(uri: str, theirs: Marks) -> None:
    async def main() -> None:
        async with ours(uri) as context:
            theirs.mark(8, A)
            lock = await context.marks.take(LedgerId(8))
            assert lock is not None
            theirs.mark(8, B)  # another loss, while we copy
            assert not await context.marks.finish(lock)
            assert theirs.take() == 8  # and the lock is gone
            await context.marks.mark(LedgerId(8), [BookieId("127.0.0.1:3")])
            theirs.markLedgerReplicated(8)  # refuses in silence: the version is another
            assert await context.marks.marked() == [LedgerId(8)]
            theirs.releaseUnderreplicatedLedger(8)
            last = await context.marks.take(LedgerId(8))
            assert last is not None
            assert await context.marks.finish(last)

    trio.run(main)


@pytest.mark.cell(TABLE, "the switch, the delay and the times of checks are the same ones", COLUMN)
def test_settings_are_shared(uri: str, theirs: Marks) -> None:
    async def main() -> None:
        async with ours(uri) as context:
            settings = context.marks.settings
            theirs.disableLedgerReplication()
            assert not await settings.is_enabled()
            await settings.enable()
            assert theirs.isLedgerReplicationEnabled()
            assert theirs.initializeLostBookieRecoveryDelay(9)
            delay = await settings.delay()
            assert delay is not None
            assert delay.seconds == 9
            await settings.set_delay(11)
            assert theirs.getLostBookieRecoveryDelay() == 11

    trio.run(main)
