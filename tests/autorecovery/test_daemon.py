"""Autorecovery as a process on four bookies and a real ZooKeeper: lose one, and it heals."""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from autorecovery.auditor import Auditor
from autorecovery.checks import Checks, FullCheck
from autorecovery.config import AuditorConfig, WorkerConfig
from autorecovery.context import RecoveryContext, RecoverySettings
from autorecovery.daemon import opened_context
from autorecovery.operators import who_is_auditor
from autorecovery.operators_bookie import decommission
from autorecovery.statistics import AuditorStatistics
from ledger_client import LedgerClient
from metadata.store import MetadataStore
from metadata.uri import parse_metadata_uri
from metadata.zookeeper_store import ZookeeperStore
from runtime.metrics import Registry
from tests.autorecovery.live import recovery_process, run, write_recovery_conf
from tests.ledger_client.live.cluster import LiveCluster, live_cluster
from tests.support.zookeeper import expire, opened_store
from wire.types import BookieId, LedgerId

LOOKS_MAX = 900


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@asynccontextmanager
async def watching(
    cluster: LiveCluster, store: MetadataStore | None = None
) -> AsyncIterator[RecoveryContext]:
    """A context of the test's own, which neither audits nor restores."""

    @asynccontextmanager
    async def given() -> AsyncIterator[MetadataStore]:
        assert store is not None
        yield store

    async with opened_context(
        opened_store if store is None else given,
        parse_metadata_uri(cluster.uri),
        bookie_id=BookieId("test:1"),
        settings=RecoverySettings(
            auditor=AuditorConfig(ledger_check_seconds=0), worker=WorkerConfig()
        ),
        chance=random.Random(3),
    ) as context:
        yield context


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(LOOKS_MAX):
        if await condition():
            return
        await trio.sleep(0.1)
    raise AssertionError("what was waited for did not happen")


async def write_ledgers(client: LedgerClient, count: int, entries: int) -> list[LedgerId]:
    """Closed ones, every other one striped."""
    ids = []
    for number in range(count):
        writer = await client.create(
            ensemble_size=3, write_quorum=3 - number % 2, ack_quorum=2, password=b"pw"
        )
        for entry in range(entries):
            await writer.append(b"%d-%d" % (number, entry))
        await writer.close()
        ids.append(writer.id)
    return ids


async def every_replica_is_good(context: RecoveryContext) -> bool:
    """Read all entries of all replicas and verify their digests.

    On a busy machine a bookie may be slow to answer or lose its session for a moment: that is
    no finding, and whoever waits looks again.
    """
    statistics = AuditorStatistics(Registry())
    summary = await FullCheck(Checks(context, statistics)).run()
    assert summary.ledgers > 0
    assert statistics.counts.entries_read > 0
    return (summary.marked, summary.undecided, summary.failed) == (0, 0, 0)


