"""Statistics: how large ledgers are, and how much came when. Metadata only, so it is cheap."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark.jobs.session import load, parser_of, run_job


@dataclass(frozen=True, slots=True)
class Statistics:
    """Two tables: one row per ledger, and one per stretch of time."""

    ledgers: DataFrame
    times: DataFrame

    def __str__(self) -> str:
        total = self.ledgers.agg(
            sql.count("*").alias("ledgers"),
            sql.sum("entries").alias("entries"),
            sql.sum("bytes").alias("bytes"),
        ).first()
        assert total is not None
        lines = [
            f"{total.ledgers} ledgers, {total.entries or 0} entries, {total.bytes or 0} bytes",
            "from                 ledgers      entries           bytes  entries/s    bytes/s",
        ]
        lines += (
            f"{row.time:%Y-%m-%d %H:%M:%S}  {row.ledgers:7d} {row.entries:12d} {row.bytes:15d} "
            f"{row.entries_per_second:10.1f} {row.bytes_per_second:10.0f}"
            for row in self.times.collect()
        )
        return "\n".join(lines)


def statistics(
    spark: SparkSession,
    uri: str,
    ledgers: str,
    *,
    seconds: int = 3600,
    top: int | None = None,
    client_conf: str | None = None,
) -> Statistics:
    """What the records of closed ledgers say; `top` keeps the largest ones only.

    A ledger counts for the time at which it was made: its record says no more.
    """
    table = load(spark, uri, ledgers, table="ledgers", clientConf=client_conf)
    table = table.where("state = 'CLOSED'")
    per_ledger = table.select(
        "ledger_id",
        (sql.col("last_entry") + 1).alias("entries"),
        "bytes",
        "ctime",
        "ensemble_size",
        "write_quorum",
        (sql.col("bytes") * sql.col("write_quorum")).alias("stored_bytes"),
        (sql.col("bytes") / sql.greatest(sql.lit(1), sql.col("last_entry") + 1)).alias(
            "entry_bytes"
        ),
    )
    bucket = sql.timestamp_seconds(
        sql.floor(sql.unix_timestamp("ctime") / sql.lit(seconds)) * sql.lit(seconds)
    )
    times = (
        per_ledger.where("ctime is not null")
        .groupBy(bucket.alias("time"))
        .agg(
            sql.count("*").alias("ledgers"),
            sql.sum("entries").alias("entries"),
            sql.sum("bytes").alias("bytes"),
        )
        .withColumn("entries_per_second", sql.col("entries") / sql.lit(seconds))
        .withColumn("bytes_per_second", sql.col("bytes") / sql.lit(seconds))
        .orderBy("time")
    )
    largest = per_ledger.orderBy(sql.desc("bytes"), "ledger_id")
    return Statistics(largest if top is None else largest.limit(top), times)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("statistics", __doc__)
    parser.add_argument("--seconds", type=int, default=3600, help="a stretch of time")
    return run_job(
        parser,
        arguments,
        lambda spark, given: statistics(
            spark,
            given.uri,
            given.ledgers,
            seconds=given.seconds,
            client_conf=given.client_conf,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
