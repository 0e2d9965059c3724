"""Apache's Java client writes to and reads from our bookies."""

from __future__ import annotations

import itertools

import pytest

from bench.peers.cluster import PeerCluster
from tests.interop.conftest import BOOKIES, MakeClient
from tests.interop.java_client import (
    NO_SUCH_ENTRY,
    NO_SUCH_LEDGER,
    POLL_MS,
    THREE,
    UNAUTHORIZED,
    JavaClient,
    Shape,
    entries_of,
    eventually,
    refused,
)
from tests.interop.table import Column
from wire.types import FRAME_BYTES_MAX

row = pytest.mark.row

DIGESTS = {"CRC32": 8, "CRC32C": 4, "MAC": 20, "DUMMY": 0}  # and their sizes
SHAPES = [THREE, Shape(3, 2, 2), Shape(1, 1, 1), Shape(4, 3, 2)]
_BATCHES_OVER_V2_ONLY = "the client refuses to batch reads over v3"
_NO_FLAGS_IN_V2 = "the client refuses write flags over v2"


def payloads(count: int, size: int = 20) -> list[bytes]:
    return [f"{number:>{size}}".encode() for number in range(count)]


#: Ids of ledgers for callers that choose them, beyond 32 bits.
chosen_ids = itertools.count(1 << 40)


@pytest.mark.parametrize("digest", DIGESTS)
@row("create, add from 0 bytes to the frame limit, read back; all four digests", older=True)
def test_entries_of_any_size_are_read_back(
    client: JavaClient, other: JavaClient, column: Column, digest: str
) -> None:
    # v2 adds 28 bytes to the body of an entry, in requests and in answers. v3 has no fixed size:
    # a hundred more is beyond any of its headers.
    largest = FRAME_BYTES_MAX - 32 - DIGESTS[digest] - (28 if column.wire == "v2" else 128)
    written = [b"", b"x", b"small \x00\xff", b"m" * (1 << 20), bytes(largest), b"last"]
    writer = client.create(digest=digest)
    assert [writer.addEntry(payload) for payload in written] == list(range(len(written)))
    writer.close()
    reader = other.open(writer.getId(), digest)
    assert reader.getLength() == sum(map(len, written))
    # One at a time: together they are larger than what a test wants to hold in its JVM.
    for number, payload in enumerate(written):
        assert entries_of(reader.readEntries(number, number)) == [payload]
    reader.close()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@row("shapes (3,3,2), (3,2,2), (1,1,1), (4,3,2)")
def test_every_shape_is_written_and_read(
    client: JavaClient, other: JavaClient, make_client: MakeClient, shape: Shape
) -> None:
    written = payloads(100)
    writer = client.create(shape)
    assert client.append_all(writer, written) == list(range(100))
    writer.close()
    reader = other.open(writer.getId())
    assert entries_of(reader.readEntries(0, 99)) == written
    [ensemble] = client.ensembles(writer).values()
    admin = make_client("admin", wire="v3")
    for slot, bookie_id in enumerate(ensemble):
        # The entry's number modulo E is its first bookie, the others follow.
        expected = [n for n in range(100) if (slot - n) % shape.ensemble in range(shape.write)]
        eventually(
            lambda bookie_id=bookie_id, expected=expected: (  # type: ignore[misc]
                admin.stored(bookie_id, writer.getId()) == expected
            ),
            "the bookie holds its stripe of the ledger",
        )


@row("2,000 adds outstanding, read back in one call", older=True)
def test_many_outstanding_adds_are_all_confirmed(client: JavaClient, other: JavaClient) -> None:
    writer = client.create()
    data = bytes(range(256)) * 4
    futures = [writer.appendAsync(data) for _ in range(2000)]
    assert client.wait(futures[-1]) == 1999
    writer.close()
    reader = other.open(writer.getId())
    assert reader.getLastAddConfirmed() == 1999
    assert entries_of(reader.readEntries(0, 1999)) == [data] * 2000