async def test_a_cluster_heals_when_bookies_and_auditors_are_killed(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    """Kill one of four; then the auditor and another bookie at once; then decommission.

    Rows F37, F42 and F54 with real processes: a writer that was idle when its bookie died goes on
    or is fenced, a second auditor takes over, empty ledgers do not hold anybody up.
    """
    confs = [write_recovery_conf(tmp_path, cluster.uri, f"recovery-{i}:1") for i in range(2)]
    names = list(cluster.bookies)
    with recovery_process(confs[0]) as first:
        async with (
            LedgerClient(cluster.uri) as client,
            watching(cluster) as context,
        ):
            await until(lambda: _is_auditor(context, "recovery-0:1"))
            ledgers = await write_ledgers(client, 6, 20)
            empty = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            await empty.close()
            idle = await client.create(ensemble_size=4, write_quorum=3, ack_quorum=2)
            await idle.append(b"before the loss")
            ledgers += [empty.id, idle.id]

            cluster.bookies[names[0]].kill()
            await until(lambda: is_gone(context, names[0]))
            # Three are left: an ensemble of four cannot be had, so the idle ledger is closed and
            # one of its slots stays with the bookie that is away.
            closed = [ledger for ledger in ledgers if ledger != idle.id]
            await until(lambda: _not_named(context, closed, names[0]))
            cluster.bookies[names[0]].start()
            await until(partial(is_whole, context))
            await until(partial(every_replica_is_good, context))

            with recovery_process(confs[1]) as second:
                first.stop(signal.SIGKILL)
                cluster.bookies[names[1]].kill()
                await until(lambda: _is_auditor(context, "recovery-1:1"))
                await until(lambda: is_gone(context, names[1]))
                more = await write_ledgers(client, 2, 5)
                # Whether the idle ledger holds it up depends on the slot that the bookie has there,
                # and on how far its recovery came; nothing else may.
                await until(partial(_only_stuck, context, names[1], {idle.id}))
                assert await _not_named(context, [*closed, *more], names[1])
                assert second.stop() == 0
            for number, ledger_id in enumerate(ledgers[:6]):
                reader = await client.open(ledger_id, password=b"pw")
                entries = [entry.payload async for entry in reader.read(0, 19)]
                assert entries == [b"%d-%d" % (number, entry) for entry in range(20)]


async def _only_stuck(
    context: RecoveryContext, bookie_id: BookieId, may_be_stuck: set[LedgerId]
) -> bool:
    """Decommission; whether it ends with verdicts on these ledgers at most."""
    report = await decommission(context, bookie_id, poll_seconds=0.2)
    return report.stuck.keys() <= may_be_stuck


async def _is_auditor(context: RecoveryContext, name: str) -> bool:
    return await who_is_auditor(context) == name


async def is_gone(context: RecoveryContext, name: BookieId) -> bool:
    return name not in context.watcher.bookies.all


async def is_whole(context: RecoveryContext) -> bool:
    return not await context.marks.marked()


async def _not_named(context: RecoveryContext, ledgers: list[LedgerId], name: BookieId) -> bool:
    for ledger_id in ledgers:
        if (await context.client.ledgers.read(ledger_id)).metadata.mentions(name):
            return False
    return True


async def test_an_auditor_outlives_its_session(cluster: LiveCluster) -> None:
    """F42: expired by the server; it stands again, and audits again."""
    async with opened_store() as store:
        assert isinstance(store, ZookeeperStore)
        async with watching(cluster, store) as context, trio.open_nursery() as nursery:
            auditor = Auditor(context)
            nursery.start_soon(auditor.run)
            await until(partial(_is_elected, auditor))
            for _ in range(2):
                audits = auditor.statistics.audit_time.success.snapshot().count
                await expire(store)
                await until(partial(_has_audited, auditor, audits + 1))
            nursery.cancel_scope.cancel()


async def _is_elected(auditor: Auditor) -> bool:
    return auditor.is_elected


async def _has_audited(auditor: Auditor, times: int) -> bool:
    count = auditor.statistics.audit_time.success.snapshot().count
    return auditor.is_elected and count >= times


# ---------------------------------------------------------------------- the command


def test_a_configuration_is_checked_without_starting(tmp_path: Path) -> None:
    conf = write_recovery_conf(tmp_path, "zk://nowhere:1/ledgers", "recovery:1")
    done = run("--conf", conf, "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "autorecovery as recovery:1",
        "metadata at zk://nowhere:1/ledgers",
        "bookie check: every 86400 s",
        "full check of ledgers: never",
        "placement check: never",
        "replicas check: never",
        "the configuration is fine",
    ]


def test_a_wrong_configuration_is_one_line(tmp_path: Path) -> None:
    conf = write_recovery_conf(tmp_path, "zk://nowhere:1/ledgers", "x:1", httpServerEnabled="true")
    done = run("--conf", conf)
    assert done.returncode == 1
    assert "start it with `quire autorecovery`" in done.stderr
    assert len(done.stderr.splitlines()) == 1
