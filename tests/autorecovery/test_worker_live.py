"""A worker on bookies that are processes of their own, with a real ZooKeeper between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from autorecovery.config import AuditorConfig, WorkerConfig
from autorecovery.context import RecoveryContext, RecoverySettings
from autorecovery.core.fragments import CopyJob, settled_ranges
from autorecovery.daemon import opened_context
from autorecovery.replicator import Replicator, Throttle
from autorecovery.worker import Worker
from autorecovery.worker_repair import access_of
from ledger_client import DigestType, LedgerClient, LedgerWriter
from ledger_client.core.distribution import Distribution
from metadata.connect import open_store
from metadata.model import LedgerMetadata
from metadata.paths import ClusterPaths
from metadata.store import ANY_VERSION
from metadata.uri import parse_metadata_uri
from tests.ledger_client.live.cluster import LiveCluster, live_cluster
from wire.types import BookieId, LedgerId

PASSWORD = b"secret"
SHAPES = [(3, 3, 2), (3, 2, 2), (2, 2, 1)]
ENTRIES = 700
PATIENCE_SECONDS = 90.0


@asynccontextmanager
async def context_of(uri: str) -> AsyncIterator[RecoveryContext]:
    parsed = parse_metadata_uri(uri)
    settings = RecoverySettings(
        auditor=AuditorConfig(), worker=WorkerConfig(open_grace_ms=300, failed_lock_ms=3000)
    )
    async with opened_context(
        lambda: open_store(parsed), parsed, bookie_id=BookieId("test:1"), settings=settings
    ) as context:
        yield context


async def write(
    client: LedgerClient, shape: tuple[int, int, int], digest: DigestType
) -> LedgerWriter:
    ensemble, write_quorum, ack_quorum = shape
    ledger = await client.create(
        ensemble_size=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        password=PASSWORD,
        digest_type=digest,
    )
    await ledger.append_many([b"%d" % number * (number % 40) for number in range(ENTRIES)])
    return ledger


async def unread_copies(context: RecoveryContext, metadata: LedgerMetadata) -> list[str]:
    """Copies that the record promises and that cannot be had, whole, from the bookie itself."""
    replicator = Replicator(context.client, Throttle())
    wrong = []
    for found in settled_ranges(metadata):
        fragment, last = found.fragment, found.last_entry_id
        assert last is not None
        for slot, name in enumerate(fragment.ensemble):
            job = CopyJob(
                Distribution.of(metadata),
                fragment,
                ((fragment.first_entry_id, last),),
                {},
                (slot,),
                verified=slot,
            )
            copy = await replicator.copy(job, access_of(metadata))
            if not copy.is_complete or copy.filled:
                wrong.append(f"{name}: lost {copy.lost.runs}, unread {copy.unread.runs}")
    return wrong


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("live")) as live:
        yield live


async def repair_all(context: RecoveryContext) -> Worker:
    worker = Worker(context)
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            while await context.marks.marked():  # noqa: ASYNC110 (znodes: nobody tells)
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
    return worker


@pytest.mark.parametrize("takes_batches", [True, False])
async def test_lost_bookie_is_made_up_for_on_live_bookies(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch, takes_batches: bool
) -> None:
    """Kill one of four: striped ledgers and others, of each digest, closed, open and left open.

    Every copy is then read from its own bookie. Once with batches, once as to Apache's bookies,
    entry by entry.
    """
    if not takes_batches:
        monkeypatch.setattr("metadata.service_info.BookieServiceInfo.takes_batches", False)
    async with LedgerClient(cluster.uri) as client, context_of(cluster.uri) as context:
        closed: list[int] = []
        for shape in SHAPES:
            for digest in DigestType:
                ledger = await write(client, shape, digest)
                await ledger.close()
                closed.append(ledger.id)
        idle = await write(client, (3, 3, 2), DigestType.CRC32C)
        victim = (await client.metadata(idle.id)).last_fragment.ensemble[0]
        alive = await write(client, (2, 2, 2), DigestType.CRC32C)
        while victim in (await client.metadata(alive.id)).bookies():
            alive = await write(client, (2, 2, 2), DigestType.CRC32C)

        await trio.to_thread.run_sync(cluster.bookies[victim].kill)
        path = ClusterPaths(context.cluster.root).registration(victim)
        await context.store.delete(path, version=ANY_VERSION)  # sooner than by its timeout
        ledger_ids = (*closed, idle.id, alive.id)
        hit = [i for i in ledger_ids if victim in (await client.metadata(i)).bookies()]
        assert len(hit) >= 4
        for ledger_id in hit:
            await context.marks.mark(LedgerId(ledger_id), [victim])
        worker = await repair_all(context)
        assert worker.statistics.fenced == 1
        assert await alive.append(b"still mine") == ENTRIES
        await alive.close()
        for ledger_id in ledger_ids:
            metadata = await client.metadata(ledger_id)
            assert metadata.is_closed
            assert victim not in metadata.bookies()
            assert await unread_copies(context, metadata) == []
        await trio.to_thread.run_sync(cluster.bookies[victim].start)
