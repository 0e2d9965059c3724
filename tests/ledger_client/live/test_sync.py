"""The client without `async`, against bookies that are processes of their own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ledger_client import ClientClosedError, InvalidEntryIdError, UnauthorizedError
from ledger_client.sync import LedgerClient
from metadata.cluster import ClusterNotInitialisedError
from tests.ledger_client.live.cluster import LiveCluster


def test_script_writes_and_reads_a_ledger(cluster: LiveCluster) -> None:
    payloads = [b"%d" % i for i in range(2000)]
    with LedgerClient(cluster.uri) as client:
        with client.create(password=b"secret") as ledger:
            assert ledger.append(payloads[0]) == 0
            assert ledger.append_many(payloads[1:]) == range(1, 2000)
        with client.open(ledger.id, password=b"secret") as reader:
            found = [entry.payload for entry in reader.read(0, reader.last_confirmed)]
            assert found == payloads
            with pytest.raises(InvalidEntryIdError):
                reader.read(0, 2000)
        followed = client.tail(ledger.id, password=b"secret", first=1998)
        assert [entry.payload for entry in followed] == payloads[1998:]
        with pytest.raises(UnauthorizedError):
            client.open(ledger.id)
        assert ledger.id in client.list()
        client.delete(ledger.id)
        assert not client.exists(ledger.id)
    with pytest.raises(ClientClosedError):
        client.list()


def test_threads_share_one_handle(cluster: LiveCluster) -> None:
    ids: list[int] = []
    with LedgerClient(cluster.uri) as client:
        with client.create() as ledger:

            def write() -> None:
                ids.extend([ledger.append(b"x") for _ in range(50)])

            threads = [threading.Thread(target=write) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(ids) == list(range(200))
        assert client.metadata(ledger.id).last_entry_id == 199


def test_futures_are_awaitable_in_asyncio(cluster: LiveCluster) -> None:
    with LedgerClient(cluster.uri) as client, client.create() as ledger:

        async def main() -> list[int]:
            futures = [asyncio.wrap_future(ledger.submit(b"x")) for _ in range(10)]
            return list(await asyncio.gather(*futures))

        assert asyncio.run(main()) == list(range(10))


def test_cluster_that_is_not_there_is_an_error_at_once(cluster: LiveCluster) -> None:
    with (
        pytest.raises(ClusterNotInitialisedError, match="initnewcluster"),
        LedgerClient(f"{cluster.uri}-missing"),
    ):
        pass
