"""Entry ids that the caller chooses."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ledger_client import (
    DuplicateEntryIdError,
    InvalidEntryIdError,
    LedgerClient,
    LedgerClosedError,
    WriterOptions,
    sync,
)
from tests.ledger_client.live.cluster import LiveCluster
from wire.types import ID_MAX


def payload_of(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


async def payloads_of(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    return [entry.payload async for entry in reader.read(0, reader.last_confirmed)]


async def test_entries_given_in_any_order_are_read_in_theirs(cluster: LiveCluster) -> None:
    order = [3, 2, 0, 1, 9, 8, 7, 4, 5, 6]
    async with LedgerClient(cluster.uri) as client:
        async with (
            await client.create(ensemble_size=4, given_entry_ids=True) as ledger,
            trio.open_nursery() as nursery,
        ):
            for entry_id in order:

                async def append(entry_id: int = entry_id) -> None:
                    found = await ledger.append(payload_of(entry_id), entry_id=entry_id)
                    assert found == entry_id

                nursery.start_soon(append)
                await trio.lowlevel.checkpoint()
        assert await payloads_of(client, ledger.id) == [payload_of(i) for i in range(10)]


async def test_gap_holds_back_what_is_behind_it_until_it_is_filled(cluster: LiveCluster) -> None:
    ended: list[int] = []
    async with LedgerClient(cluster.uri) as client, trio.open_nursery() as nursery:
        ledger = await client.create(given_entry_ids=True)

        async def append(entry_id: int) -> None:
            ended.append(await ledger.append(payload_of(entry_id), entry_id=entry_id))

        await append(0)
        nursery.start_soon(append, 2)
        nursery.start_soon(append, 3)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert ended == [0]
        await append(1)
        await ledger.close()
        assert sorted(ended) == [0, 1, 2, 3]


async def test_duplicate_ids_are_refused_and_harm_nothing(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(given_entry_ids=True) as ledger:
            assert await ledger.append_many(
                [payload_of(i) for i in range(5)], entry_ids=range(5)
            ) == range(5)
            for entry_id in (0, 4):
                with pytest.raises(DuplicateEntryIdError, match="choose another id") as caught:
                    await ledger.append(b"again", entry_id=entry_id)
                assert (caught.value.ledger_id, caught.value.entry_id) == (ledger.id, entry_id)
            waiting = ledger.put(payload_of(6), entry_id=6)
            with pytest.raises(DuplicateEntryIdError):
                ledger.put(b"again", entry_id=6)
            await ledger.append(payload_of(5), entry_id=5)
            assert await waiting() == 6
        assert await payloads_of(client, ledger.id) == [payload_of(i) for i in range(7)]


async def test_close_ends_before_the_gap(cluster: LiveCluster) -> None:
    """F50: ids 1, 0, 3, then close: the ledger ends at 1 and the append of 3 fails."""
    async with LedgerClient(cluster.uri) as client:
        ledger = await client.create(given_entry_ids=True)
        waits = [ledger.put(payload_of(entry_id), entry_id=entry_id) for entry_id in (1, 0, 3)]
        assert [await wait() for wait in waits[:2]] == [1, 0]
        with trio.fail_after(30):
            await ledger.close()
        with pytest.raises(LedgerClosedError, match="entry 2 was still missing"):
            await waits[2]()
        assert await payloads_of(client, ledger.id) == [payload_of(0), payload_of(1)]


async def test_entry_that_fills_a_gap_gets_through_a_full_queue(cluster: LiveCluster) -> None:
    """Everything behind the gap holds its room until the gap is filled: the filler may not wait."""
    options = WriterOptions(queue_entries_max=4)
    payload = bytes(1 << 20)
    async with (
        LedgerClient(cluster.uri) as client,
        await client.create(given_entry_ids=True, options=options) as ledger,
    ):

        async def append(entry_id: int) -> None:
            await ledger.append(payload, entry_id=entry_id)

        async with trio.open_nursery() as nursery:
            for entry_id in range(20, 0, -1):
                nursery.start_soon(append, entry_id)
            await trio.testing.wait_all_tasks_blocked(0.05)
            with trio.fail_after(30):
                await append(0)
        assert ledger.last_confirmed == 20


async def test_entry_that_comes_to_fill_the_gap_while_it_waits_is_let_in(
    cluster: LiveCluster,
) -> None:
    """9 waits for room while 8 is held; then 8 is confirmed, and 9 is what all others wait for."""
    options = WriterOptions(queue_entries_max=4)
    payload = bytes(1 << 20)
    async with (
        LedgerClient(cluster.uri) as client,
        await client.create(given_entry_ids=True, options=options) as ledger,
    ):

        async def append(entry_id: int) -> None:
            await ledger.append(payload, entry_id=entry_id)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for entry_id in (11, 12, 13, 14, 15, 16, 17, 18, 8, 9, 10, *range(8)):
                    nursery.start_soon(append, entry_id)
                    await trio.testing.wait_all_tasks_blocked(0.02)
        assert ledger.last_confirmed == 18


async def test_close_does_not_wait_for_a_gap_behind_which_the_queue_is_full(
    cluster: LiveCluster,
) -> None:
    async with LedgerClient(cluster.uri) as client:
        options = WriterOptions(queue_entries_max=4)
        ledger = await client.create(given_entry_ids=True, options=options)
        waits = [ledger.put(b"x", entry_id=entry_id) for entry_id in range(40, 0, -2)]
        with trio.fail_after(30):
            await ledger.close()
        for wait in waits:
            with pytest.raises(LedgerClosedError):
                await wait()
        assert (await client.metadata(ledger.id)).last_entry_id == -1


async def test_ids_and_handles_must_fit_each_other(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create() as ledger:
            with pytest.raises(InvalidEntryIdError, match="given_entry_ids"):
                await ledger.append(b"x", entry_id=0)
        async with await client.create(given_entry_ids=True) as ledger:
            with pytest.raises(InvalidEntryIdError, match="must name"):
                await ledger.append(b"x")
            with pytest.raises(InvalidEntryIdError, match="must name"):
                await ledger.append_many([b"x", b"y"], entry_ids=[0])
            for entry_id in (-1, ID_MAX + 1):
                with pytest.raises(InvalidEntryIdError, match="outside"):
                    await ledger.append(b"x", entry_id=entry_id)


async def test_unsynced_entries_may_have_given_ids(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(given_entry_ids=True, deferred_sync=True) as ledger:
            await ledger.append_many([payload_of(0), payload_of(1)], entry_ids=[0, 1])
            with pytest.raises(DuplicateEntryIdError):
                await ledger.append(b"again", entry_id=1)  # above the LAC, and taken all the same
            assert await ledger.force() == 1
        assert await payloads_of(client, ledger.id) == [payload_of(0), payload_of(1)]


def test_script_chooses_ids(cluster: LiveCluster) -> None:
    with sync.LedgerClient(cluster.uri) as client:
        with client.create(given_entry_ids=True) as ledger:
            later = ledger.submit(b"b", entry_id=1)
            assert ledger.append(b"a", entry_id=0) == 0
            assert later.result() == 1
            assert ledger.append_many([b"c", b"d"], entry_ids=[2, 3]) == range(2, 4)
        assert client.metadata(ledger.id).last_entry_id == 3
