"""Every bad input has its own error, which says what to do; and nothing half-done remains."""

from __future__ import annotations

import logging
import random

import pytest

from ledger_client import (
    BadRequestError,
    CorruptEntryError,
    DigestType,
    EntryTooLargeError,
    FencedError,
    InvalidEntryIdError,
    InvalidLedgerIdError,
    LedgerClient,
    LedgerClosedError,
    LedgerError,
    LedgerExistsError,
    LedgerGoneError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnauthorizedError,
    WrongDigestTypeError,
)
from metadata.cluster import init_new_cluster
from metadata.model import LedgerState
from metadata.uri import InvalidUriError, parse_metadata_uri
from runtime.local_zookeeper import free_port
from tests.ledger_client.live.cluster import LiveCluster
from tests.ledger_client.live.planted import planted
from tests.support.proxy import Proxy
from tests.support.zookeeper import opened_store, shared_zookeeper
from wire.types import FRAME_BYTES_MAX

SECRET = b"secret"


async def ledger_ids(client: LedgerClient) -> list[int]:
    return [ledger_id async for ledger_id in client.list()]


# ---------------------------------------------------------------------- wrong keys


async def test_wrong_password(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(password=SECRET) as ledger:
            await ledger.append(b"x")
        for attempt in (client.open, client.open_no_recovery, client.tail):
            with pytest.raises(UnauthorizedError, match="ask its owner") as caught:
                await attempt(ledger.id, password=b"guess")
            assert caught.value.ledger_id == ledger.id


async def test_wrong_password_does_not_fence(cluster: LiveCluster) -> None:
    async with (
        LedgerClient(cluster.uri) as client,
        await client.create(password=SECRET) as ledger,
    ):
        await ledger.append(b"x")
        with pytest.raises(UnauthorizedError):
            await client.open(ledger.id)
        assert await ledger.append(b"y") == 1


async def test_wrong_digest_type(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(digest_type=DigestType.CRC32) as ledger:
            await ledger.append(b"x")
        await client.open(ledger.id, digest_type=DigestType.CRC32)
        for attempt in (client.open, client.open_no_recovery, client.tail):
            with pytest.raises(WrongDigestTypeError, match="CRC32, not by HMAC") as caught:
                await attempt(ledger.id, digest_type=DigestType.HMAC)
            assert caught.value.ledger_id == ledger.id


# ---------------------------------------------------------------------- ledgers that are not there


async def test_ledger_that_does_not_exist(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        for attempt in (client.open, client.open_no_recovery, client.tail, client.metadata):
            with pytest.raises(LedgerGoneError, match="deleted, or never made") as caught:
                await attempt(999_999)
            assert caught.value.ledger_id == 999_999
        assert not await client.exists(999_999)
        await client.delete(999_999)  # gone is what was wanted


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
async def test_ledger_id_out_of_range(cluster: LiveCluster, ledger_id: int) -> None:
    async with LedgerClient(cluster.uri) as client:
        for attempt in (
            client.open, client.open_no_recovery, client.tail, client.metadata, client.exists,
            client.delete,
        ):  # fmt: skip
            with pytest.raises(InvalidLedgerIdError, match=r"want 0\.\.") as caught:
                await attempt(ledger_id)
            assert caught.value.ledger_id == ledger_id
        with pytest.raises(InvalidLedgerIdError):
            await client.create(ledger_id=ledger_id)


async def test_ledger_id_that_is_taken(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(ledger_id=88_888) as ledger:
            await ledger.append(b"mine")
        with pytest.raises(LedgerExistsError, match="choose another id") as caught:
            await client.create(ledger_id=88_888)
        assert caught.value.ledger_id == 88_888
        reader = await client.open(88_888)
        assert [entry.payload async for entry in reader.read(0, 0)] == [b"mine"]


async def test_ledger_that_is_deleted_while_it_is_written(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        ledger = await client.create()
        await ledger.append(b"x")
        await client.delete(ledger.id)
        with pytest.raises(LedgerGoneError, match="was deleted") as caught:
            await ledger.close()
        assert caught.value.ledger_id == ledger.id
        assert not await client.exists(ledger.id)


async def test_ledger_that_is_deleted_while_it_is_read(cluster: LiveCluster) -> None:
    """Its bookies still have it, or not; if not, the record says why."""
    async with LedgerClient(cluster.uri) as client:
        ledger = await planted(client, [b"x"], bookies=[])
        reader = await client.open(ledger.ledger_id)
        await client.delete(ledger.ledger_id)
        with pytest.raises(LedgerGoneError, match="deleted meanwhile"):
            await reader.read(0, 0).next_batch()


# ---------------------------------------------------------------------- ledgers of somebody else


async def test_append_to_a_closed_handle(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create() as ledger:
            await ledger.append(b"x")
        with pytest.raises(LedgerClosedError, match="closed") as caught:
            await ledger.append(b"y")
        assert caught.value.ledger_id == ledger.id
        await ledger.close()  # again, and well


async def test_append_to_a_fenced_ledger(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client, LedgerClient(cluster.uri) as other:
        ledger = await client.create()
        await ledger.append(b"x")
        reader = await other.open(ledger.id)
        with pytest.raises(FencedError, match="may or may not be in the ledger") as caught:
            await ledger.append(b"y")
        assert caught.value.ledger_id == ledger.id
        assert caught.value.bookie_id in cluster.bookies
        assert reader.metadata.state is LedgerState.CLOSED


# ---------------------------------------------------------------------- impossible wishes


async def test_more_bookies_than_there_are(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        before = await ledger_ids(client)
        with pytest.raises(NotEnoughBookiesError, match="start more of them"):
            await client.create(ensemble_size=5)
        assert await ledger_ids(client) == before


@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 2, 3), (3, 2, 0), (0, 0, 0), (2, 3, 1)])
async def test_shape_that_cannot_be(cluster: LiveCluster, shape: tuple[int, int, int]) -> None:
    async with LedgerClient(cluster.uri) as client:
        with pytest.raises(BadRequestError, match="want ensemble >= write quorum"):
            await client.create(ensemble_size=shape[0], write_quorum=shape[1], ack_quorum=shape[2])


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (1, 0 - 1), (0, 2), (5, 9)])
async def test_entries_out_of_range(cluster: LiveCluster, first: int, last: int) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create() as ledger:
            await ledger.append_many([b"x", b"y"])
        reader = await client.open(ledger.id)
        with pytest.raises(InvalidEntryIdError) as caught:
            reader.read(first, last)
        assert caught.value.ledger_id == ledger.id
        with pytest.raises(InvalidEntryIdError):
            reader.read_unconfirmed(first, last)


async def test_payload_above_the_frame_limit(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client, await client.create() as ledger:
        with pytest.raises(EntryTooLargeError, match="cut it") as caught:
            await ledger.append(bytes(FRAME_BYTES_MAX))
        assert caught.value.ledger_id == ledger.id
        with pytest.raises(EntryTooLargeError):
            await ledger.append_many([b"x", bytes(FRAME_BYTES_MAX)])
        assert await ledger.append(b"y") == 1


@pytest.mark.parametrize("uri", ["ledgers", "etcd://127.0.0.1:2379/x", "zk://127.0.0.1:2181"])
def test_address_that_is_none(uri: str) -> None:
    with pytest.raises(InvalidUriError):
        LedgerClient(uri)


# ---------------------------------------------------------------------- metadata out of reach


async def test_metadata_out_of_reach(cluster: LiveCluster) -> None:
    root = parse_metadata_uri(cluster.uri).root
    async with (
        Proxy(shared_zookeeper().address).running() as proxy,
        LedgerClient(f"zk://{proxy.address}{root}", session_seconds=2.0) as client,
    ):
        async with await client.create() as ledger:
            await ledger.append(b"x")
        reader = await client.open(ledger.id)
        proxy.accepts = False
        proxy.cut()
        with pytest.raises(MetadataUnavailableError, match="bring it back") as caught:
            await client.metadata(ledger.id)
        assert isinstance(caught.value, LedgerError)
        # What needs no record still works.
        assert [entry.payload async for entry in reader.read(0, 0)] == [b"x"]
        proxy.accepts = True


async def test_metadata_that_was_never_there() -> None:
    with pytest.raises(MetadataUnavailableError, match="cannot be opened"):
        async with LedgerClient(f"zk://127.0.0.1:{free_port()}/ledgers", session_seconds=1.0):
            pass


# ---------------------------------------------------------------------- rot


async def test_rotten_copy_is_passed_over_and_reported(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with LedgerClient(cluster.uri, chance=random.Random(1)) as client:
        names = sorted(client.bookies().writable)[:3]
        ledger = await planted(client, [b"x", b"y"], bookies=names, rotten=names[:2])
        with caplog.at_level(logging.WARNING):
            for _ in range(5):  # wherever the first reader begins, the rotten ones have their turn
                reader = await client.open(ledger.ledger_id)
                assert [entry.payload async for entry in reader.read(0, 1)] == [b"x", b"y"]
        statistics = client.statistics()
        assert statistics.corruptions > 0
        named = {copy.bookie_id for copy in statistics.corrupt_copies}
        assert named
        assert named <= set(names[:2])
        assert "fails its digest on bookie" in caplog.text


async def test_entry_that_is_rotten_everywhere(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        names = sorted(client.bookies().writable)[:3]
        ledger = await planted(client, [b"x"], bookies=names, rotten=names)
        reader = await client.open(ledger.ledger_id)
        with pytest.raises(CorruptEntryError, match="have the ledger checked") as caught:
            await reader.read(0, 0).next_batch()
        error = caught.value
        assert (error.ledger_id, error.entry_id) == (ledger.ledger_id, 0)
        assert len(error.__notes__) == 3
        assert all(any(name in note for note in error.__notes__) for name in names)


# ---------------------------------------------------------------------- addresses


async def test_address_as_pulsar_writes_it(cluster: LiveCluster) -> None:
    """There the path is a chroot, and the ledgers are below it."""
    root = f"{parse_metadata_uri(cluster.uri).root}-pulsar"
    address = shared_zookeeper().address
    uri = parse_metadata_uri(f"zk://{address}{root}/ledgers")
    async with opened_store() as store:
        await store.create(root, b"")
        await init_new_cluster(store, uri, chance=random.Random(1))
    for text in (f"metadata-store:zk:{address}{root}", f"metadata-store:{address}{root}"):
        async with LedgerClient(text) as client:
            assert await ledger_ids(client) == []
            assert client.bookies().all == frozenset()
