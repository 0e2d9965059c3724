"""The sink under Spark: tasks that fail, jobs that fail, and rows that are read back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ledger_client.sync import LedgerClient
from spark.core.commits import Identity
from tests.ledger_client.live.cluster import LiveCluster
from tests.spark.sinks import SHAPE, committed_rows, ledgers_of, on_commits

ROWS = 3000


def fragile(spark: SparkSession, *, attempts: int) -> DataFrame:
    """Rows in three partitions; the first so many attempts at the second fail half way."""

    def pass_on(numbers: Iterable[int]) -> Iterator[tuple[bytes]]:
        context = TaskContext.get()
        assert context is not None
        for index, number in enumerate(numbers):
            if (
                context.partitionId() == 1
                and context.attemptNumber() < attempts
                and index == ROWS // 6
            ):
                raise RuntimeError("this attempt fails")
            yield (b"row %d" % number,)

    rows = spark.sparkContext.parallelize(range(ROWS), 3).mapPartitions(pass_on)
    return spark.createDataFrame(rows, "payload binary")


def write(frame: DataFrame, cluster: LiveCluster, write_id: str, **options: str) -> None:
    writer = frame.write.format("ledger").mode("append").options(**{**SHAPE, **options})
    writer.option("metadataServiceUri", cluster.uri).option("writeId", write_id).save()


def test_rows_are_written_once_though_a_task_fails_and_are_read_back_by_commit(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient
) -> None:
    write(fragile(spark, attempts=2), cluster, "retried", maxLedgerBytes="4k")
    expected = [b"row %d" % n for n in range(ROWS)]
    assert committed_rows(client, cluster.uri, Identity("retried")) == expected
    table = (
        spark.read.format("ledger")
        .option("metadataServiceUri", cluster.uri)
        .option("commit", "retried")
        .load()
    )
    assert sorted(bytes(row.payload) for row in table.collect()) == sorted(expected)


def test_job_that_fails_commits_nothing_and_what_it_left_is_swept(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient
) -> None:
    with pytest.raises(PySparkException):
        write(fragile(spark, attempts=99), cluster, "failed")
    assert on_commits(cluster.uri, lambda commits: commits.read(Identity("failed"))) is None
    later_ms = time.time_ns() // 1_000_000 + 25 * 3600 * 1000
    on_commits(cluster.uri, lambda commits: commits.sweep(now_ms=later_ms))
    assert ledgers_of(client, "failed") == []


@pytest.mark.parametrize(
    ("expression", "options", "code"),
    [
        ("id", {}, "BAD_OPTION: rows need a column payload"),
        ("cast('row' as binary) as payload", {"ensemble": "9"}, "NOT_ENOUGH_BOOKIES"),
        ("cast(null as binary) as payload", {}, "BAD_ROW: row 0 of partition 0"),
        ("cast('row' as binary) as payload", {"ensembel": "2"}, "BAD_OPTION: .*ensemble"),
    ],
)
def test_error_begins_with_its_code(
    spark: SparkSession,
    cluster: LiveCluster,
    expression: str,
    options: dict[str, str],
    code: str,
) -> None:
    frame = spark.range(0, 3, numPartitions=1).selectExpr(expression)
    with pytest.raises(PySparkException, match=code):
        write(frame, cluster, "refused", **options)
