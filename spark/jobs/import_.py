"""Import: Parquet into ledgers, exactly once, verified against the rows that were read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import trio
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

from spark.commits import open_commits
from spark.core.commits import CommitRecord, Identity
from spark.core.rollup import RollUp
from spark.jobs.session import JobError, parser_of, run_job

_ORDER = ("ledger_id", "entry_id")


@dataclass(frozen=True, slots=True)
class Imported:
    identity: str
    ledgers: int
    entries: int
    nbytes: int

    def __str__(self) -> str:
        return (
            f"{self.entries} rows with {self.nbytes} bytes imported into {self.ledgers} ledgers "
            f"and verified: read them with the option commit={self.identity}"
        )


def import_rows(
    spark: SparkSession,
    uri: str,
    path: str,
    write_id: str,
    *,
    credentials: str | None = None,
    client_conf: str | None = None,
    **options: str,
) -> Imported:
    """The column `payload` of these files into new ledgers, committed as `write_id`.

    What `export` wrote keeps its order: all of a ledger goes into one partition. The same import
    once more changes nothing. `options` are the sink's, such as `ensemble`.
    """
    seen = Observation()
    rows = _rows(spark, path).observe(
        seen,
        sql.count("*").alias("entries"),
        sql.coalesce(sql.sum(sql.length("payload")), sql.lit(0)).alias("nbytes"),
        sql.coalesce(sql.sum(sql.crc32("payload")), sql.lit(0)).alias("checksum"),
    )
    writer = rows.write.format("ledger").mode("append").options(**options)
    if credentials is not None:
        writer = writer.option("credentials", credentials)
    if client_conf is not None:
        writer = writer.option("clientConf", client_conf)
    writer.option("metadataServiceUri", uri).option("writeId", write_id).save()
    record = trio.run(_committed, uri, write_id, client_conf)
    read = RollUp(**seen.get)
    if record is None or record.rows != read:
        raise JobError(
            f"commit {write_id}: {read.entries} rows and {read.nbytes} bytes were read from "
            f"{path}, and it holds {record and record.rows}"
        )
    return Imported(write_id, len(record.ledgers), read.entries, read.nbytes)


def _rows(spark: SparkSession, path: str) -> DataFrame:
    try:
        table = spark.read.parquet(f"{path}/entries")  # what an export made
    except AnalysisException:
        table = spark.read.parquet(path)
    if "payload" not in table.columns:
        raise JobError(f"{path} has no column payload, but {', '.join(table.columns)}")
    order = [name for name in _ORDER if name in table.columns]
    if len(order) == len(_ORDER):
        table = table.repartitionByRange("ledger_id").sortWithinPartitions(*order)
    return table.select("payload")


async def _committed(uri: str, write_id: str, client_conf: str | None) -> CommitRecord | None:
    async with open_commits(uri, client_conf) as commits:
        return await commits.read(Identity(write_id))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("import", __doc__, ledgers=False)
    parser.add_argument("--path", required=True, help="a folder of Parquet files")
    parser.add_argument("--write-id", required=True, help="the name of the commit")
    for name in ("ensemble", "writeQuorum", "ackQuorum"):
        parser.add_argument(f"--{name}")
    return run_job(
        parser,
        arguments,
        lambda spark, given: import_rows(
            spark,
            given.uri,
            given.path,
            given.write_id,
            credentials=given.credentials,
            client_conf=given.client_conf,
            **{
                name: value
                for name in ("ensemble", "writeQuorum", "ackQuorum")
                if (value := getattr(given, name)) is not None
            },
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
