"""A live cluster of Apache's bookies becomes one of ours, bookie by bookie, under load.

For each one: a bookie of ours joins, Apache's is stopped, and our shell decommissions it while our
autorecovery restores its copies. Writers of both clients never stop and never fail. At the end
every entry that was confirmed is there, in every copy, and no bookie of Apache's is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import trio

from autorecovery.context import RecoveryContext
from bench.peers.cluster import PeerCluster, bookies_on
from bench.peers.jars import NEWEST
from ledger_client.sync import LedgerClient
from runtime.local_zookeeper import LocalZookeeper
from tests.interop.conftest import Peers, makers
from tests.interop.healing import (
    PATIENCE_SECONDS,
    Written,
    check_copies,
    healer,
    looking,
    until_auditor,
    until_gone,
)
from tests.interop.java_client import PASSWORD, JavaClient, entries_of
from tests.interop.table import APACHE, OURS
from tests.quire.commands import quire

BOOKIES: Final = 3
#: A ledger gets so many entries, then the next one is begun.
ENTRIES: Final = 60
#: Between two entries: the load is there to be disturbed, and not to be measured.
PAUSE_SECONDS: Final = 0.02


@dataclass
class Load:
    """Somebody who writes ledger after ledger until told to stop; what was confirmed."""

    write: Callable[[Load], None]  # one ledger
    is_over: threading.Event = field(default_factory=threading.Event)
    confirmed: dict[int, list[bytes]] = field(default_factory=dict)
    failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self.write(self)
        except BaseException as error:
            self.failure = error

    @property
    def count(self) -> int:
        return sum(map(len, list(self.confirmed.values())))

    def until_more(self) -> None:
        """It goes on: entries are confirmed after now that were not begun before."""
        wanted = self.count + ENTRIES
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.count < wanted:
            assert self.failure is None, f"a writer failed: {self.failure!r}"
            assert time.monotonic() < deadline, "a writer hangs"
            time.sleep(0.05)


@contextmanager
def running(load: Load) -> Iterator[Load]:
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.is_over.set()
        thread.join()
    assert load.failure is None, f"a writer failed: {load.failure!r}"


def payload(number: int) -> bytes:
    return b"entry-%d-" % number * (1 + number % 50)


def ours(client: LedgerClient) -> Callable[[Load], None]:
    def write(load: Load) -> None:
        with client.create(
            ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD
        ) as ledger:
            confirmed = load.confirmed[ledger.id] = []
            for number in range(ENTRIES):
                ledger.append(payload(number))
                confirmed.append(payload(number))
                time.sleep(PAUSE_SECONDS)

    return write


def javas(client: JavaClient) -> Callable[[Load], None]:
    def write(load: Load) -> None:
        handle = client.create()
        confirmed = load.confirmed[int(handle.getId())] = []
        for number in range(ENTRIES):
            assert handle.addEntry(payload(number)) == number
            confirmed.append(payload(number))
            time.sleep(PAUSE_SECONDS)
        handle.close()

    return write


@pytest.mark.cell(
    "Rolling replacement",
    "every bookie of a live cluster, one by one, decommissioned by our shell; nothing lost",
    "Apache's (4.18.0) by ours, under load by both clients",
)
def test_live_cluster_of_apaches_is_replaced_by_ours(
    folder: Path, zookeeper: LocalZookeeper, peers: Peers
) -> None:
    uri = f"zk+hierarchical://{zookeeper.address}/rolling"
    java_peer = peers(NEWEST)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            bookies_on(folder / "rolling", uri, makers(APACHE, NEWEST)[:BOOKIES])
        )
        process = stack.enter_context(healer(folder / "rolling" / "healer", uri, "ours"))
        client = stack.enter_context(LedgerClient(uri))
        java = JavaClient(java_peer, uri, v2=False, settings={})
        stack.callback(java.close)
        with running(Load(ours(client))) as mine, running(Load(javas(java))) as theirs:
            for number in range(BOOKIES):
                mine.until_more()
                theirs.until_more()
                replace(cluster, number)
            mine.until_more()
            theirs.until_more()
        assert len(mine.confirmed) > BOOKIES
        assert len(theirs.confirmed) > BOOKIES
        for ledger_id, entries in mine.confirmed.items():  # each client reads the other's
            handle = java.open(ledger_id)
            assert entries_of(handle.readEntries(0, len(entries) - 1)) == entries
        for ledger_id, entries in theirs.confirmed.items():
            with client.open(ledger_id, password=PASSWORD) as reader:
                assert [entry.payload for entry in reader.read(0, len(entries) - 1)] == entries
        trio.run(check_the_rest, cluster, Written(mine.confirmed | theirs.confirmed))
        text = process.log.read_text()
        assert "Traceback" not in text
        assert " ERROR " not in text
        complaints = [line for bookie in cluster.bookies for line in bookie.new_alarms()]
        assert not complaints, "\n".join(complaints)


def replace(cluster: PeerCluster, number: int) -> None:
    """Ours joins, Apache's leaves."""
    ours_too = makers(OURS, NEWEST)[0](
        cluster.bookies[number].folder.with_name(f"ours-{number}"), cluster.uri
    )
    cluster.bookies.append(ours_too)  # stopped with the others
    ours_too.start()
    leaving = cluster.bookies[number]
    leaving.stop()

    async def wait() -> None:
        async with looking(cluster.uri) as context:
            await until_gone(context, leaving.bookie_id)
            await until_auditor(context, None)

    trio.run(wait)
    found = quire(
        "shell", "--uri", cluster.uri, "decommissionbookie", "-bookieid", leaving.bookie_id, "--yes"
    )
    assert found.code == 0, found.err
    assert "Cookie of the decommissioned bookie: is deleted" in found.out


async def check_the_rest(cluster: PeerCluster, written: Written) -> None:
    async with looking(cluster.uri) as context:
        ours_only = {bookie.bookie_id for bookie in cluster.bookies if bookie.is_ours}
        assert set(context.client.bookies().all) == ours_only
        assert set(await context.cookies.bookies()) == ours_only
        await _until_unmarked(context)
        assert await check_copies(context, written) == 3 * sum(map(len, written.entries.values()))


async def _until_unmarked(context: RecoveryContext) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while await context.marks.marked():  # noqa: ASYNC110
            await trio.sleep(0.1)
