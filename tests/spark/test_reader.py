"""The batch reader without Spark around it, on real bookies: same rows, or an error with a code.

Reader and partitions are pickled as they are on their way to an executor.
"""

from __future__ import annotations

import threading
from functools import partial

import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from ledger_client import DigestType, LedgerClient
from metadata.model import LedgerState
from spark.errors import SourceError
from spark.reader import LedgerBatchReader
from spark.schema import default_schema
from tests.ledger_client.live.cluster import LiveCluster
from tests.ledger_client.live.planted import planted
from tests.spark.ledgers import (
    direct_batches,
    direct_reader,
    direct_rows,
    on_client,
    payloads,
    plain_rows,
    planted_runs,
    written,
)

WITH_STATUS = StructType(
    [
        StructField("entry_id", LongType()),
        StructField("payload", BinaryType()),
        StructField("status", StringType()),
    ]
)


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC])
@pytest.mark.parametrize("write_quorum", [2, 3])
def test_rows_are_those_of_the_plain_client(
    cluster: LiveCluster,
    monkeypatch: pytest.MonkeyPatch,
    write_quorum: int,
    digest_type: DigestType,
) -> None:
    """Striped and not, over several partitions, with a password by reference."""
    monkeypatch.setenv("LEDGER_PASSWORD", "secret")
    ledger = written(
        cluster, payloads(700, 300), write_quorum=write_quorum, password=b"secret",
        digest_type=digest_type,
    )  # fmt: skip

    options = {"ledgers": ledger, "credentials": "env:LEDGER_PASSWORD", "minPartitions": 5}

    assert len(direct_reader(cluster, **options).partitions()) >= 5
    assert direct_rows(cluster, **options) == plain_rows(cluster, ledger, password=b"secret")


def test_small_and_large_entries_and_empty_ledgers_are_read(cluster: LiveCluster) -> None:
    large = written(cluster, [b"x" * (5 * 1024 * 1024 - 200), b"", b"y" * 1024 * 1024])
    empty = written(cluster, [])
    small = written(cluster, [b"1"] * 3000)

    found = direct_rows(cluster, ledgers=f"{large},{empty},{small}", batchBytes="1m")

    assert found == plain_rows(cluster, large, empty, small)


def test_many_small_ledgers_come_in_few_partitions(cluster: LiveCluster) -> None:
    ledgers = [written(cluster, payloads(5)) for _ in range(12)]

    reader = direct_reader(cluster, ledgers=f"{ledgers[0]}-{ledgers[-1]}", parallelism=2)

    assert len(reader.partitions()) <= 7
    assert direct_rows(cluster, ledgers=",".join(map(str, ledgers))) == plain_rows(
        cluster, *ledgers
    )


def test_ensemble_that_changed_in_mid_ledger_and_a_bookie_that_is_down_lose_no_row(
    cluster: LiveCluster,
) -> None:
    async def write(client: LedgerClient) -> tuple[int, str]:
        writer = await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await writer.append_many(payloads(300))
        victim = writer.metadata.last_fragment.ensemble[0]
        cluster.bookies[victim].kill()
        await writer.append_many(payloads(300))
        await writer.close()
        assert len((await client.metadata(writer.id)).fragments) > 1
        return writer.id, victim

    ledger, victim = on_client(cluster, write)
    try:
        down = direct_rows(cluster, ledgers=ledger, minPartitions=4)
    finally:
        cluster.bookies[victim].start()  # type: ignore[index]
    assert down == plain_rows(cluster, ledger) == direct_rows(cluster, ledgers=ledger)
    assert len(down) == 600


def test_rotten_copy_is_replaced_by_a_good_one(cluster: LiveCluster) -> None:
    async def plant(client: LedgerClient) -> int:
        bookies = sorted(client.bookies().writable)[:3]
        metadata = await planted(client, payloads(50), bookies=bookies, rotten=bookies[:2])
        return metadata.ledger_id

    ledger = on_client(cluster, plant)

    assert direct_rows(cluster, ledgers=ledger) == plain_rows(cluster, ledger)


# ---------------------------------------------------------------------- what is lost


def test_missing_entry_is_an_error_with_its_code(cluster: LiveCluster) -> None:
    ledger = on_client(cluster, lambda client: planted_runs(client, payloads(20), missing=[7]))

    with pytest.raises(SourceError, match=rf"^ENTRY_MISSING ledger={ledger} entry=7: "):
        direct_rows(cluster, ledgers=ledger)


def test_missing_entries_are_rows_or_dropped_when_data_loss_is_no_failure(
    cluster: LiveCluster,
) -> None:
    lost = [0, 7, 8, 19]
    ledger = on_client(cluster, lambda client: planted_runs(client, payloads(20), missing=lost))

    reader = direct_reader(cluster, WITH_STATUS, ledgers=ledger, failOnDataLoss=False)
    rows = [row for batch in direct_batches(reader) for row in batch.to_pylist()]

    assert [row["entry_id"] for row in rows] == list(range(20))
    assert [row["entry_id"] for row in rows if row["status"] == "missing"] == lost
    assert all((row["payload"] is None) == (row["status"] == "missing") for row in rows)
    dropped = direct_rows(cluster, ledgers=ledger, failOnDataLoss=False)
    assert [entry_id for _, entry_id, _ in dropped] == [i for i in range(20) if i not in lost]


