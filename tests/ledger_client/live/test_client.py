"""The whole client against bookies that are processes of their own."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio

from ledger_client import (
    ClientClosedError,
    DigestType,
    EntryTooLargeError,
    FencedError,
    InvalidEntryIdError,
    LedgerClient,
    LedgerClosedError,
    LedgerExistsError,
    LedgerGoneError,
    LedgerReader,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from metadata.model import LedgerState
from metadata.service_info import BookieServiceInfo
from tests.ledger_client.live.cluster import LiveCluster
from wire.types import FRAME_BYTES_MAX

PASSWORD = b"secret"


def payload_of(entry_id: int) -> bytes:
    return b"%d " % entry_id * (entry_id % 50)


async def payloads_in(reader: LedgerReader) -> list[bytes]:
    entries = [entry async for entry in reader.read(0, reader.last_confirmed)]
    assert [entry.id for entry in entries] == list(range(len(entries)))
    return [entry.payload for entry in entries]


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_ledger_is_read_as_it_was_written(
    cluster: LiveCluster, digest_type: DigestType
) -> None:
    payloads = [payload_of(i) for i in range(3000)]
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            password=PASSWORD,
            digest_type=digest_type,
            custom_metadata={"application": b"test"},
        ) as ledger:
            assert await ledger.append(payloads[0]) == 0
            assert await ledger.append_many(payloads[1:]) == range(1, 3000)
            assert ledger.last_confirmed == 2999
        reader = await client.open(ledger.id, password=PASSWORD)
        assert reader.is_closed
        assert reader.length == sum(map(len, payloads))
        assert reader.metadata.custom == (("application", b"test"),)
        assert await payloads_in(reader) == payloads


@pytest.mark.parametrize(("ensemble_size", "write_quorum", "ack_quorum"), [(4, 2, 2), (3, 2, 1)])
async def test_striped_ledger_is_read_in_order(
    cluster: LiveCluster, ensemble_size: int, write_quorum: int, ack_quorum: int
) -> None:
    payloads = [payload_of(i) for i in range(1000)]
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
        ) as ledger:
            await ledger.append_many(payloads)
        async with await client.open(ledger.id) as reader:
            assert await payloads_in(reader) == payloads
            middle = [entry.payload async for entry in reader.read(501, 503)]
            assert middle == payloads[501:504]


async def test_bookies_that_take_no_batches_are_served_entry_by_entry(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BookieServiceInfo, "takes_batches", property(lambda _: False))
    payloads = [payload_of(i) for i in range(1000)]
    async with LedgerClient(cluster.uri) as client:
        ledger = await client.create(ensemble_size=4, write_quorum=3, ack_quorum=2)
        assert await ledger.append_many(payloads) == range(1000)
    async with LedgerClient(cluster.uri) as client:
        reader = await client.open(ledger.id)
        assert await payloads_in(reader) == payloads


async def test_appends_of_many_tasks_get_ids_without_gaps(cluster: LiveCluster) -> None:
    written: dict[int, bytes] = {}
    async with LedgerClient(cluster.uri) as client:
        async with await client.create() as ledger:

            async def append(number: int) -> None:
                for i in range(20):
                    payload = b"%d-%d" % (number, i)
                    written[await ledger.append(payload)] = payload

            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(append, number)
        reader = await client.open(ledger.id)
        assert await payloads_in(reader) == [written[i] for i in range(1000)]


async def test_append_that_was_cancelled_leaves_the_handle_usable(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create() as ledger:
            with trio.CancelScope() as scope:
                scope.cancel()
                await ledger.append(b"never sent")
            await ledger.append(b"first")
            with trio.move_on_after(0):
                await ledger.append_many([b"x"] * 1000)
            last = await ledger.append(b"last")
        reader = await client.open(ledger.id)
        payloads = await payloads_in(reader)
        assert payloads[last] == b"last"
        assert b"first" in payloads


async def test_empty_ledger_has_no_entries(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create() as ledger:
            pass
        reader = await client.open(ledger.id)
        assert reader.last_confirmed == -1
        assert await payloads_in(reader) == []
        with pytest.raises(InvalidEntryIdError, match="ends at entry -1"):
            reader.read(0, 0)


async def test_bookie_that_is_killed_is_replaced_while_writing(cluster: LiveCluster) -> None:
    payloads = [payload_of(i) for i in range(4000)]
    async with LedgerClient(cluster.uri) as client:
        ledger = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await ledger.append_many(payloads[:1000])
        victim = cluster.bookies[ledger.metadata.last_fragment.ensemble[1]]
        await trio.to_thread.run_sync(victim.kill)
        try:
            await ledger.append_many(payloads[1000:])
            await ledger.close()
            first, second = ledger.metadata.fragments
            assert victim.bookie_id not in second.ensemble
            assert second.ensemble[::2] == first.ensemble[::2]
            reader = await client.open(ledger.id)
            assert await payloads_in(reader) == payloads
        finally:
            await trio.to_thread.run_sync(victim.start)


async def test_second_client_fences_the_first_and_finds_all_it_confirmed(
    cluster: LiveCluster,
) -> None:
    confirmed: list[int] = []
    has_written = trio.Event()
    async with LedgerClient(cluster.uri) as first, LedgerClient(cluster.uri) as second:
        ledger = await first.create(ensemble_size=3, write_quorum=3, ack_quorum=2)

        async def write() -> None:
            while True:
                confirmed.append(await ledger.append(payload_of(len(confirmed))))
                if len(confirmed) == 200:
                    has_written.set()

        async def write_until_stopped() -> None:
            with pytest.raises((FencedError, LedgerClosedError)):
                await write()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_until_stopped)
            await has_written.wait()
            reader = await second.open(ledger.id)
        with pytest.raises((FencedError, LedgerClosedError)):
            await ledger.append(b"too late")
        assert reader.metadata.state is LedgerState.CLOSED
        assert reader.last_confirmed >= confirmed[-1]
        payloads = await payloads_in(reader)
        assert payloads == [payload_of(i) for i in range(len(payloads))]


async def test_ledger_of_a_client_that_is_gone_is_recovered(cluster: LiveCluster) -> None:
    payloads = [payload_of(i) for i in range(100)]
    async with LedgerClient(cluster.uri) as client:
        ledger = await client.create(ensemble_size=4, write_quorum=3, ack_quorum=2)
        await ledger.append_many(payloads)
    with pytest.raises(ClientClosedError):
        await ledger.close()
    async with LedgerClient(cluster.uri) as client:
        assert (await client.metadata(ledger.id)).state is LedgerState.OPEN
        async with await client.open(ledger.id) as reader:
            assert reader.last_confirmed == 99
            assert reader.length == sum(map(len, payloads))
            assert await payloads_in(reader) == payloads


async def test_ledger_is_recovered_without_one_of_its_bookies(cluster: LiveCluster) -> None:
    payloads = [payload_of(i) for i in range(100)]
    async with LedgerClient(cluster.uri) as client:
        ledger = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await ledger.append_many(payloads)
    victim = cluster.bookies[ledger.metadata.last_fragment.ensemble[0]]
    await trio.to_thread.run_sync(victim.kill)
    try:
        async with LedgerClient(cluster.uri) as client:
            reader = await client.open(ledger.id)
            assert reader.is_closed
            assert await payloads_in(reader) == payloads
    finally:
        await trio.to_thread.run_sync(victim.start)


async def test_error_inside_the_block_comes_out_as_it_is(cluster: LiveCluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with LedgerClient(cluster.uri) as client, await client.create():
            raise ZeroDivisionError


async def test_client_that_is_cancelled_ends_quietly(cluster: LiveCluster) -> None:
    is_waiting = trio.Event()

    async def wait() -> None:
        async with LedgerClient(cluster.uri) as client, await client.create() as ledger:
            await ledger.append(b"x")
            async with await client.tail(ledger.id, first=1) as tail:
                is_waiting.set()
                await tail.next_batch()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await is_waiting.wait()
        nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught


async def test_tail_shows_entries_as_they_are_written_and_ends_with_the_ledger(
    cluster: LiveCluster,
) -> None:
    seen: list[bytes] = []
    has_news = trio.Event()
    async with LedgerClient(cluster.uri) as writing, LedgerClient(cluster.uri) as reading:
        ledger = await writing.create(ensemble_size=3, write_quorum=2, ack_quorum=2)

        async def follow() -> None:
            async with await reading.tail(ledger.id) as tail:
                async for entry in tail:
                    seen.append(entry.payload)
                    has_news.set()

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                for i in range(5):
                    has_news = trio.Event()
                    await ledger.append(payload_of(i))
                    await has_news.wait()  # no later entry tells of this one: the LAC goes alone
                await ledger.append_many([payload_of(i) for i in range(5, 100)])
                await ledger.close()
        assert seen == [payload_of(i) for i in range(100)]


async def test_open_without_recovery_leaves_the_writer_alone(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        ledger = await client.create()
        await ledger.append_many([b"a", b"b", b"c"])
        async with await client.open_no_recovery(ledger.id) as reader:
            assert not reader.is_closed
            assert reader.last_confirmed <= 2
            with pytest.raises(InvalidEntryIdError, match="confirmed up to"):
                reader.read(0, 3)
            found = [entry.payload async for entry in reader.read_unconfirmed(0, 2)]
            assert found == [b"a", b"b", b"c"]
        assert await ledger.append(b"d") == 3
        await ledger.close()


async def test_wrong_password_is_refused(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(password=PASSWORD) as ledger:
            await ledger.append(b"x")
        with pytest.raises(UnauthorizedError, match="another password"):
            await client.open(ledger.id, password=b"guess")


async def test_ledgers_are_listed_and_deleted(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(ledger_id=77_777) as ledger:
            pass
        assert ledger.id == 77_777
        assert 77_777 in [ledger_id async for ledger_id in client.list()]
        with pytest.raises(LedgerExistsError, match="77777"):
            await client.create(ledger_id=77_777)
        assert await client.exists(77_777)
        await client.delete(77_777)
        assert not await client.exists(77_777)
        with pytest.raises(LedgerGoneError):
            await client.open(77_777)


async def test_impossible_requests_say_what_to_do(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        with pytest.raises(NotEnoughBookiesError, match="start more of them"):
            await client.create(ensemble_size=5)
        async with await client.create() as ledger:
            with pytest.raises(EntryTooLargeError, match="cut it"):
                await ledger.append(bytes(FRAME_BYTES_MAX))
            assert await ledger.append(b"x" * (4 << 20)) == 0
            await ledger.close()
            with pytest.raises(LedgerClosedError):
                await ledger.append(b"x")
    with pytest.raises(ClientClosedError, match="async with"):
        await client.create()


async def test_closed_handle_is_freed_without_the_collector(cluster: LiveCluster) -> None:
    """Whoever writes thousands of ledgers in turn would keep them all until a full collection."""
    async with LedgerClient(cluster.uri) as client:
        ledger = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await ledger.append(b"one")
        await ledger.append_many([b"two", b"three"])
        await ledger.close()
        freed = trio.Event()
        watched = weakref.ref(ledger, lambda _: freed.set())
        gc.disable()
        try:
            del ledger
            with trio.fail_after(10):
                await freed.wait()  # the third copy may still be on its way
        finally:
            gc.enable()
        assert watched() is None
