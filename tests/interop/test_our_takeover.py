"""Fencing and recovery by our client, and Apache's bookies that die under it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.peers.cluster import PeerCluster
from bench.peers.process import PeerBookie
from ledger_client import FencedError, LedgerClosedError, UnreadableEntryError
from ledger_client.sync import LedgerClient, LedgerWriter
from tests.interop.conftest import MakeClient
from tests.interop.java_client import THREE, Shape, entries_of, eventually
from tests.interop.selection import SHAPES
from tests.interop.test_our_client import create, payloads, read_all

row = pytest.mark.row


@pytest.fixture
def ours(cluster: PeerCluster) -> Iterator[LedgerClient]:
    """One for each test: a client avoids for a while a bookie that it has seen fail."""
    with LedgerClient(cluster.uri) as client:
        yield client


@pytest.fixture
def second(cluster: PeerCluster) -> Iterator[LedgerClient]:
    """Another client of ours, with connections of its own: it takes over."""
    with LedgerClient(cluster.uri) as client:
        yield client


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@row("fence and recover under an open writer; its late add is refused", older=True)
def test_recovery_stops_the_writer(ours: LedgerClient, second: LedgerClient, shape: Shape) -> None:
    writer = create(ours, shape)
    writer.append_many(payloads(50))
    assert read_all(second, writer.id) == payloads(50)
    with pytest.raises(FencedError):
        writer.append(b"late")
    assert second.metadata(writer.id).length == 50 * 20
    assert read_all(ours, writer.id) == payloads(50)


@row("recover an empty ledger")
def test_ledger_without_entries_is_recovered(ours: LedgerClient, second: LedgerClient) -> None:
    writer = create(ours)
    assert read_all(second, writer.id) == []
    with pytest.raises(FencedError):
        writer.append(b"late")


@row("recover what reached one bookie of three only")
def test_recovery_keeps_what_it_finds(ours: LedgerClient, cluster: PeerCluster) -> None:
    """An entry that was never confirmed may be kept or not; those before it must be."""
    writer = create(ours, Shape(3, 3, 2))
    writer.append_many(payloads(10))
    pending = [writer.submit(b"maybe") for _ in range(100)]
    kept = read_all(ours, writer.id)
    confirmed = [future.result() for future in pending if future.exception() is None]
    assert kept[:10] == payloads(10)
    assert set(kept[10:]) <= {b"maybe"}
    assert len(kept) >= 10 + len(confirmed)


def writer_on(client: LedgerClient, bookie: PeerBookie, shape: Shape = THREE) -> LedgerWriter:
    """A ledger whose ensemble has this bookie; where ledgers go is the client's choice."""
    for _ in range(50):
        writer = create(client, shape)
        if bookie.bookie_id in writer.metadata.fragments[0].ensemble:
            return writer
        writer.close()
    raise AssertionError(f"fifty ledgers avoid {bookie.bookie_id}")


def revive(bookie: PeerBookie, *clients: LedgerClient) -> None:
    bookie.start()
    eventually(
        lambda: all(bookie.bookie_id in client.bookies().writable for client in clients),
        "the restarted bookie is listed",
    )


def is_readable(client: LedgerClient, ledger_id: int) -> bool:
    """A bookie may be listed by a session that its kill has outlived, or not be dialled again yet:
    after failures the next attempt waits for up to ten seconds."""
    try:
        return bool(read_all(client, ledger_id))
    except UnreadableEntryError:
        return False


@row("kill -9 of a bookie under writes: ensemble change; restart; nothing lost", older=True)
def test_killed_bookie_is_replaced(
    ours: LedgerClient, second: LedgerClient, make_client: MakeClient, cluster: PeerCluster
) -> None:
    victim = cluster.bookies[0]
    alone = writer_on(ours, victim, Shape(1, 1, 1))
    alone.append_many(payloads(20))
    alone.close()
    writer = writer_on(ours, victim)
    writer.append_many(payloads(100)[:50])

    victim.kill()
    assert list(writer.append_many(payloads(100)[50:])) == list(range(50, 100))
    first, latest = writer.metadata.fragments
    assert victim.bookie_id in first.ensemble
    # Entries that the other two confirmed before the failure was noticed stay in the first.
    assert 50 <= latest.first_entry_id < 100
    assert victim.bookie_id not in latest.ensemble
    writer.close()
    assert read_all(second, writer.id) == payloads(100)

    revive(victim, ours, second)
    # The only copy is on the bookie that was killed.
    eventually(lambda: is_readable(second, alone.id), "the restarted bookie is connected again")
    assert read_all(second, alone.id) == payloads(20)
    java = make_client("admin", wire="v3")
    assert entries_of(java.open(writer.id).readEntries(0, 99)) == payloads(100)
    assert set(java.stored(victim.bookie_id, writer.id)) <= set(range(50))


@row("recovery of an open ledger while one of its bookies is dead", older=True)
def test_open_ledger_is_recovered_without_one_bookie(
    ours: LedgerClient, second: LedgerClient, cluster: PeerCluster
) -> None:
    victim = cluster.bookies[0]
    writer = writer_on(ours, victim)
    writer.append_many(payloads(50))
    victim.kill()
    assert read_all(second, writer.id) == payloads(50)
    # Whoever is first tells it: a fenced bookie, or the record that it wants to change.
    with pytest.raises((FencedError, LedgerClosedError)):
        writer.append(b"late")
    revive(victim, ours, second)


@row("fence outlives a restart of the bookies")
def test_fence_outlives_a_kill(
    ours: LedgerClient, second: LedgerClient, cluster: PeerCluster
) -> None:
    bookie = cluster.bookies[0]
    writer = writer_on(ours, bookie, Shape(1, 1, 1))
    writer.append_many(payloads(5))
    assert read_all(second, writer.id) == payloads(5)
    bookie.kill()
    revive(bookie, ours, second)
    with pytest.raises(FencedError):
        writer.append(b"late")
    assert read_all(second, writer.id) == payloads(5)


@row("bookie turned read-only: listed so, read from, left by its writers")
def test_read_only_bookie_serves_readers(
    ours: LedgerClient, second: LedgerClient, cluster: PeerCluster
) -> None:
    bookie = cluster.bookies[0]
    alone = writer_on(ours, bookie, Shape(1, 1, 1))
    alone.append_many(payloads(20))
    alone.close()
    writer = writer_on(ours, bookie)
    writer.append_many(payloads(20)[:10])

    bookie.stop()
    bookie.start(forceReadOnlyBookie="true")
    for client in (ours, second):
        eventually(
            lambda client=client: client.bookies().read_only == {bookie.bookie_id},  # type: ignore[misc]
            "listed as read-only",
        )

    def is_served() -> bool:
        """Apache's bookie registers before it listens."""
        try:
            return read_all(second, alone.id) == payloads(20)
        except UnreadableEntryError:
            return False

    eventually(is_served, "read from the read-only bookie")
    # A refusal that comes after the quorum has confirmed the entry is acted upon by the next one.
    written = payloads(10)

    def is_left() -> bool:
        written.append(b"%d" % writer.append(b"%d" % len(written)))
        return bookie.bookie_id not in writer.metadata.fragments[-1].ensemble

    eventually(is_left, "the writer has left the read-only bookie")
    writer.close()
    assert read_all(second, writer.id) == written

    bookie.stop()
    revive(bookie, ours, second)
