"""Kill one of four bookies, and then another: everything comes back, and every copy is read.

Small in the suite. QUIRE_RECOVERY_ENTRIES=1000000 (in 200 ledgers) is the size that counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import trio

from autorecovery.auditor import Auditor
from autorecovery.context import RecoveryContext
from autorecovery.worker import Worker
from ledger_client import LedgerClient, LedgerWriter
from tests.autorecovery.test_worker_live import context_of, unread_copies
from tests.ledger_client.live.cluster import LiveCluster, live_cluster
from wire.types import BookieId, LedgerId

PASSWORD = b"secret"
ENTRIES = int(os.environ.get("QUIRE_RECOVERY_ENTRIES", "4000"))
LEDGERS = min(200, max(20, ENTRIES // 500))
#: Of every ten ledgers two stay open. Two shapes of three are striped.
SHAPES = [(3, 3, 2), (3, 2, 2), (2, 2, 2)]
PATIENCE_SECONDS = 120.0 + ENTRIES / 200
BATCH = 500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("loss")) as live:
        yield live


async def fill(client: LedgerClient) -> tuple[list[LedgerId], list[LedgerWriter]]:
    ids: list[LedgerId] = []
    writers: list[LedgerWriter] = []
    each = ENTRIES // LEDGERS
    for number in range(LEDGERS):
        ensemble, write_quorum, ack_quorum = SHAPES[number % len(SHAPES)]
        writer = await client.create(
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=PASSWORD,
        )
        for first in range(0, each, BATCH):
            await writer.append_many([b"%d" % number * 20] * min(BATCH, each - first))
        if number % 10 < 2:
            writers.append(writer)
        else:
            await writer.close()
        ids.append(LedgerId(writer.id))
    return ids, writers


async def is_free_of(context: RecoveryContext, ids: list[LedgerId], lost: BookieId) -> bool:
    if await context.marks.marked():
        return False
    for ledger_id in ids:
        if (await context.client.ledgers.read(ledger_id)).metadata.mentions(lost):
            return False
    return True


async def test_two_losses_one_after_the_other_leave_every_copy_in_place(
    cluster: LiveCluster,
) -> None:
    """Live writers go on; those whose ensemble was hit and who are idle are closed, no others."""
    async with LedgerClient(cluster.uri) as client, context_of(cluster.uri) as context:
        ids, writers = await fill(client)
        worker = Worker(context)
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Auditor(context).run)
                nursery.start_soon(worker.run)
                for lost in list(cluster.bookies)[:2]:
                    hit = set()
                    for writer in writers:
                        metadata = await client.metadata(writer.id)
                        if not metadata.is_closed and lost in metadata.last_fragment.ensemble:
                            hit.add(writer.id)
                    fenced = worker.statistics.fenced
                    await trio.to_thread.run_sync(cluster.bookies[lost].kill)
                    while not await is_free_of(context, ids, lost):  # noqa: ASYNC110
                        await trio.sleep(0.2)
                    assert worker.statistics.fenced - fenced <= len(hit)
                    for writer in writers:
                        if (
                            writer.id not in hit
                            and not (await client.metadata(writer.id)).is_closed
                        ):
                            await writer.append(b"still mine")
                    await trio.to_thread.run_sync(cluster.bookies[lost].start)
                    while lost not in context.client.bookies().all:  # noqa: ASYNC110
                        await trio.sleep(0.2)
                nursery.cancel_scope.cancel()
            for ledger_id in ids:
                assert await unread_copies(context, await client.metadata(ledger_id)) == []
            for writer in writers:
                if not (await client.metadata(writer.id)).is_closed:
                    await writer.close()
