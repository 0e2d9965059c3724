"""A bookie that comes back with empty disks: in limbo, healed by the others, and whole again."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from ledger_client import LedgerClient
from ledger_client.core.commands import Outcome
from ledger_client.requests import Mailbox, Reads
from tests.autorecovery.test_worker_live import context_of, unread_copies
from tests.bookie_server.live import ROOT, START_SECONDS, write_conf
from tests.ledger_client.live.cluster import LiveCluster, live_cluster
from wire.types import LedgerId

PASSWORD = b"secret"
LOOKS_MAX = 1200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("live")) as live:
        yield live


@contextmanager
def whole_bookie(conf: Path) -> Iterator[None]:
    """`quire bookie`, which brings the check along."""
    log = conf.with_suffix(".log")
    reading, writing = os.pipe()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "quire", "bookie", "--conf", conf, "--ready-fd", str(writing)],
            cwd=ROOT, stdout=output, stderr=output, pass_fds=(writing,),
        )  # fmt: skip
    os.close(writing)
    try:
        found, _, _ = select.select([reading], [], [], START_SECONDS)
        assert found, log.read_text()
        assert os.read(reading, 64) == b"READY\n", log.read_text()
        yield
    finally:
        os.close(reading)
        process.send_signal(signal.SIGTERM)
        process.wait()


async def test_a_bookie_that_lost_everything_comes_back_and_is_healed(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    """F53's other half: a wiped bookie under its old name denies nothing, and gets all back."""
    async with LedgerClient(cluster.uri) as client, context_of(cluster.uri) as context:
        ledgers: list[LedgerId] = []
        for _ in range(4):
            writer = await client.create(
                ensemble_size=4, write_quorum=3, ack_quorum=2, password=PASSWORD
            )
            await writer.append_many([b"%d" % number for number in range(200)])
            await writer.close()
            ledgers.append(LedgerId(writer.id))
        left_open = await client.create(
            ensemble_size=4, write_quorum=4, ack_quorum=2, password=PASSWORD
        )
        await left_open.append_many([b"last words"] * 50)
        ledgers.append(LedgerId(left_open.id))
        victim = next(iter(cluster.bookies.values()))
        await trio.to_thread.run_sync(victim.kill)
        for name in ("journal", "ledgers"):
            shutil.rmtree(victim.folder / name)
        conf = write_conf(victim.folder, cluster.uri, victim.port, dataIntegrityChecking="true")
        with whole_bookie(conf):
            with trio.fail_after(START_SECONDS):
                while victim.bookie_id not in context.client.bookies().all:  # noqa: ASYNC110
                    await trio.sleep(0.05)
            mail = Mailbox()
            context.client.pool.ask(
                victim.bookie_id,
                Reads(
                    request_id=next(context.client.request_ids),
                    sink=mail.take,
                    ledger_id=LedgerId(left_open.id),
                    entry_ids=range(1_000_000, 1_000_001),
                    bytes_max=1000,
                ),
            )
            (answer,) = await mail.wait()
            first = answer.outcome
            for _ in range(LOOKS_MAX):
                wrong: list[str] = []
                for ledger_id in ledgers:
                    metadata = await client.metadata(ledger_id)
                    if not metadata.is_closed:
                        wrong.append("open")
                        continue
                    wrong += await unread_copies(context, metadata)
                if not wrong:
                    break
                await trio.sleep(0.1)
            assert not wrong
            # Either it was in limbo still, or the ledger had been healed and its end was known.
            assert first is not Outcome.OK
            closed = await client.metadata(left_open.id)
            assert closed.last_entry_id == 49
            for ledger_id in ledgers[:4]:
                assert victim.bookie_id in (await client.metadata(ledger_id)).bookies()
