"""Fencing and recovery by the Java client, and bookies of ours that die under it."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from bench.peers.cluster import PeerCluster
from bench.peers.process import PeerBookie
from tests.interop.conftest import MakeClient
from tests.interop.java_client import (
    FENCED,
    LEDGER_CLOSED,
    POLL_MS,
    THREE,
    JavaClient,
    Shape,
    entries_of,
    eventually,
    refused,
)
from tests.interop.test_java_client import payloads

row = pytest.mark.row

SHAPES = [THREE, Shape(3, 2, 2), Shape(1, 1, 1), Shape(4, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@row("fence and recover under an open writer; its late add is refused", older=True)
def test_recovery_fences_the_writer(client: JavaClient, other: JavaClient, shape: Shape) -> None:
    writer = client.create(shape)
    client.append_all(writer, payloads(50))
    reader = other.open(writer.getId())
    assert reader.getLastAddConfirmed() == 49
    assert entries_of(reader.readEntries(0, 49)) == payloads(50)
    with refused(FENCED):
        writer.addEntry(b"late")
    again = other.open(writer.getId())
    assert again.getLastAddConfirmed() == 49
    assert again.getLength() == 50 * 20


@row("recover an empty ledger")
def test_empty_ledger_is_recovered(client: JavaClient, other: JavaClient) -> None:
    writer = client.create()
    assert other.open(writer.getId()).getLastAddConfirmed() == -1
    with refused(FENCED):
        writer.addEntry(b"late")


@row("long poll ended by a fence", v2="the client sends a plain read instead")
def test_fence_wakes_a_long_poll(
    client: JavaClient, other: JavaClient, patient: JavaClient
) -> None:
    writer = client.create()
    writer.addEntry(b"0")
    writer.addEntry(b"1")
    reader = patient.follow(writer.getId())
    assert reader.readLastConfirmed() == 0
    waiting = reader.readLastAddConfirmedAndEntryAsync(1, POLL_MS, True)
    assert entries_of(reader.readUnconfirmedEntries(0, 1)) == [b"0", b"1"]  # now it waits
    assert not waiting.isDone()
    assert other.open(writer.getId()).getLastAddConfirmed() == 1
    patient.wait(waiting)
    eventually(lambda: bool(reader.readLastConfirmed() == 1), "the reader learns the final LAC")
    assert entries_of(reader.readEntries(0, 1)) == [b"0", b"1"]


def writer_on(client: JavaClient, bookie: PeerBookie) -> Any:
    """A ledger whose ensemble has this bookie; where ledgers go is the client's choice."""
    for _ in range(50):
        writer = client.create()
        if bookie.bookie_id in client.ensembles(writer)[0]:
            return writer
        writer.close()
    raise AssertionError(f"fifty ledgers avoid {bookie.bookie_id}")


def revive(bookie: PeerBookie, *clients: JavaClient) -> None:
    bookie.start()
    eventually(
        lambda: all(bookie.bookie_id in client.available() for client in clients),
        "the restarted bookie is listed",
    )


@row("kill -9 of a bookie under writes: ensemble change; restart; nothing lost", older=True)
def test_killed_bookie_is_replaced_and_returns(
    client: JavaClient, other: JavaClient, make_client: MakeClient, cluster: PeerCluster
) -> None:
    alone = client.create(Shape(1, 1, 1))
    client.append_all(alone, payloads(20))
    alone.close()
    [[victim_id]] = client.ensembles(alone).values()
    victim = cluster.bookie(victim_id)
    writer = writer_on(client, victim)
    client.append_all(writer, payloads(100)[:50])

    victim.kill()
    assert client.append_all(writer, payloads(100)[50:]) == list(range(50, 100))
    fragments = client.ensembles(writer)
    # Entries that the other two confirmed before the failure was noticed stay in the first.
    first, latest = fragments
    assert first == 0
    assert 50 <= latest < 100
    assert victim_id in fragments[first]
    assert victim_id not in fragments[latest]
    writer.close()
    ledger_id = writer.getId()
    reader = other.open(ledger_id)
    assert entries_of(reader.readEntries(0, 99)) == payloads(100)

    revive(victim, client, other)
    # The only copy is on the bookie that was killed.
    assert entries_of(other.open(alone.getId()).readEntries(0, 19)) == payloads(20)
    admin = make_client("admin", wire="v3")
    assert set(admin.stored(victim_id, ledger_id)) <= set(range(50))


@row("recovery of an open ledger while one of its bookies is dead", older=True)
def test_ledger_is_recovered_without_one_bookie(
    client: JavaClient, other: JavaClient, cluster: PeerCluster
) -> None:
    victim = cluster.bookies[0]
    writer = writer_on(client, victim)
    client.append_all(writer, payloads(50))
    victim.kill()
    ledger_id = writer.getId()
    reader = other.open(ledger_id)
    assert reader.getLastAddConfirmed() == 49
    assert entries_of(reader.readEntries(0, 49)) == payloads(50)
    # Whoever is first tells it: a fenced bookie, or the record that it wants to change.
    with refused(FENCED, LEDGER_CLOSED):
        writer.addEntry(b"late")
    revive(victim, client, other)


@row("fence outlives a restart of the bookies")
def test_fence_outlives_kill_and_restart(
    client: JavaClient, other: JavaClient, cluster: PeerCluster
) -> None:
    writer = client.create(Shape(1, 1, 1))
    client.append_all(writer, payloads(5))
    assert other.open(writer.getId()).getLastAddConfirmed() == 4
    [[bookie_id]] = client.ensembles(writer).values()
    bookie = cluster.bookie(bookie_id)
    bookie.kill()
    revive(bookie, client, other)
    with refused(FENCED):
        writer.addEntry(b"late")
    assert other.open(writer.getId()).getLastAddConfirmed() == 4


def is_readable(client: JavaClient, ledger_id: int) -> bool:
    """The client's own list of bookies follows a while behind ZooKeeper's."""
    try:
        client.open(ledger_id).readEntries(0, 0)
    except Py4JJavaError:
        return False
    return True


@row("bookie turned read-only: listed so, read from, left by its writers")
def test_read_only_bookie_still_serves_readers(
    client: JavaClient, other: JavaClient, cluster: PeerCluster
) -> None:
    alone = client.create(Shape(1, 1, 1))
    client.append_all(alone, payloads(20))
    alone.close()
    [[bookie_id]] = client.ensembles(alone).values()
    bookie = cluster.bookie(bookie_id)
    writer = writer_on(client, bookie)
    client.append_all(writer, payloads(10))

    bookie.stop()
    bookie.start(forceReadOnlyBookie="true")
    eventually(
        lambda: client.read_only() == other.read_only() == {bookie_id}, "listed as read-only"
    )
    eventually(lambda: is_readable(other, alone.getId()), "its readers have found it again")
    assert entries_of(other.open(alone.getId()).readEntries(0, 19)) == payloads(20)
    # A refusal that comes after the quorum has confirmed the entry is acted upon by the next one.
    written = payloads(10)

    def is_left() -> bool:
        written.append(b"%d" % writer.addEntry(b"%d" % len(written)))
        *_, latest = client.ensembles(writer).values()
        return bookie_id not in latest

    eventually(is_left, "the writer has left the read-only bookie")
    writer.close()
    assert entries_of(other.open(writer.getId()).readEntries(0, len(written) - 1)) == written

    bookie.stop()
    revive(bookie, client, other)
    assert client.read_only() == set()
