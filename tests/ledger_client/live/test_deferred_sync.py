"""Entries that are acknowledged before they are synced, and the force that makes them last."""

from __future__ import annotations

import pytest
import trio

from ledger_client import BookieFailedError, LedgerClient, sync
from ledger_client.pool import Pool
from ledger_client.requests import Adds, Request
from metadata.model import LedgerState
from metadata.service_info import BookieServiceInfo
from tests.ledger_client.live.cluster import LiveCluster
from wire.types import BookieId

PAYLOADS = [b"%d" % i for i in range(500)]


async def payloads_of(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    return [entry.payload async for entry in reader.read(0, reader.last_confirmed)]


async def test_force_moves_the_last_confirmed_entry(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(ensemble_size=4, deferred_sync=True) as ledger:
            assert await ledger.append_many(PAYLOADS[:100]) == range(100)
            assert (ledger.last_appended, ledger.last_confirmed) == (99, -1)
            assert await ledger.force() == 99
            assert ledger.last_confirmed == 99
            assert await ledger.force() == 99
            await ledger.append_many(PAYLOADS[100:])
            assert (ledger.last_appended, ledger.last_confirmed) == (499, 99)
        assert ledger.last_confirmed == 499, "a close forces first"
        assert await payloads_of(client, ledger.id) == PAYLOADS
        assert (await client.metadata(ledger.id)).length == sum(map(len, PAYLOADS))


async def test_reader_sees_what_was_forced_and_no_more(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        ledger = await client.create(write_quorum=3, deferred_sync=True)
        await ledger.append_many(PAYLOADS[:10])
        assert await (await client.open_no_recovery(ledger.id)).read_last_confirmed() == -1
        await ledger.force()
        async with await client.tail(ledger.id) as tail:  # the LAC comes by itself, being idle
            seen = [(await anext(tail)).payload for _ in range(10)]
        assert seen == PAYLOADS[:10]
        await ledger.close()


async def test_force_on_an_ordinary_ledger_has_nothing_to_do(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client, await client.create() as ledger:
        await ledger.append_many([b"a", b"b"])
        assert await ledger.force() == 1


async def test_bookie_that_restarted_makes_the_force_fail(cluster: LiveCluster) -> None:
    """F70: the restarted bookie would obey, for entries that it may have lost.

    The handle is told of the lost connection before anything goes on the next one. The ledger is
    left open: closed at its LAC, entries that survived elsewhere would be cut off.
    """
    async with LedgerClient(cluster.uri) as client:
        # All three acknowledge before the kill: an add that is cut off would fail the handle first.
        ledger = await client.create(write_quorum=3, ack_quorum=3, deferred_sync=True)
        await ledger.append_many(PAYLOADS[:50])
        await ledger.force()
        await ledger.append_many(PAYLOADS[50:100])
        victim = cluster.bookies[ledger.metadata.last_fragment.ensemble[0]]
        await trio.to_thread.run_sync(victim.kill)
        await trio.to_thread.run_sync(victim.start)
        with pytest.raises(BookieFailedError, match="not forced"):
            await ledger.force()
        assert ledger.last_confirmed == 49
        with pytest.raises(BookieFailedError):
            await ledger.append(b"too late")
        with pytest.raises(BookieFailedError):
            await ledger.close()
        assert (await client.metadata(ledger.id)).state is LedgerState.OPEN
        found = await payloads_of(client, ledger.id)
        assert found == PAYLOADS[: len(found)]
        assert len(found) >= 50


async def test_every_entry_is_sent_as_deferred(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[bool] = []
    ask = Pool.ask

    def spy(pool: Pool, bookie_id: BookieId, request: Request) -> None:
        if isinstance(request, Adds):
            flags.append(request.is_deferred)
        ask(pool, bookie_id, request)

    monkeypatch.setattr(Pool, "ask", spy)
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(write_quorum=3, deferred_sync=True) as ledger:
            await ledger.append(b"x")
        assert flags == [True, True, True]
        async with await client.create(write_quorum=3) as ledger:
            await ledger.append_many([b"x", b"y"])  # one by itself is sent in copies
        assert flags[3:] == [False, False, False]


async def test_force_that_was_cancelled_leaves_the_handle_usable(cluster: LiveCluster) -> None:
    async with (
        LedgerClient(cluster.uri) as client,
        await client.create(deferred_sync=True) as ledger,
    ):
        await ledger.append(b"a")
        with trio.CancelScope() as scope:
            scope.cancel()
            await ledger.force()
        assert scope.cancelled_caught
        await ledger.append(b"b")
        assert await ledger.force() == 1


async def test_bookies_of_other_makes_take_unsynced_entries_too(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of deferred sync hangs on batch frames."""
    monkeypatch.setattr(BookieServiceInfo, "takes_batches", property(lambda _: False))
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(deferred_sync=True) as ledger:
            await ledger.append_many(PAYLOADS)
            assert await ledger.force() == 499
        assert await payloads_of(client, ledger.id) == PAYLOADS


def test_script_forces(cluster: LiveCluster) -> None:
    with sync.LedgerClient(cluster.uri) as client:
        with client.create(deferred_sync=True) as ledger:
            ledger.append(b"a")
            assert (ledger.last_appended, ledger.last_confirmed) == (0, -1)
            assert ledger.force() == 0
        assert client.open(ledger.id).last_confirmed == 0