def test_entry_that_is_rotten_everywhere_fails_or_is_a_row_without_payload(
    cluster: LiveCluster,
) -> None:
    ledger = on_client(cluster, lambda client: planted_runs(client, payloads(9), rotten=[4]))

    with pytest.raises(SourceError, match=rf"^DIGEST_FAILED ledger={ledger} entry=4: "):
        direct_rows(cluster, ledgers=ledger)
    reader = direct_reader(cluster, WITH_STATUS, ledgers=ledger, onDigestError="null")
    rows = [row for batch in direct_batches(reader) for row in batch.to_pylist()]
    assert [row["status"] for row in rows] == ["ok"] * 4 + ["digest"] + ["ok"] * 4
    assert rows[4]["payload"] is None
    unverified = direct_rows(cluster, ledgers=ledger, verifyDigest=False)
    assert len(unverified) == 9


def test_ledger_that_is_deleted_between_plan_and_read_fails_with_its_code(
    cluster: LiveCluster,
) -> None:
    """The bookies have lost it, too, as they do after a while."""
    ledger = on_client(cluster, lambda client: planted_runs(client, payloads(5), missing=range(5)))
    reader = direct_reader(cluster, ledgers=ledger)
    partitions = reader.partitions()
    on_client(cluster, lambda client: client.delete(ledger))

    with pytest.raises(SourceError, match=rf"^LEDGER_GONE ledger={ledger} "):
        list(reader.read(partitions[0]))
    tolerant = direct_reader(cluster, WITH_STATUS, ledgers=ledger, failOnDataLoss=False)
    rows = [row for batch in tolerant.read(partitions[0]) for row in batch.to_pylist()]
    assert [row["status"] for row in rows] == ["missing"] * 5


def test_bookies_that_are_all_away_fail_after_some_rounds(cluster: LiveCluster) -> None:
    ledger = written(cluster, payloads(5), ensemble_size=1, write_quorum=1)
    reader = direct_reader(cluster, ledgers=ledger, retryRounds=1)
    partitions = reader.partitions()
    metadata = on_client(cluster, lambda client: client.metadata(ledger))
    bookie = cluster.bookies[metadata.last_fragment.ensemble[0]]
    bookie.kill()
    try:
        with pytest.raises(SourceError, match=rf"^BOOKIES_UNAVAILABLE ledger={ledger} entry=0: "):
            list(reader.read(partitions[0]))
    finally:
        bookie.start()
    assert sum(batch.num_rows for batch in reader.read(partitions[0])) == 5


# ---------------------------------------------------------------------- planning


def test_open_ledger_is_skipped_read_to_its_lac_or_refused_and_never_fenced(
    cluster: LiveCluster,
) -> None:
    async def write_on(client: LedgerClient) -> None:
        writer = await client.create()
        await writer.append_many(payloads(10))
        await writer.append(b"with the LAC of those before")

        def read() -> None:
            assert direct_rows(cluster, ledgers=writer.id) == []
            found = direct_rows(cluster, ledgers=writer.id, openLedgers="toLac")
            assert [entry for _, entry, _ in found][:10] == list(range(10))
            with pytest.raises(SourceError, match=rf"^LEDGER_OPEN ledger={writer.id}: "):
                direct_rows(cluster, ledgers=writer.id, openLedgers="fail")

        import trio

        await trio.to_thread.run_sync(read)
        assert (await client.metadata(writer.id)).state is LedgerState.OPEN
        assert await writer.append(b"still the writer's own") == 11
        await writer.close()

    on_client(cluster, write_on)


def test_ledger_that_does_not_exist_fails_or_is_passed_over(cluster: LiveCluster) -> None:
    ledger = written(cluster, payloads(3))

    with pytest.raises(SourceError, match=r"^LEDGER_NOT_FOUND ledger=99999999: "):
        direct_rows(cluster, ledgers=f"{ledger},99999999")
    found = direct_rows(cluster, ledgers=f"{ledger},99999999", failOnDataLoss=False)
    assert found == plain_rows(cluster, ledger)
    assert direct_rows(cluster, ledgers=f"{ledger}-{ledger + 1_000_000}")[:3] == found


