"""Export: closed ledgers to Parquet, a folder per ledger, verified, and gone on with after a stop.

`<path>/entries/ledger_id=7/` holds the rows; `<path>/manifest` says which ledgers are complete. A
ledger is written down there only after its rows were read back and counted, so a run that was
stopped anywhere is simply started again: what is not in the manifest is written anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as sql

from spark.jobs.session import JobError, load, parser_of, run_job

#: Written, verified and written down at a time: so much is lost at most when a run is stopped.
_GROUP_BYTES: Final = 4 << 30
_GROUP_LEDGERS: Final = 1000
_MANIFEST: Final = "ledger_id long, entries long, bytes long"


@dataclass(frozen=True, slots=True)
class Exported:
    ledgers: int
    entries: int
    nbytes: int
    skipped: int

    def __str__(self) -> str:
        return (
            f"{self.ledgers} ledgers with {self.entries} entries and {self.nbytes} bytes exported "
            f"and verified; {self.skipped} were there already"
        )


def export(
    spark: SparkSession,
    uri: str,
    ledgers: str,
    path: str,
    *,
    credentials: str | None = None,
    client_conf: str | None = None,
) -> Exported:
    """Rows are ledger_id, entry_id and payload."""
    access = {"credentials": credentials, "clientConf": client_conf}
    closed = load(spark, uri, ledgers, table="ledgers", **access)
    closed = closed.where("state = 'CLOSED' and last_entry >= 0")
    wanted = closed.select("ledger_id", (sql.col("last_entry") + 1).alias("entries"), "bytes")
    done = {row.ledger_id for row in _manifest(spark, path).collect()}
    todo = [row for row in wanted.orderBy("ledger_id").collect() if row.ledger_id not in done]
    skipped = wanted.count() - len(todo)
    for group in _groups(todo):
        _export_group(spark, uri, path, group, access)
    entries, nbytes = sum(row.entries for row in todo), sum(row.bytes for row in todo)
    return Exported(len(todo), entries, nbytes, skipped)


def _manifest(spark: SparkSession, path: str) -> DataFrame:
    try:
        return spark.read.schema(_MANIFEST).parquet(f"{path}/manifest")
    except AnalysisException:  # nothing was exported yet
        return spark.createDataFrame([], _MANIFEST)


def _groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    room = _GROUP_BYTES
    for row in rows:
        if group and (room < row.bytes or len(group) == _GROUP_LEDGERS):
            yield group
            group, room = [], _GROUP_BYTES
        group.append(row)
        room -= row.bytes
    if group:
        yield group


def _export_group(
    spark: SparkSession, uri: str, path: str, group: Sequence[Row], access: dict[str, str | None]
) -> None:
    ids = ",".join(str(row.ledger_id) for row in group)
    seen = Observation()
    rows = load(spark, uri, ids, **access).select("ledger_id", "entry_id", "payload")
    rows = rows.observe(seen, sql.sum(sql.crc32("payload")).alias("checksum"))
    # Only the folders of these ledgers are replaced: what an earlier run left half done.
    rows.write.partitionBy("ledger_id").mode("overwrite").option(
        "partitionOverwriteMode", "dynamic"
    ).parquet(f"{path}/entries")
    _check_group(spark, path, group, seen.get["checksum"])
    spark.createDataFrame(group, _MANIFEST).coalesce(1).write.mode("append").parquet(
        f"{path}/manifest"
    )


def _check_group(spark: SparkSession, path: str, group: Sequence[Row], checksum: int) -> None:
    """Read back what was written: counts, bytes and ids by ledger, the checksum over all."""
    files = [f"{path}/entries/ledger_id={row.ledger_id}" for row in group]
    written = spark.read.option("basePath", f"{path}/entries").parquet(*files)
    found = {
        row.ledger_id: row
        for row in written.groupBy("ledger_id")
        .agg(
            sql.count("*").alias("entries"),
            sql.countDistinct("entry_id").alias("ids"),
            sql.max("entry_id").alias("last"),
            sql.sum(sql.length("payload")).alias("bytes"),
            sql.sum(sql.crc32("payload")).alias("checksum"),
        )
        .collect()
    }
    for row in group:
        there = found.get(row.ledger_id)
        if (
            there is None
            or (there.entries, there.bytes) != (row.entries, row.bytes)
            or (there.ids, there.last) != (row.entries, row.entries - 1)
        ):
            raise JobError(
                f"ledger {row.ledger_id}: the record says {row.entries} entries and {row.bytes} "
                f"bytes, and {path} has {there}: start the export again"
            )
    total = sum(row.checksum for row in found.values())
    if total != checksum:
        raise JobError(
            f"{len(group)} ledgers from {group[0].ledger_id} on: the files in {path} have another "
            "checksum than the entries: start the export again"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("export", __doc__)
    parser.add_argument("--path", required=True, help="where the files go")
    return run_job(
        parser,
        arguments,
        lambda spark, given: export(
            spark,
            given.uri,
            given.ledgers,
            given.path,
            credentials=given.credentials,
            client_conf=given.client_conf,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
