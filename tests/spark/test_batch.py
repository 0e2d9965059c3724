"""Batch reads through Spark, row by row the same as the plain client's."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from ledger_client import DigestType
from tests.ledger_client.live.cluster import LiveCluster
from tests.spark.ledgers import loaded, payloads, plain_rows, rows_of, written


def test_source_is_found_without_registering_and_reads_what_the_client_reads(
    spark: SparkSession, cluster: LiveCluster
) -> None:
    ledger = written(cluster, payloads(1000))

    frame = loaded(spark, cluster, ledgers=ledger)

    assert frame.columns == ["ledger_id", "entry_id", "payload", "length"]
    assert rows_of(frame) == plain_rows(cluster, ledger)
    assert frame.agg(f.count("*"), f.sum("length")).first() == (1000, 100_000)
