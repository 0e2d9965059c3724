"""Verify: every replica of every entry, with its digest, and a report of what is not right."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from spark.bridge import bridged
from spark.credentials import resolve
from spark.jobs.copies import count_copies
from spark.jobs.session import parser_of, run_job
from spark.options import SourceOptions, parse_source
from spark.planning import plan_batch

if TYPE_CHECKING:
    from spark.partitions import LedgerPartition

_COLUMNS: Final = (
    "ledger_id long, bookie string, expected long, good long, missing long, corrupt long, "
    "unreachable long, first_bad_entry long"
)
_COUNTS: Final = ("expected", "good", "missing", "corrupt", "unreachable")


@dataclass(frozen=True, slots=True)
class Verified:
    """Copies of entries, over all ledgers and bookies."""

    ledgers: int = 0
    expected: int = 0
    good: int = 0
    missing: int = 0
    corrupt: int = 0
    unreachable: int = 0

    @property
    def is_sound(self) -> bool:
        return self.good == self.expected

    def __str__(self) -> str:
        verdict = "all copies are good" if self.is_sound else "COPIES ARE NOT GOOD"
        return (
            f"{verdict}: {self.ledgers} ledgers, {self.expected} copies, {self.good} good, "
            f"{self.missing} missing, {self.corrupt} corrupt, {self.unreachable} out of reach"
        )


def verify(
    spark: SparkSession,
    uri: str,
    ledgers: str,
    report: str,
    *,
    credentials: str | None = None,
    client_conf: str | None = None,
) -> Verified:
    """Read every copy of these ledgers; `report` gets a row for each ledger and bookie, as JSON.

    Ledgers that are open are left out: their last entries may be on fewer bookies for good reason.
    """
    given = {"metadataServiceUri": uri, "ledgers": ledgers}
    if credentials is not None:
        given["credentials"] = credentials
    if client_conf is not None:
        given["clientConf"] = client_conf
    options = parse_source(given)
    partitions = plan_batch(options)
    context = spark.sparkContext
    counts = context.parallelize(partitions, max(1, len(partitions))).mapPartitions(
        partial(_count, options)
    )
    rows = spark.createDataFrame(counts, _COLUMNS).groupBy("ledger_id", "bookie")
    table = rows.agg(
        *(sql.sum(name).alias(name) for name in _COUNTS),
        sql.min("first_bad_entry").alias("first_bad_entry"),
    )
    table.orderBy("ledger_id", "bookie").write.mode("overwrite").json(report)
    # Read back what was written: the copies are read once.
    found = spark.read.schema(_COLUMNS).json(report)
    total = found.agg(
        sql.countDistinct("ledger_id").alias("ledgers"),
        *(sql.coalesce(sql.sum(name), sql.lit(0)).alias(name) for name in _COUNTS),
    ).first()
    assert total is not None
    return Verified(**total.asDict())


def _count(
    options: SourceOptions, partitions: Iterable[LedgerPartition]
) -> Iterator[tuple[object, ...]]:
    passwords = resolve(options.credentials)
    for partition in partitions:
        for count in bridged(
            partial(count_copies, partition.value, passwords, options.client_conf)
        ):
            yield astuple(count)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("verify", __doc__)
    parser.add_argument("--report", required=True, help="a folder for the report, as JSON lines")
    return run_job(
        parser,
        arguments,
        lambda spark, given: verify(
            spark,
            given.uri,
            given.ledgers,
            given.report,
            credentials=given.credentials,
            client_conf=given.client_conf,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
