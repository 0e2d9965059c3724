"""The live feed: looks only for watchers, one for all of them, nothing queued."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from metadata.update import LedgerGoneError
from quire.console import feed as feeds
from quire.console.cluster_view import ClusterView
from quire.console.feed import Feed, TooManyWatchersError
from quire.console.ledger_view import LedgerView
from runtime.service import background
from wire.errors import LedgerError


class Cluster:
    """Looks take no time; `problem` is what re-replication says instead of an answer."""

    def __init__(self) -> None:
        self.looks = 0
        self.recoveries = 0
        self.seconds = 0.0
        self.problem: LedgerError | None = None

    async def look(self) -> dict[str, Any]:
        await trio.sleep(self.seconds)
        self.looks += 1
        return {"bookies": [], "totals": {"adds": self.looks}, "lost": []}

    async def look_at_recovery(self) -> dict[str, Any]:
        self.recoveries += 1
        await trio.lowlevel.checkpoint()
        if self.problem is not None:
            raise self.problem
        return {"enabled": True}


class Ledgers:
    def __init__(self) -> None:
        self.read: list[int] = []

    async def detail(self, ledger_id: int) -> dict[str, Any]:
        self.read.append(ledger_id)
        await trio.lowlevel.checkpoint()
        if ledger_id == 404:
            raise LedgerGoneError("gone")
        return {"id": str(ledger_id), "lac": str(len(self.read))}


def new_feed(cluster: Cluster, ledgers: Ledgers | None = None, **more: Any) -> Feed:
    return Feed(
        cast(ClusterView, cluster), cast(LedgerView, ledgers or Ledgers()), now_ms=lambda: 7, **more
    )


Clock = trio.testing.MockClock


async def test_nobody_looks_until_somebody_watches(autojump_clock: Clock) -> None:
    cluster = Cluster()
    feed = new_feed(cluster)
    async with background(feed.run):
        await trio.sleep(100)
        assert (cluster.looks, cluster.recoveries) == (0, 0)
        with feed.watching(None) as watcher:
            first = await watcher.next()
            assert (first["number"], first["timeMs"], first["ledger"]) == (1, 7, None)
            await trio.sleep(10.5)
            assert cluster.looks == 11
        await trio.sleep(100)
        assert cluster.looks == 11
        with feed.watching(None) as watcher:
            assert (await watcher.next())["number"] == 12


async def test_watchers_share_one_look(autojump_clock: Clock) -> None:
    cluster = Cluster()
    feed = new_feed(cluster)
    seen: list[list[int]] = [[] for _ in range(10)]

    async def watch(numbers: list[int]) -> None:
        with feed.watching(None) as watcher:
            while True:
                numbers.append((await watcher.next())["number"])

    async with background(feed.run):
        with trio.move_on_after(5.5):
            async with trio.open_nursery() as nursery:
                for numbers in seen:
                    nursery.start_soon(watch, numbers)
    assert seen == [[1, 2, 3, 4, 5, 6]] * 10
    assert feed.watchers == 0


async def test_slow_watcher_gets_the_newest_and_no_queue(autojump_clock: Clock) -> None:
    feed = new_feed(Cluster())
    async with background(feed.run):
        with feed.watching(None) as watcher:
            await watcher.next()
            await trio.sleep(50.5)
            assert (await watcher.next())["number"] == 51
            with trio.move_on_after(0.1) as patience:
                await watcher.next()
            assert patience.cancelled_caught
            assert (await watcher.next())["number"] == 52


async def test_look_that_takes_long_delays_the_next(autojump_clock: Clock) -> None:
    cluster = Cluster()
    cluster.seconds = 4.0
    feed = new_feed(cluster)
    async with background(feed.run):
        with feed.watching(None):
            await trio.sleep(20.5)
    assert cluster.looks == 5


async def test_number_of_watchers_is_bounded(autojump_clock: Clock) -> None:
    feed = new_feed(Cluster(), watchers_max=2)
    with feed.watching(None):
        with feed.watching(None):
            third = feed.watching(None)
            with pytest.raises(TooManyWatchersError, match="2 pages watch"):
                third.__enter__()
        with feed.watching(None):
            assert feed.watchers == 2


async def test_history_is_bounded(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = new_feed(Cluster())
    async with background(feed.run):
        with feed.watching(None):
            await trio.sleep(feeds.HISTORY_LOOKS + 50.5)
    assert len(feed.history) == feeds.HISTORY_LOOKS
    assert feed.history[-1] == {"timeMs": 7, "adds": feeds.HISTORY_LOOKS + 51}


async def test_followed_ledgers_are_read_once_each_and_only_then(autojump_clock: Clock) -> None:
    ledgers = Ledgers()
    feed = new_feed(Cluster(), ledgers)
    async with background(feed.run):
        with feed.watching(5) as one, feed.watching(5) as other, feed.watching(404) as lost:
            assert (await one.next())["ledger"]["id"] == "5"
            assert (await other.next())["ledger"]["id"] == "5"
            assert (await lost.next())["ledger"]["error"] == "the ledger does not exist"
            assert sorted(ledgers.read) == [5, 404]
        ledgers.read.clear()
        with feed.watching(None) as watcher:
            assert (await watcher.next())["ledger"] is None
    assert ledgers.read == []


async def test_what_cannot_be_read_is_said_until_it_can(autojump_clock: Clock) -> None:
    cluster = Cluster()
    cluster.problem = LedgerError("ZooKeeper is away")
    feed = new_feed(cluster)
    async with background(feed.run):
        with feed.watching(None) as watcher:
            await watcher.next()
            lost = (await watcher.next())["lost"]
            assert lost == ["ledgers that lack copies: ZooKeeper is away"]
            cluster.problem = None
            await trio.sleep(2)
            await watcher.next()
            fine = await watcher.next()
            assert (fine["lost"], fine["recovery"]) == ([], {"enabled": True})
