"""The stream reader on real bookies, asked as Spark's driver asks it."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from ledger_client.sync import LedgerClient
from spark.errors import SourceError
from spark.stream import LedgerStreamReader
from tests.ledger_client.live.cluster import LiveCluster
from tests.spark.streams import (
    ALL,
    SCHEMA,
    advance,
    expected,
    filled,
    made,
    offset,
    reading,
    rows_between,
    rows_named,
    wait_for,
)
from tests.support.proxy import Proxy
from tests.support.zookeeper import shared_zookeeper

#: Ids for ledgers that are named before they are made.
_future_ids = itertools.count(1_000_000, 10)


def test_stream_goes_over_three_ledgers_that_roll(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    """The last two are named before they exist; no batch is empty, and every row comes once."""
    first = next(_future_ids)
    ids = [first, first + 2, first + 1]  # ids are not an order
    with reading(cluster.uri, ",".join(map(str, ids))) as reader:
        ledger = made(client, ids[0])
        at, rows = reader.initialOffset(), []
        assert at == offset(first, 0)
        for index, ledger_id in enumerate(ids):
            ledger.append_many(rows_named(f"r{index}", range(10)))
            wait_for(reader, at, offset(ledger_id, 10))
            rows += rows_between(reader, at, offset(ledger_id, 10))
            at = offset(ledger_id, 10)
            assert reader.latestOffset(at, ALL) == at
            ledger.append_many(rows_named(f"s{index}", range(5)))
            ledger.close()
            if index < 2:
                ledger = made(client, ids[index + 1])
        wait_for(reader, at, offset(ids[2], 15))
        rows += rows_between(reader, at, offset(ids[2], 15))
        assert rows == [
            row
            for index, ledger_id in enumerate(ids)
            for row in expected(
                ledger_id, rows_named(f"r{index}", range(10)) + rows_named(f"s{index}", range(5))
            )
        ]
        assert reader.reportLatestOffset() == offset(ids[2], 15)


def test_batch_that_is_planned_again_after_a_restart_has_the_same_rows(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    """It was planned when its ledger was open; now that is closed and longer."""
    with made(client) as ledger:
        ledger.append_many(rows_named("row", range(10)))
        with reading(cluster.uri, str(ledger.id)) as reader:
            start, end = offset(ledger.id, 2), offset(ledger.id, 8)
            before = rows_between(reader, start, end)
        ledger.append_many(rows_named("more", range(10)))
    with reading(cluster.uri, str(ledger.id)) as reader:
        assert rows_between(reader, start, end) == before
        assert before == expected(ledger.id, rows_named("row", range(2, 8)), first=2)


def test_limits_cut_batches_and_trigger_once_ignores_them(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    ids = [filled(client, 30, size=100), filled(client, 30, size=100)]
    named = ",".join(map(str, ids))
    with reading(cluster.uri, named, maxEntriesPerTrigger="40") as reader:
        assert reader.getDefaultReadLimit() == ReadMaxRows(40)
        at = advance(reader, reader.initialOffset())
        assert at == offset(ids[1], 10)
        assert advance(reader, at) == offset(ids[1], 30)
        assert reader.latestOffset(reader.initialOffset(), ALL) == offset(ids[1], 30)
    with reading(cluster.uri, named, maxBytesPerTrigger="1000") as reader:
        assert reader.getDefaultReadLimit() == ReadMaxBytes(1000)
        assert advance(reader, offset(ids[0], 25)) == offset(ids[1], 5)
    with reading(cluster.uri, named, maxBytesPerTrigger="500", maxEntriesPerTrigger="7") as reader:
        assert advance(reader, reader.initialOffset()) == offset(ids[0], 5)
    with reading(cluster.uri, named) as reader:
        assert reader.getDefaultReadLimit() == ReadMaxBytes(1 << 30)
        assert advance(reader, reader.initialOffset(), ReadAllAvailable()) == offset(ids[1], 30)


def test_bytes_of_an_open_ledger_count_for_the_limit(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    with made(client) as ledger:
        ledger.append_many(rows_named("row", range(50), size=200))
        with reading(cluster.uri, str(ledger.id), maxBytesPerTrigger="2000") as reader:
            wait_for(reader, offset(ledger.id, 0), offset(ledger.id, 50))
            assert advance(reader, offset(ledger.id, 0)) == offset(ledger.id, 10)


def test_run_over_what_is_available_ends_where_it_was_frozen_though_the_ledger_rolls(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    first = next(_future_ids)
    ledger = made(client, first)
    ledger.append_many(rows_named("row", range(10)))
    with reading(cluster.uri, f"{first}-{first + 1}", maxEntriesPerTrigger="8") as reader:
        start = reader.initialOffset()
        wait_for(reader, start, offset(first, 10))  # the LAC goes out a moment after the adds
        reader.prepareForTriggerAvailableNow()
        ledger.append_many(rows_named("more", range(10)))
        ledger.close()
        with made(client, first + 1) as following:
            following.append_many(rows_named("next", range(10)))
        at = advance(reader, start)
        assert at == offset(first, 8)
        at = advance(reader, at)
        assert at == offset(first, 10)
        assert advance(reader, at) == at


def test_stream_begins_at_the_end_unless_told_otherwise(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    old, new = filled(client, 3), filled(client, 5)
    named = f"{old},{new}"
    with reading(cluster.uri, named, startingPosition="latest") as reader:
        assert reader.initialOffset() == reader.initialOffset() == offset(new, 5)
    with reading(
        cluster.uri, named, startingPosition=f'{{"v":1,"ledger":{old},"entry":2}}'
    ) as reader:
        at = reader.initialOffset()
        assert at == offset(old, 2)
        rows = rows_between(reader, at, advance(reader, at))
        assert rows == expected(old, [b"row 2"], 2) + expected(new, rows_named("row", range(5)))


@pytest.mark.parametrize("entry", [11, 500])
def test_checkpoint_behind_the_end_of_its_ledger_is_refused(
    cluster: LiveCluster, client: LedgerClient, entry: int
) -> None:
    ledger_id = filled(client, 10)
    message = rf"^OFFSET_AHEAD ledger={ledger_id} entry=\d+: .*a backup was restored"
    with reading(cluster.uri, str(ledger_id)) as reader:
        with pytest.raises(SourceError, match=message):
            advance(reader, offset(ledger_id, entry))
        with pytest.raises(SourceError, match=message):
            reader.partitions(offset(ledger_id, 0), offset(ledger_id, entry))


def test_checkpoint_of_another_stream_is_refused(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    ledger_id = filled(client, 1)
    with reading(cluster.uri, str(ledger_id)) as reader:
        with pytest.raises(SourceError, match=r"^OFFSET_AHEAD ledger=77 entry=0: "):
            advance(reader, offset(77, 0))
        with pytest.raises(SourceError, match=r"^OFFSET_AHEAD: the checkpoint is not one of this"):
            advance(reader, {"segment": 1})


def test_checkpoint_that_has_passed_an_open_ledger_is_refused(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    following = filled(client, 1)
    with made(client) as ledger, reading(cluster.uri, f"{ledger.id},{following}") as reader:
        ledger.append(b"row")
        with pytest.raises(SourceError, match=rf"^OFFSET_AHEAD ledger={ledger.id}: "):
            reader.partitions(offset(ledger.id, 0), offset(following, 1))


def test_ledger_that_is_missing_in_the_middle_is_an_error_or_passed_over(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    first, gone, last = filled(client, 2), filled(client, 2), filled(client, 2)
    client.delete(gone)
    named = f"{first},{gone},{last}"
    with (
        reading(cluster.uri, named) as reader,
        pytest.raises(SourceError, match=rf"^LEDGER_NOT_FOUND ledger={gone}: "),
    ):
        advance(reader, reader.initialOffset())
    with reading(cluster.uri, named, failOnDataLoss="false") as reader:
        start = reader.initialOffset()
        end = advance(reader, start)
        assert end == offset(last, 2)
        assert [row[0] for row in rows_between(reader, start, end)] == [first, first, last, last]


def test_ledger_deleted_between_plan_and_replay_is_an_error_or_passed_over(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    first, last = filled(client, 2), filled(client, 2)
    client.delete(first)
    start, end = offset(first, 0), offset(last, 2)
    with (
        reading(cluster.uri, f"{first},{last}") as reader,
        pytest.raises(SourceError, match=rf"^LEDGER_GONE ledger={first}: "),
    ):
        reader.partitions(start, end)
    with reading(cluster.uri, f"{first},{last}", failOnDataLoss="false") as reader:
        assert rows_between(reader, start, end) == expected(last, rows_named("row", range(2)))


def test_open_ledger_is_read_to_its_lac_or_waited_for_or_refused(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    with made(client) as ledger:
        ledger.append_many(rows_named("row", range(3)))
        start, named = offset(ledger.id, 0), str(ledger.id)
        with reading(cluster.uri, named) as reader:
            wait_for(reader, start, offset(ledger.id, 3))
        with reading(cluster.uri, named, openLedgers="skip") as reader:
            assert advance(reader, start) == start
        with (
            reading(cluster.uri, named, openLedgers="fail") as reader,
            pytest.raises(SourceError, match=rf"^LEDGER_OPEN ledger={ledger.id}: "),
        ):
            advance(reader, start)
        ledger.append(b"the writer was not fenced")


def test_wrong_password_is_refused_for_open_and_for_closed_ledgers(
    cluster: LiveCluster, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAM_PASSWORD", "right")
    with made(client, password=b"right") as ledger:
        ledger.append(b"row")
        named = str(ledger.id)
        with reading(cluster.uri, named, credentials="env:STREAM_PASSWORD") as reader:
            wait_for(reader, offset(ledger.id, 0), offset(ledger.id, 1))
        with (
            reading(cluster.uri, named) as reader,
            pytest.raises(SourceError, match=rf"^AUTH_FAILED ledger={ledger.id}"),
        ):
            advance(reader, offset(ledger.id, 0))
    with (
        reading(cluster.uri, named) as reader,
        pytest.raises(SourceError, match=rf"^AUTH_FAILED ledger={ledger.id}"),
    ):
        reader.partitions(offset(ledger.id, 0), offset(ledger.id, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ledgers": "all"}, "a stream has an order"),
        ({"ledgers": "custom:a=b"}, "a stream has an order"),
        ({"ledgers": "0-200000"}, "takes 100000 at most"),
        ({"ledgers": "1", "startingPosition": '{"v":1,"ledger":2,"entry":0}'}, "does not name"),
        ({"ledgers": "1", "endingPosition": '{"v":1,"ledger":1,"entry":0}'}, "has no end"),
    ],
)
def test_stream_refuses_what_has_no_order(options: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=rf"^BAD_OPTION: .*{message}"):
        LedgerStreamReader({"metadataServiceUri": "zk://localhost:1/ledgers", **options}, SCHEMA)


def test_reader_takes_no_connection_along_when_it_is_pickled(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    ledger_id = filled(client, 1)
    with reading(cluster.uri, str(ledger_id)) as reader:
        end = advance(reader, reader.initialOffset())
        (partition,) = reader.partitions(reader.initialOffset(), end)
        there = pickle.loads(pickle.dumps((reader, partition)))
        assert [batch.num_rows for batch in there[0].read(there[1])] == [1]


def test_metadata_outage_is_nothing_new_for_a_while_and_then_an_error(
    cluster: LiveCluster, client: LedgerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookies stay; only the way to ZooKeeper is cut."""
    # An outage is noticed after the time of a session: two seconds, where ten are usual.
    impatient = partial(LedgerClient, session_seconds=2.0)
    monkeypatch.setattr("spark.follow.blocking.LedgerClient", impatient)

    async def main() -> None:
        ledger = await trio.to_thread.run_sync(made, client)
        root = cluster.uri.removeprefix("zk://").partition("/")[2]
        async with Proxy(shared_zookeeper().address).running() as proxy:
            uri = f"zk://{proxy.address}/{root}"
            with reading(uri, str(ledger.id), metadataGrace="300") as reader:
                start = offset(ledger.id, 0)

                async def latest() -> dict[str, int]:
                    return await trio.to_thread.run_sync(reader.latestOffset, start, ALL)

                assert await latest() == start
                proxy.accepts = False
                proxy.cut()
                await until(lambda: bool(reader._follower._troubles))
                await trio.to_thread.run_sync(ledger.append_many, [b"a", b"b"])
                assert await latest() == start  # within the grace
                for peer, trouble in list(reader._follower._troubles.items()):
                    reader._follower._troubles[peer] = replace(trouble, since=-1000.0)
                with pytest.raises(SourceError, match=r"^METADATA_UNAVAILABLE"):
                    await latest()
                proxy.accepts = True
                await until(lambda: not reader._follower._troubles)
                await trio.to_thread.run_sync(wait_for, reader, start, offset(ledger.id, 2))
        await trio.to_thread.run_sync(ledger.close)

    trio.run(main)


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await trio.sleep(0.05)
    raise AssertionError("in vain")
