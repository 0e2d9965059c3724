"""A bookie dies and autorecovery restores its copies: Apache's on our bookies, ours on Apache's,
and both on one cluster, where they share the election, the marks and the locks.

Afterwards every copy of every entry is read from the bookie that its ledger's record names.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from autorecovery.context import RecoveryContext
from bench.peers.cluster import PeerCluster
from bench.peers.jars import NEWEST
from bench.peers.process import PeerBookie
from ledger_client.sync import LedgerWriter
from tests.interop.conftest import OwnCluster, Peers
from tests.interop.healing import (
    PATIENCE_SECONDS,
    Written,
    check_copies,
    healer,
    java_half,
    ledgers_on,
    looking,
    payloads,
    until_auditor,
    until_gone,
    until_healed,
)
from tests.interop.java_client import JavaClient, entries_of
from tests.interop.table import APACHE, MIXED, OURS

TABLE = "Autorecovery"
OFFICE = "Autorecovery of both makes, on bookies of both"
LOSS = "kill -9 of a bookie: striped, empty, open and growing ledgers get every copy back"
TAKE_OVER = "kill -9 of a bookie and of the auditor: the other make takes office and goes on"


@dataclass
class Loss:
    """A cluster with ledgers, one bookie of which is about to be lost."""

    cluster: PeerCluster
    java: JavaClient
    victim: PeerBookie
    written: Written
    growing: LedgerWriter

    def kill(self) -> None:
        """The writer of the growing ledger notices, and replaces the bookie itself.

        Its adds are confirmed before that is done, and if they are before the failure is known, the
        next add replaces the bookie. Whoever does not wait for it lets a busy machine decide
        whether a worker finds the ledger as a dead writer would have left it.
        """
        self.victim.kill()
        self._grow(20)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.victim.bookie_id in self.growing.metadata.last_fragment.ensemble:
            self._grow(1)
            assert time.monotonic() < deadline, "the writer keeps a bookie that is dead"
            time.sleep(0.05)

    def _grow(self, count: int) -> None:
        more = payloads(count, "more")
        self.growing.append_many(more)
        self.written.entries[self.growing.id] += more

    async def heal(self, context: RecoveryContext) -> None:
        lost = self.victim.bookie_id
        await until_gone(context, lost)
        await until_healed(context, self.written, lost)
        assert await check_copies(context, self.written) > 500


@contextmanager
def about_to_lose(cluster: PeerCluster, peers: Peers, number: int) -> Iterator[Loss]:
    """At the end all bookies run again, and none has complained."""
    java = JavaClient(peers(NEWEST), cluster.uri, v2=False, settings={})
    victim = cluster.bookies[number]
    try:
        with ledgers_on(cluster, java, victim) as (written, growing):
            yield Loss(cluster, java, victim, written, growing)
            for ledger_id, entries in written.entries.items():
                assert [bytes(e) for e in read_by_java(java, ledger_id)] == entries
    finally:
        java.close()
        if not victim.is_running:
            victim.start()
    complaints = cluster.complaints()
    assert not complaints, "\n".join(complaints)


def read_by_java(java: JavaClient, ledger_id: int) -> list[bytes]:
    """With recovery, so that this is the end of every ledger."""
    handle = java.open(ledger_id)
    last = handle.getLastAddConfirmed()
    return entries_of(handle.readEntries(0, last)) if last >= 0 else []


@pytest.mark.cell(TABLE, LOSS, "Apache's, on our bookies")
def test_apaches_autorecovery_heals_our_bookies(
    own_cluster: OwnCluster, peers: Peers, tmp_path: Path
) -> None:
    cluster = own_cluster("healed-ours", OURS)

    async def heal(loss: Loss) -> None:
        async with looking(cluster.uri) as context:
            await until_auditor(context, None)
            loss.kill()
            await loss.heal(context)

    with (
        about_to_lose(cluster, peers, 0) as loss,
        healer(tmp_path / "apache", cluster.uri, "apache"),
    ):
        trio.run(heal, loss)


@pytest.mark.cell(TABLE, LOSS, "ours, on Apache's bookies")
def test_our_autorecovery_heals_apaches_bookies(
    own_cluster: OwnCluster, peers: Peers, tmp_path: Path
) -> None:
    cluster = own_cluster("healed-apache", APACHE)

    async def heal(loss: Loss) -> None:
        async with looking(cluster.uri) as context:
            await until_auditor(context, None)
            loss.kill()
            await loss.heal(context)

    with (
        about_to_lose(cluster, peers, 0) as loss,
        healer(tmp_path / "ours", cluster.uri, "ours") as process,
    ):
        trio.run(heal, loss)
        assert_quiet(process.log)


#: Bookies of a mixed cluster: the first two are Apache's, the others ours.
THEIR_BOOKIE, OUR_BOOKIE = 0, 3


@pytest.mark.parametrize(
    ("auditor", "victim"),
    [
        pytest.param(
            "apache", OUR_BOOKIE,
            marks=pytest.mark.cell(TABLE, LOSS, "Apache's auditor, our workers; mixed", full=True),
        ),
        pytest.param(
            "ours", THEIR_BOOKIE,
            marks=pytest.mark.cell(TABLE, LOSS, "our auditor, Apache's workers; mixed", full=True),
        ),
    ],
)  # fmt: skip
def test_auditor_of_one_make_and_workers_of_the_other_heal(
    own_cluster: OwnCluster, peers: Peers, tmp_path: Path, auditor: str, victim: int
) -> None:
    cluster = own_cluster("healed-mixed", MIXED)

    async def heal(loss: Loss, expected: str | None) -> None:
        async with looking(cluster.uri) as context:
            await until_auditor(context, expected)
            loss.kill()
            await loss.heal(context)

    with about_to_lose(cluster, peers, victim) as loss, ExitStack() as stack:
        half = "auditor" if auditor == "apache" else "worker"
        ours = {"quire_auditorEnabled": auditor == "ours"}
        ours["quire_replicationWorkerEnabled"] = auditor == "apache"
        stack.enter_context(java_half(tmp_path / "java", cluster.uri, half))
        process = stack.enter_context(healer(tmp_path / "ours", cluster.uri, "ours", **ours))
        trio.run(heal, loss, "java-auditor:1" if auditor == "apache" else None)
        assert_quiet(process.log)


@pytest.mark.parametrize(
    ("first", "victim"),
    [
        pytest.param(
            "apache", THEIR_BOOKIE,
            marks=pytest.mark.cell(OFFICE, TAKE_OVER, "Apache's was elected"),
        ),
        pytest.param(
            "ours", OUR_BOOKIE,
            marks=pytest.mark.cell(OFFICE, TAKE_OVER, "ours was elected", full=True),
        ),
    ],
)  # fmt: skip
def test_the_other_make_takes_office_when_the_auditor_is_killed(
    own_cluster: OwnCluster, peers: Peers, tmp_path: Path, first: str, victim: int
) -> None:
    """Both daemons run whole; the one in office dies together with a bookie."""
    cluster = own_cluster("healed-mixed", MIXED)
    second = "ours" if first == "apache" else "apache"

    with about_to_lose(cluster, peers, victim) as loss, ExitStack() as stack:
        elected = stack.enter_context(healer(tmp_path / first, cluster.uri, first))

        async def heal() -> None:
            async with looking(cluster.uri) as context:
                dead = await until_auditor(context, None)
                stack.enter_context(healer(tmp_path / second, cluster.uri, second))
                await until_votes(context, 2)
                os.kill(elected.pid, signal.SIGKILL)
                loss.kill()
                await until_auditor(context, None, other=dead)
                await loss.heal(context)

        trio.run(heal)


async def until_votes(context: RecoveryContext, count: int) -> None:
    path = f"{context.cluster.root}/underreplication/auditorelection"
    with trio.fail_after(PATIENCE_SECONDS):
        while len((await context.store.children(path))[0]) < count:  # noqa: ASYNC110
            await trio.sleep(0.1)


def assert_quiet(log: Path) -> None:
    text = log.read_text()
    assert "Traceback" not in text, log
    assert " ERROR " not in text, log