@row("written over one protocol, taken over and read over the other")
def test_either_protocol_reads_what_the_other_wrote(
    client: JavaClient, make_client: MakeClient, column: Column
) -> None:
    crossing = make_client("crossing", wire="v3" if column.wire == "v2" else "v2")
    writer = client.create()
    client.append_all(writer, payloads(20))
    reader = crossing.open(writer.getId())
    assert reader.getLastAddConfirmed() == 19
    assert entries_of(reader.readEntries(0, 19)) == payloads(20)


@row("read past the end")
def test_entry_beyond_the_end_is_not_there(client: JavaClient, other: JavaClient) -> None:
    writer = client.create()
    client.append_all(writer, payloads(3))
    reader = other.follow(writer.getId())
    with refused(NO_SUCH_ENTRY):
        reader.readUnconfirmedEntries(0, 7)
    assert entries_of(reader.readUnconfirmedEntries(0, 2)) == payloads(3)
    writer.close()


@row("open without recovery: last confirmed, unconfirmed reads, tailing", older=True)
def test_reader_without_recovery_follows_the_writer(client: JavaClient, other: JavaClient) -> None:
    writer = client.create()
    reader = other.follow(writer.getId())
    assert reader.readLastConfirmed() == -1
    for last in range(4):
        writer.addEntry(b"%d" % last)
        # An add tells the bookies of the one before it.
        assert reader.readLastConfirmed() == last - 1
        assert reader.tryReadLastConfirmed() == last - 1
        unconfirmed = entries_of(reader.readUnconfirmedEntries(0, last))
        assert unconfirmed == [b"%d" % n for n in range(last + 1)]
    assert entries_of(reader.readEntries(0, 2)) == [b"0", b"1", b"2"]
    assert bytes(reader.readLastEntry().getEntry()) == b"2"
    writer.close()
    eventually(lambda: reader.readLastConfirmed() == 3, "the reader sees the ledger closed")
    assert reader.isClosed()


@row("explicit LAC")
def test_explicit_lac_reaches_the_reader(make_client: MakeClient, other: JavaClient) -> None:
    client = make_client("writer with explicit LAC", explicitLacInterval=50)
    writer = client.create()
    client.append_all(writer, payloads(3))
    reader = other.follow(writer.getId())
    eventually(
        lambda: bool(reader.readExplicitLastConfirmed() == 2), "the explicit LAC is the last entry"
    )
    assert entries_of(reader.readEntries(0, 2)) == payloads(3)
    writer.close()


_NO_LONG_POLL = "the client sends a plain read instead"


@row("long poll: an entry that comes while waiting", v2=_NO_LONG_POLL, older=True)
def test_long_poll_brings_the_next_entry(client: JavaClient, patient: JavaClient) -> None:
    writer = client.create()
    writer.addEntry(b"0")
    writer.addEntry(b"1")
    reader = patient.follow(writer.getId())
    assert reader.readLastConfirmed() == 0
    waiting = reader.readLastAddConfirmedAndEntryAsync(1, POLL_MS, True)
    # Its answer follows the poll on the same connections: by now the poll waits at the bookies.
    assert entries_of(reader.readUnconfirmedEntries(0, 1)) == [b"0", b"1"]
    assert not waiting.isDone()
    writer.addEntry(b"2")
    news = patient.wait(waiting)
    assert news.getLastAddConfirmed() == 1
    assert news.hasEntry()
    assert bytes(news.getEntry().getEntryBytes()) == b"1"
    writer.close()


@row("long poll: time passes and nothing comes", v2=_NO_LONG_POLL)
def test_long_poll_ends_without_news(client: JavaClient, other: JavaClient) -> None:
    writer = client.create()
    writer.addEntry(b"0")
    writer.addEntry(b"1")
    reader = other.follow(writer.getId())
    news = other.wait(reader.readLastAddConfirmedAndEntryAsync(1, 200, False))
    assert not news.hasEntry()
    assert news.getLastAddConfirmed() == 0
    writer.close()


@row("deferred sync: confirmed by force only", v2=_NO_FLAGS_IN_V2)
def test_deferred_adds_are_confirmed_by_force(client: JavaClient, other: JavaClient) -> None:
    writer = client.create_deferred()
    assert client.append_all(writer, payloads(10)) == list(range(10))
    assert writer.getLastAddConfirmed() == -1
    client.wait(writer.force())
    assert writer.getLastAddConfirmed() == 9
    assert writer.append(b"never forced, and so never promised") == 10
    assert writer.getLastAddConfirmed() == 9
    writer.close()
    reader = other.open(writer.getId())
    assert reader.getLastAddConfirmed() == 9
    assert entries_of(reader.readEntries(0, 9)) == payloads(10)


