"""Following a ledger while it is written, and asking bookies about themselves."""

from __future__ import annotations

import pytest
import trio

from ledger_client import (
    BookieUnavailableError,
    LedgerClient,
    LedgerGoneError,
    WriterOptions,
    entries,
    sync,
)
from tests.ledger_client.live.cluster import LiveCluster

SILENT = WriterOptions(lac_idle_seconds=None)


async def test_idle_writer_tells_its_last_entry_by_itself(cluster: LiveCluster) -> None:
    """No later entry carries the LAC, so only the explicit one can."""
    async with LedgerClient(cluster.uri) as client, LedgerClient(cluster.uri) as other:
        ledger = await client.create(write_quorum=3)
        await ledger.append(b"last")
        reader = await other.open_no_recovery(ledger.id)
        with trio.fail_after(30):
            while await reader.read_last_confirmed() < 0:
                pass
        assert [entry.payload async for entry in reader.read(0, 0)] == [b"last"]
        await ledger.close()


async def test_writer_that_was_told_to_be_silent_is(cluster: LiveCluster) -> None:
    """Then readers are one entry behind, as with Apache's client by default."""
    async with LedgerClient(cluster.uri) as client, LedgerClient(cluster.uri) as other:
        ledger = await client.create(write_quorum=3, options=SILENT)
        await ledger.append(b"first")
        await ledger.append(b"second")
        await trio.sleep(0.2)
        reader = await other.open_no_recovery(ledger.id)
        assert await reader.read_last_confirmed() == 0
        await ledger.close()


async def test_long_poll_brings_the_entry_along(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tail that has caught up never reads: the news and the entry come in one answer.

    With an ack quorum of three: a bookie that is not needed may hear of an entry before it has it.
    """

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an entry was read although the poll had it")

    seen: list[bytes] = []
    async with LedgerClient(cluster.uri) as client, LedgerClient(cluster.uri) as other:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        async with await other.tail(ledger.id) as tail:
            monkeypatch.setattr(entries.EntryReader, "_ask", refuse)
            for i in range(5):
                await ledger.append(b"%d" % i)
                with trio.fail_after(30):
                    seen.append((await anext(tail)).payload)
            monkeypatch.undo()
            await ledger.close()
            with pytest.raises(StopAsyncIteration):
                await anext(tail)
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


async def test_tail_may_begin_beyond_what_is_written(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client, LedgerClient(cluster.uri) as other:
        ledger = await client.create()
        await ledger.append(b"0")
        async with await other.tail(ledger.id, first=2) as tail, trio.open_nursery() as nursery:

            async def write() -> None:
                await ledger.append_many([b"1", b"2", b"3"])
                await ledger.close()

            nursery.start_soon(write)
            with trio.fail_after(30):
                assert [entry.id async for entry in tail] == [2, 3]


async def test_tail_that_was_cancelled_goes_on_where_it_was(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client, LedgerClient(cluster.uri) as other:
        ledger = await client.create()
        await ledger.append_many([b"%d" % i for i in range(10)])
        seen: list[int] = []
        async with await other.tail(ledger.id) as tail:
            seen.append((await anext(tail)).id)
            for _ in range(5):
                with trio.move_on_after(0):
                    seen.append((await anext(tail)).id)
            await ledger.close()
            with trio.fail_after(30):
                seen += [entry.id async for entry in tail]
        assert seen == list(range(10))


async def test_tail_of_a_ledger_that_is_deleted_says_so(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client, LedgerClient(cluster.uri) as other:
        ledger = await client.create()
        async with await other.tail(ledger.id) as tail, trio.open_nursery() as nursery:

            async def delete() -> None:
                await trio.sleep(0.05)
                await client.delete(ledger.id)

            nursery.start_soon(delete)
            with trio.fail_after(30), pytest.raises(LedgerGoneError, match="followed") as caught:
                await anext(tail)
            assert caught.value.ledger_id == ledger.id


def test_script_follows_a_ledger(cluster: LiveCluster) -> None:
    with sync.LedgerClient(cluster.uri) as client:
        ledger = client.create()
        with client.tail(ledger.id) as tail:
            ledger.append(b"a")
            assert next(tail).payload == b"a"
            assert tail.last_confirmed == 0
            ledger.append(b"b")
            ledger.close()
            assert [entry.payload for entry in tail] == [b"b"]


# ---------------------------------------------------------------------- bookies


async def test_bookies_are_listed_with_their_space(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        bookies = client.bookies()
        assert bookies.writable == set(cluster.bookies)
        assert bookies.read_only == frozenset()
        for bookie_id in bookies.writable:
            space = await client.bookie_info(bookie_id)
            assert space.bookie_id == bookie_id
            assert 0 < space.free_bytes <= space.total_bytes


async def test_bookie_that_nobody_knows_has_no_info(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        with pytest.raises(BookieUnavailableError, match="running") as caught:
            await client.bookie_info("nowhere:1")
        assert caught.value.bookie_id == "nowhere:1"


def test_script_asks_bookies(cluster: LiveCluster) -> None:
    with sync.LedgerClient(cluster.uri) as client:
        (first, *_) = sorted(client.bookies().writable)
        assert client.bookie_info(first).total_bytes > 0
        assert client.statistics().quarantined == frozenset()
