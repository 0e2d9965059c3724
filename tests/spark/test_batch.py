"""Batch reads through Spark: found by name, rows as the plain client's, codes in errors."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from ledger_client import DigestType, LedgerClient
from tests.ledger_client.live.cluster import LiveCluster
from tests.ledger_client.live.planted import planted
from tests.spark.failing_source import FailsOnce
from tests.spark.ledgers import (
    loaded,
    on_client,
    payloads,
    plain_rows,
    planted_runs,
    rows_of,
    written,
)


def test_source_is_found_by_name_and_reads_what_the_client_reads(
    spark: SparkSession, cluster: LiveCluster
) -> None:
    """Striped, not striped, with rotten copies and after an ensemble change, in one DataFrame."""

    async def plant(client: LedgerClient) -> int:
        bookies = sorted(client.bookies().writable)[:3]
        return (await planted(client, payloads(50), bookies=bookies, rotten=bookies[:1])).ledger_id

    async def change(client: LedgerClient) -> tuple[int, str]:
        writer = await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await writer.append_many(payloads(200))
        victim = writer.metadata.last_fragment.ensemble[1]
        cluster.bookies[victim].kill()
        await writer.append_many(payloads(200))
        await writer.close()
        return writer.id, victim

    changed, victim = on_client(cluster, change)
    try:
        down = rows_of(loaded(spark, cluster, ledgers=changed, minPartitions=3))
    finally:
        cluster.bookies[victim].start()  # type: ignore[index]
    striped = written(cluster, payloads(1000, 300), write_quorum=2)
    plain = written(cluster, payloads(1000))
    rotten = on_client(cluster, plant)
    ledgers = sorted([changed, striped, plain, rotten])

    frame = loaded(spark, cluster, ledgers=",".join(map(str, ledgers)), minPartitions=4)

    assert frame.columns == ["ledger_id", "entry_id", "payload", "length"]
    assert rows_of(frame) == plain_rows(cluster, *ledgers)
    assert down == plain_rows(cluster, changed)
    total = frame.agg(f.count("*").alias("rows"), f.sum("length").alias("bytes")).first()
    assert total is not None
    assert (total.rows, total.bytes) == (2450, 40_000 + 300_000 + 100_000 + 5_000)


def test_columns_are_those_that_the_caller_names_and_filters_leave_the_frame_alone(
    spark: SparkSession, cluster: LiveCluster
) -> None:
    ledger = written(cluster, payloads(40))

    frame = loaded(spark, cluster, "status string, entry_id bigint, length int", ledgers=ledger)

    assert frame.columns == ["status", "entry_id", "length"]
    some = frame.where("entry_id < 10")
    assert (some.count(), frame.count(), some.count()) == (10, 40, 10)
    assert some.union(frame.where("entry_id >= 35")).count() == 15
    assert {tuple(row) for row in frame.limit(5).collect()} <= {("ok", i, 100) for i in range(40)}


def test_plan_of_nothing_has_no_rows(spark: SparkSession, cluster: LiveCluster) -> None:
    empty = written(cluster, [])
    assert loaded(spark, cluster, ledgers=empty).collect() == []


def test_bad_option_fails_at_load_and_names_the_nearest(
    spark: SparkSession, cluster: LiveCluster
) -> None:
    with pytest.raises(AnalysisException, match="BAD_OPTION: there is no option ledger: did you"):
        loaded(spark, cluster, ledger="1")


def test_planning_error_carries_its_code(spark: SparkSession, cluster: LiveCluster) -> None:
    with pytest.raises(AnalysisException, match="LEDGER_NOT_FOUND ledger=99999999: "):
        loaded(spark, cluster, ledgers="99999999").count()


def test_column_that_does_not_exist_is_refused(spark: SparkSession, cluster: LiveCluster) -> None:
    ledger = written(cluster, payloads(1))
    with pytest.raises(AnalysisException, match="BAD_OPTION: the table entries has no column body"):
        loaded(spark, cluster, "body binary", ledgers=ledger).count()


def test_task_error_carries_its_code(spark: SparkSession, cluster: LiveCluster) -> None:
    ledger = on_client(cluster, lambda client: planted_runs(client, payloads(9), missing=[4]))
    with pytest.raises(PythonException, match=f"ENTRY_MISSING ledger={ledger} entry=4: "):
        loaded(spark, cluster, ledgers=ledger).count()
    frame = loaded(
        spark, cluster, "entry_id bigint, status string", ledgers=ledger, failOnDataLoss=False
    )
    assert [row.entry_id for row in frame.where("status = 'missing'").collect()] == [4]


def test_cancelled_job_ends_and_the_next_one_works(
    spark: SparkSession, cluster: LiveCluster
) -> None:
    """A scan so slow that it would take minutes ends at once when its job is cancelled."""
    ledger = written(cluster, payloads(2000, 1000))
    slow = loaded(spark, cluster, ledgers=ledger, readBytesPerSecond=2000, parallelism=1,
                  readChunkBytes="4k", readWindowBytes="4k", batchRows=1)  # fmt: skip
    context = spark.sparkContext
    ended: list[BaseException] = []

    def run() -> None:
        context.setJobGroup("slow", "a slow scan", interruptOnCancel=True)
        try:
            slow.count()
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    tracker = context.statusTracker()
    waiting = threading.Event()
    while not any(
        (info := tracker.getStageInfo(stage)) is not None and info.numActiveTasks
        for stage in tracker.getActiveStageIds()
    ):
        waiting.wait(0.1)
    context.cancelAllJobs()
    thread.join(60)

    assert not thread.is_alive()
    assert len(ended) == 1
    assert loaded(spark, cluster, ledgers=ledger).count() == 2000


def test_task_whose_first_attempt_fails_gives_the_same_rows_and_leaves_nothing_behind(
    spark: SparkSession, cluster: LiveCluster
) -> None:
    """The threads and sockets of either attempt are gone when it ends: the worker says so."""
    ledger = written(cluster, payloads(2000, 500), write_quorum=2)
    spark.dataSource.register(FailsOnce)
    reader = spark.read.format(FailsOnce.name()).option("metadataServiceUri", cluster.uri)

    frame = reader.options(ledgers=str(ledger), batchRows="100").load()

    assert rows_of(frame) == plain_rows(cluster, ledger)


def test_password_goes_along_as_a_file_of_spark(
    spark: SparkSession, cluster: LiveCluster, tmp_path: Path
) -> None:
    """As `--files` does it; the digest HMAC cannot be checked without the password."""
    ledger = written(cluster, payloads(200), password=b"secret", digest_type=DigestType.HMAC)
    secret = tmp_path / "passwords.json"
    secret.write_text(f'{{"{ledger}": "secret"}}')
    spark.sparkContext.addFile(str(secret))

    frame = loaded(spark, cluster, ledgers=ledger, credentials="sparkfile:passwords.json")

    assert rows_of(frame) == plain_rows(cluster, ledger, password=b"secret")
    absent = loaded(spark, cluster, ledgers=ledger, credentials="sparkfile:nobody.json")
    with pytest.raises(AnalysisException, match=r"AUTH_FAILED: credentials sparkfile:nobody\.json"):
        absent.count()
