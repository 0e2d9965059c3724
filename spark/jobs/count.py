"""Count: rows, bytes and a checksum of the payloads, by ledger. Reads every entry once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from spark.core.rollup import RollUp
from spark.jobs.session import load, parser_of, run_job


def count(
    spark: SparkSession,
    uri: str,
    ledgers: str,
    *,
    credentials: str | None = None,
    client_conf: str | None = None,
) -> dict[int, RollUp]:
    """What the rows of each ledger add up to; a ledger without rows is not there."""
    rows = load(spark, uri, ledgers, credentials=credentials, clientConf=client_conf)
    found = rows.groupBy("ledger_id").agg(
        sql.count("*").alias("entries"),
        sql.sum("length").alias("nbytes"),
        sql.sum(sql.crc32("payload")).alias("checksum"),
    )
    return {
        row.ledger_id: RollUp(row.entries, row.nbytes, row.checksum)
        for row in found.orderBy("ledger_id").collect()
    }


def lines_of(found: dict[int, RollUp]) -> str:
    """`ledger entries bytes checksum`, one line for each ledger."""
    return "\n".join(
        f"{ledger_id} {' '.join(map(str, rows.to_list()))}" for ledger_id, rows in found.items()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(
        parser_of("count", __doc__),
        arguments,
        lambda spark, given: lines_of(
            count(
                spark,
                given.uri,
                given.ledgers,
                credentials=given.credentials,
                client_conf=given.client_conf,
            )
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
