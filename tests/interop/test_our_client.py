"""Our client writes to and reads from Apache's bookies, alone and in one ensemble with ours."""

from __future__ import annotations

import itertools
import threading

import pytest

from bench.peers.cluster import PeerCluster
from ledger_client import (
    DigestType,
    EntryTooLargeError,
    InvalidEntryIdError,
    LedgerGoneError,
    NoSuchEntryError,
    UnauthorizedError,
)
from ledger_client.core.options import WriterOptions
from ledger_client.sync import LedgerClient, LedgerWriter
from tests.interop.conftest import BOOKIES, MakeClient
from tests.interop.java_client import PASSWORD, THREE, Shape, entries_of, eventually
from tests.interop.selection import SHAPES
from wire.types import FRAME_BYTES_MAX

row = pytest.mark.row

#: Beyond 32 bits, and not those that the Java client's tests choose.
_chosen_ids = itertools.count(1 << 41)


def payloads(count: int, size: int = 20) -> list[bytes]:
    return [f"{number:>{size}}".encode() for number in range(count)]


def create(client: LedgerClient, shape: Shape = THREE, **options: object) -> LedgerWriter:
    return client.create(
        ensemble_size=shape.ensemble,
        write_quorum=shape.write,
        ack_quorum=shape.ack,
        password=PASSWORD,
        **options,  # type: ignore[arg-type]
    )


def read_all(client: LedgerClient, ledger_id: int) -> list[bytes]:
    """Everything in it, after a recovery if it is open."""
    with client.open(ledger_id, password=PASSWORD) as reader:
        return [entry.payload for entry in reader.read(0, reader.last_confirmed)]


@pytest.mark.parametrize("digest", DigestType, ids=lambda digest: digest.name)
@row("create, add from 0 bytes to the frame limit, read back; all four digests", older=True)
def test_entries_of_any_size_come_back(ours: LedgerClient, digest: DigestType) -> None:
    largest = FRAME_BYTES_MAX - 200
    written = [b"", b"x", b"small \x00\xff", b"m" * (1 << 20), bytes(largest), b"last"]
    with create(ours, digest_type=digest) as writer:
        assert [writer.append(payload) for payload in written] == list(range(len(written)))
        with pytest.raises(EntryTooLargeError):
            writer.append(bytes(FRAME_BYTES_MAX))
    with ours.open(writer.id, password=PASSWORD) as reader:
        assert reader.length == sum(map(len, written))
        for entry in reader.read(0, reader.last_confirmed):
            assert entry.payload == written[entry.id]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@row("shapes (3,3,2), (3,2,2), (1,1,1), (4,3,2)")
def test_each_shape_is_striped_as_it_must(
    ours: LedgerClient, make_client: MakeClient, shape: Shape
) -> None:
    with create(ours, shape) as writer:
        assert list(writer.append_many(payloads(100))) == list(range(100))
    assert read_all(ours, writer.id) == payloads(100)
    admin = make_client("admin", wire="v3")
    [fragment] = writer.metadata.fragments
    for slot, bookie_id in enumerate(fragment.ensemble):
        expected = [n for n in range(100) if (slot - n) % shape.ensemble in range(shape.write)]
        eventually(
            lambda bookie_id=bookie_id, expected=expected: (  # type: ignore[misc]
                admin.stored(bookie_id, writer.id) == expected
            ),
            "the bookie holds its stripe of the ledger",
        )


@row("20,000 entries by append_many, and 2,000 single appends outstanding", older=True)
def test_thousands_of_entries_are_confirmed(ours: LedgerClient) -> None:
    data = bytes(range(256)) * 4
    with create(ours) as writer:
        assert writer.append_many([data] * 20_000) == range(20_000)
        futures = [writer.submit(data) for _ in range(2000)]
        assert [future.result() for future in futures] == list(range(20_000, 22_000))
    with ours.open(writer.id, password=PASSWORD) as reader:
        assert reader.last_confirmed == 21_999
        assert all(entry.payload == data for entry in reader.read(0, 21_999))


@row("read past the end")
def test_nothing_is_read_beyond_the_end(ours: LedgerClient) -> None:
    writer = create(ours)
    writer.append_many(payloads(3))
    with ours.open_no_recovery(writer.id, password=PASSWORD) as reader:
        with pytest.raises(InvalidEntryIdError):
            list(reader.read(0, 7))
        with pytest.raises(NoSuchEntryError):
            list(reader.read_unconfirmed(0, 7))
        assert [entry.payload for entry in reader.read_unconfirmed(0, 2)] == payloads(3)
    writer.close()


@row("open without recovery: the LAC that entries carry", older=True)
def test_lac_follows_one_entry_behind(ours: LedgerClient) -> None:
    writer = create(ours, options=WriterOptions(lac_idle_seconds=None))
    reader = ours.open_no_recovery(writer.id, password=PASSWORD)
    assert reader.last_confirmed == -1
    for last in range(4):
        writer.append(b"%d" % last)
        # Of an ensemble of three two have it for sure, and no explicit LAC tells of the last.
        assert reader.read_last_confirmed() == last - 1
        found = [entry.payload for entry in reader.read_unconfirmed(0, last)]
        assert found == [b"%d" % n for n in range(last + 1)]
    assert [entry.payload for entry in reader.read(0, 2)] == [b"0", b"1", b"2"]
    writer.close()