def test_wrong_password_fails_at_planning_and_is_not_shown(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", "not-the-password")
    ledger = written(cluster, payloads(3), password=b"secret")

    with pytest.raises(SourceError, match=rf"^AUTH_FAILED ledger={ledger}: ") as caught:
        direct_rows(cluster, ledgers=ledger, credentials="env:WRONG")
    assert "not-the-password" not in str(caught.value)
    with pytest.raises(SourceError, match=r"^AUTH_FAILED: credentials env:NOT_SET_AT_ALL "):
        direct_rows(cluster, ledgers=ledger, credentials="env:NOT_SET_AT_ALL")


def test_plan_that_is_too_large_says_which_size_would_fit(cluster: LiveCluster) -> None:
    ledger = written(cluster, payloads(200))

    with pytest.raises(SourceError, match=r"^PLAN_TOO_LARGE: .*targetPartitionBytes to \d+"):
        direct_reader(
            cluster, ledgers=ledger, targetPartitionBytes=1000, openCostBytes=0, maxPartitions=3
        ).partitions()


def test_metadata_store_that_is_away_fails_with_its_code(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long does a client wait for its session, ten seconds unless it is told otherwise.
    impatient = partial(LedgerClient, session_seconds=1.0)
    monkeypatch.setattr("spark.planning.LedgerClient", impatient)
    texts = {
        "metadataServiceUri": "zk://127.0.0.1:1/ledgers", "ledgers": "1", "retryRounds": "0",
    }  # fmt: skip
    with pytest.raises(SourceError, match=r"^METADATA_UNAVAILABLE: "):
        LedgerBatchReader(texts, default_schema("entries")).partitions()


def test_custom_metadata_selects_ledgers_and_positions_clip_them(cluster: LiveCluster) -> None:
    ledgers = [written(cluster, payloads(10), custom={"app": b"orders"}) for _ in range(3)]
    written(cluster, payloads(10), custom={"app": b"others"})

    everything = direct_rows(cluster, ledgers="custom:app=orders")
    clipped = direct_rows(
        cluster,
        ledgers="custom:app=orders",
        startingPosition=f'{{"ledger":{ledgers[0]},"entry":8,"v":1}}',
        endingPosition=f'{{"ledger":{ledgers[2]},"entry":2,"v":1}}',
    )

    assert everything == plain_rows(cluster, *ledgers)
    assert clipped == everything[8:22]


def test_partitions_carry_no_password(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    monkeypatch.setenv("LEDGER_PASSWORD", "very-secret")
    ledger = written(cluster, payloads(3), password=b"very-secret", digest_type=DigestType.HMAC)
    reader = direct_reader(cluster, ledgers=ledger, credentials="env:LEDGER_PASSWORD")

    assert b"very-secret" not in pickle.dumps(reader)
    assert b"very-secret" not in pickle.dumps(reader.partitions())


def test_table_of_ledgers_has_a_row_for_each(cluster: LiveCluster) -> None:
    closed = written(cluster, payloads(10), custom={"app": b"rows"})
    opened = written(cluster, payloads(10), close=False, custom={"app": b"rows"})
    empty = written(cluster, [], write_quorum=2, custom={"app": b"rows"})

    (batch,) = direct_batches(direct_reader(cluster, table="ledgers", ledgers="custom:app=rows"))

    first, second, third = batch.to_pylist()
    assert (first["ledger_id"], first["state"]) == (closed, "CLOSED")
    assert (first["first_entry"], first["last_entry"], first["bytes"]) == (0, 9, 1000)
    assert dict(first["metadata"]) == {"app": b"rows"}
    assert (second["ledger_id"], second["state"], second["bytes"]) == (opened, "OPEN", None)
    assert (third["ledger_id"], third["last_entry"], third["bytes"]) == (empty, None, 0)
    assert (third["ensemble_size"], third["write_quorum"]) == (3, 2)


# ---------------------------------------------------------------------- manners


def test_reader_that_is_left_early_leaves_no_thread(cluster: LiveCluster) -> None:
    ledger = written(cluster, payloads(3000, 1000))
    reader = direct_reader(cluster, ledgers=ledger, batchRows=10, minPartitions=1)
    (partition,) = reader.partitions()
    before = set(threading.enumerate())

    batches = reader.read(partition)
    assert next(batches).num_rows == 10
    batches.close()  # type: ignore[attr-defined]

    assert {t for t in threading.enumerate() if t.name == "ledger-scan"} <= before


def test_columns_on_request_tell_lac_time_and_custom_metadata(cluster: LiveCluster) -> None:
    ledger = written(cluster, payloads(4), custom={"app": b"columns"})
    schema = default_schema("entries", include_metadata=True)

    (batch,) = direct_batches(direct_reader(cluster, schema, ledgers=ledger, includeMetadata=True))

    rows = batch.to_pylist()
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert all(-1 <= row["last_confirmed"] < row["entry_id"] for row in rows)
    assert all(dict(row["metadata"]) == {"app": b"columns"} for row in rows)
    assert all(row["ledger_ctime"] is not None for row in rows)


def test_empty_plan_and_the_partition_spark_makes_of_it_are_no_rows(cluster: LiveCluster) -> None:
    reader = direct_reader(cluster, ledgers="custom:app=nobody-has-this")
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_filters_are_never_pushed() -> None:
    assert LedgerBatchReader.pushFilters is DataSourceReader.pushFilters


def test_pace_and_small_windows_change_no_rows(cluster: LiveCluster) -> None:
    ledger = written(cluster, payloads(400, 1000), write_quorum=2)

    found = direct_rows(
        cluster, ledgers=ledger, readBytesPerSecond="8m", parallelism=1, readChunkBytes="4k",
        readWindowBytes="8k", readClass="tail", locality="none",
    )  # fmt: skip

    assert found == plain_rows(cluster, ledger)