@row("ids chosen by the caller, out of order")
def test_caller_chooses_ids(client: JavaClient, other: JavaClient) -> None:
    ledger_id = next(chosen_ids)
    writer = client.create_adv(ledger_id)
    assert writer.getId() == ledger_id
    futures = {n: writer.writeAsync(n, b"%d" % n) for n in (2, 1, 0)}
    assert {n: client.wait(future) for n, future in futures.items()} == {2: 2, 1: 1, 0: 0}
    assert writer.addEntry(3, b"3") == 3
    writer.close()
    reader = other.open(ledger_id)
    assert entries_of(reader.readEntries(0, 3)) == [b"0", b"1", b"2", b"3"]


@row("batch read, bounded by count and by bytes", v3=_BATCHES_OVER_V2_ONLY)
def test_batch_read_obeys_its_bounds(client: JavaClient, other: JavaClient) -> None:
    written = payloads(50, size=1000)
    writer = client.create()  # E == Qw, or the client would not batch
    client.append_all(writer, written)
    writer.close()
    reader = other.open(writer.getId())
    assert entries_of(reader.batchReadEntries(0, 50, 1 << 20)) == written
    assert entries_of(reader.batchReadEntries(7, 3, 1 << 20)) == written[7:10]
    # An entry takes its 1,000 bytes, 36 around them and 4 for its length.
    assert entries_of(reader.batchReadEntries(0, 50, 36 + 3 * 1040)) == written[:3]
    assert entries_of(reader.batchReadEntries(0, 50, 36 + 4 * 1040 - 1)) == written[:3]
    assert entries_of(reader.batchReadEntries(49, 50, 1 << 20)) == written[49:]
    assert entries_of(reader.batchReadUnconfirmedEntries(40, 50, 1 << 20)) == written[40:]


@row("delete, list")
def test_deleted_ledger_is_not_listed(client: JavaClient, other: JavaClient) -> None:
    kept, deleted = client.create(), client.create()
    for writer in (kept, deleted):
        writer.addEntry(b"x")
        writer.close()
    assert {kept.getId(), deleted.getId()} <= other.ledgers()
    client.keeper.deleteLedger(deleted.getId())
    listed = other.ledgers()
    assert kept.getId() in listed
    assert deleted.getId() not in listed
    with refused(NO_SUCH_LEDGER):
        other.open(deleted.getId())


@row("wrong password: refused by the metadata")
def test_wrong_password_does_not_open(client: JavaClient, other: JavaClient) -> None:
    writer = client.create()
    writer.addEntry(b"x")
    with refused(UNAUTHORIZED):
        other.open(writer.getId(), password=b"wrong")
    assert writer.addEntry(b"not fenced") == 1
    writer.close()


@row("wrong password: refused by the bookies", older=True)
def test_wrong_key_is_refused_by_the_bookies(client: JavaClient) -> None:
    """The bookies know the ledger by its first key, whatever new metadata says."""
    ledger_id, everywhere = next(chosen_ids), Shape(BOOKIES, BOOKIES, 3)
    first = client.create_adv(ledger_id, everywhere)
    first.addEntry(0, b"first")
    first.close()
    client.keeper.deleteLedger(ledger_id)
    second = client.create_adv(ledger_id, everywhere, password=b"another")
    with refused(UNAUTHORIZED):
        second.addEntry(0, b"second")
    client.keeper.deleteLedger(ledger_id)


@row("bookies listed, their disk space told")
def test_bookies_are_listed_with_their_space(client: JavaClient, cluster: PeerCluster) -> None:
    expected = {bookie.bookie_id for bookie in cluster.bookies}
    assert client.available() == expected
    assert client.read_only() == set()
    told = client.keeper.getBookieInfo()
    assert {bookie.toString() for bookie in told.keySet()} == expected
    for bookie in told.keySet():
        info = told[bookie]
        assert 0 < info.getFreeDiskSpace() <= info.getTotalDiskSpace()