@row("explicit LAC: an idle writer's last entry is seen")
def test_idle_writer_tells_its_lac(ours: LedgerClient) -> None:
    writer = create(ours)
    writer.append_many(payloads(3))
    reader = ours.open_no_recovery(writer.id, password=PASSWORD)
    eventually(lambda: reader.read_last_confirmed() == 2, "the explicit LAC is the last entry")
    assert [entry.payload for entry in reader.read(0, 2)] == payloads(3)
    writer.close()


@row("tail by long poll: entries as they come, and the end", older=True)
def test_tail_brings_every_entry_and_ends(ours: LedgerClient) -> None:
    writer = create(ours)
    writer.append(b"0")
    seen: list[bytes] = []
    has_begun = threading.Event()

    def follow() -> None:
        for entry in ours.tail(writer.id, password=PASSWORD):
            seen.append(entry.payload)
            has_begun.set()

    follower = threading.Thread(target=follow)
    follower.start()
    assert has_begun.wait(30)
    for number in range(1, 10):
        writer.append(b"%d" % number)
        eventually(lambda number=number: len(seen) == number + 1, "it is tailed")  # type: ignore[misc]
    writer.close()
    follower.join(30)
    assert not follower.is_alive()
    assert seen == [b"%d" % number for number in range(10)]


@row("tail ended by a recovery")
def test_tail_ends_when_another_client_recovers(ours: LedgerClient) -> None:
    writer = create(ours)
    writer.append_many(payloads(5))
    tail = ours.tail(writer.id, password=PASSWORD)
    seen = [next(tail).payload for _ in range(5)]
    assert read_all(ours, writer.id) == payloads(5)
    assert seen + [entry.payload for entry in tail] == payloads(5)


@row("many entries read ahead in one go")
def test_long_range_is_read_in_order(ours: LedgerClient) -> None:
    written = payloads(3000, size=3000)
    with create(ours) as writer:
        writer.append_many(written)
    with ours.open(writer.id, password=PASSWORD) as reader:
        assert [entry.payload for entry in reader.read(0, 2999)] == written
        assert [entry.payload for entry in reader.read(7, 9)] == written[7:10]


@row("delete, list")
def test_deleted_ledger_is_gone(ours: LedgerClient, make_client: MakeClient) -> None:
    java = make_client("admin", wire="v3")
    kept, deleted = create(ours), create(ours)
    for writer in (kept, deleted):
        writer.append(b"x")
        writer.close()
    assert {kept.id, deleted.id} <= set(ours.list()) & java.ledgers()
    ours.delete(deleted.id)
    assert deleted.id not in ours.list()
    assert deleted.id not in java.ledgers()
    assert kept.id in ours.list()
    with pytest.raises(LedgerGoneError):
        ours.open(deleted.id, password=PASSWORD)


@row("wrong password: refused by the metadata")
def test_wrong_password_opens_nothing(ours: LedgerClient) -> None:
    writer = create(ours)
    writer.append(b"x")
    with pytest.raises(UnauthorizedError):
        ours.open(writer.id, password=b"wrong")
    assert writer.append(b"not fenced") == 1
    writer.close()


@row("wrong password: refused by the bookies", older=True)
def test_wrong_key_is_refused_by_every_bookie(ours: LedgerClient) -> None:
    """The bookies know the ledger by its first key, whatever new metadata says."""
    ledger_id, shape = next(_chosen_ids), Shape(BOOKIES, BOOKIES, 3)
    with create(ours, shape, ledger_id=ledger_id) as first:
        first.append(b"first")
    ours.delete(ledger_id)
    second = ours.create(
        ensemble_size=BOOKIES,
        write_quorum=BOOKIES,
        ack_quorum=3,
        password=b"another",
        ledger_id=ledger_id,
    )
    with pytest.raises(UnauthorizedError):
        second.append(b"second")
    ours.delete(ledger_id)


@row("bookies listed, their disk space told")
def test_bookies_are_known(ours: LedgerClient, cluster: PeerCluster) -> None:
    expected = {bookie.bookie_id for bookie in cluster.bookies}
    eventually(lambda: ours.bookies().writable == expected, "all are listed")
    for bookie_id in expected:
        space = ours.bookie_info(bookie_id)
        assert 0 < space.free_bytes <= space.total_bytes


@row("deferred sync: confirmed by force only", older=True)
def test_deferred_appends_are_confirmed_by_force(
    ours: LedgerClient, make_client: MakeClient
) -> None:
    writer = create(ours, options=WriterOptions(deferred_sync=True))
    assert list(writer.append_many(payloads(10))) == list(range(10))
    assert writer.last_confirmed == -1
    assert writer.force() == 9
    assert writer.last_confirmed == 9
    writer.close()
    java = make_client("admin", wire="v3")
    assert entries_of(java.open(writer.id).readEntries(0, 9)) == payloads(10)
    assert read_all(ours, writer.id) == payloads(10)


@row("ids chosen by the caller, out of order")
def test_caller_may_choose_ids(ours: LedgerClient, make_client: MakeClient) -> None:
    ledger_id = next(_chosen_ids)
    writer = create(ours, ledger_id=ledger_id, given_entry_ids=True)
    assert writer.id == ledger_id
    futures = [writer.submit(b"%d" % n, entry_id=n) for n in (2, 1, 0)]
    assert [future.result() for future in futures] == [2, 1, 0]
    assert writer.append(b"3", entry_id=3) == 3
    writer.close()
    java = make_client("admin", wire="v3")
    assert entries_of(java.open(ledger_id).readEntries(0, 3)) == [b"0", b"1", b"2", b"3"]
    assert read_all(ours, ledger_id) == [b"0", b"1", b"2", b"3"]
