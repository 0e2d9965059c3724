"""The jobs on real bookies: what they find, and that they can be started again."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from ledger_client.sync import LedgerClient
from spark import submit
from spark.core.commits import Identity
from spark.jobs import export as export_job
from spark.jobs.export import export
from spark.jobs.import_ import import_rows
from spark.jobs.session import JobError
from spark.jobs.statistics import statistics
from spark.jobs.verify import Verified, verify
from tests.ledger_client.live.cluster import LiveCluster
from tests.ledger_client.live.planted import planted
from tests.security.certificates import Authority
from tests.spark.sinks import SHAPE, committed_rows
from tests.spark.streams import filled, made, rows_named


def report_of(folder: Path) -> dict[tuple[int, str], dict[str, int]]:
    rows = [
        json.loads(line) for part in folder.glob("*.json") for line in part.read_text().splitlines()
    ]
    return {(row.pop("ledger_id"), row.pop("bookie")): row for row in rows}


def test_verify_finds_every_copy_of_sound_ledgers(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient, tmp_path: Path
) -> None:
    """One striped over four bookies, three copies each; one open, which is left out."""
    plain = filled(client, 100)
    with client.create(ensemble_size=4, write_quorum=3, ack_quorum=3) as striped:
        striped.append_many(rows_named("row", range(101)))
    with made(client) as still_open:
        still_open.append(b"row")
        named = f"{plain},{striped.id},{still_open.id}"
        found = verify(spark, cluster.uri, named, str(tmp_path / "report"))
    assert found == Verified(ledgers=2, expected=503, good=503)
    assert found.is_sound
    rows = report_of(tmp_path / "report")
    assert sum(row["good"] for key, row in rows.items() if key[0] == striped.id) == 303
    assert len(rows) == 2 + 4


def test_verify_names_the_bookies_whose_copies_are_rotten_or_missing(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient, tmp_path: Path
) -> None:
    first, second, third = sorted(cluster.bookies)[:3]
    metadata = client.submit(
        lambda c: planted(c, rows_named("row", range(5)), bookies=[first, second], rotten=[second])
    ).result()
    ledger_id = metadata.ledger_id
    found = verify(spark, cluster.uri, str(ledger_id), str(tmp_path / "report"))
    assert found == Verified(ledgers=1, expected=15, good=5, missing=5, corrupt=5)
    assert not found.is_sound
    rows = report_of(tmp_path / "report")
    assert (rows[ledger_id, first]["good"], rows[ledger_id, second]["corrupt"]) == (5, 5)
    assert rows[ledger_id, third]["missing"] == 5
    assert rows[ledger_id, third]["first_bad_entry"] == 0


def test_verify_reaches_bookies_as_the_client_conf_says(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient, tmp_path: Path
) -> None:
    """One that insists on TLS gets nothing from bookies without: no copy is read in clear."""
    conf = tmp_path / "client.conf"
    conf.write_text(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n"
        f"tlsTrustStore={Authority(tmp_path / 'ca').trust}\n"
    )
    ledger_id = filled(client, 3)
    report = str(tmp_path / "report")
    found = verify(spark, cluster.uri, str(ledger_id), report, client_conf=str(conf))
    assert found == Verified(ledgers=1, expected=6, unreachable=6)


def test_statistics_count_by_ledger_and_by_time(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient
) -> None:
    small, large = filled(client, 10, size=10), filled(client, 20, size=100)
    found = statistics(spark, cluster.uri, f"{small},{large}", seconds=86400 * 365)
    rows = [(row.ledger_id, row.entries, row.bytes) for row in found.ledgers.collect()]
    assert rows == [(large, 20, 2000), (small, 10, 100)]
    (time,) = found.times.collect()
    assert (time.ledgers, time.entries, time.bytes) == (2, 30, 2100)
    assert str(found).startswith("2 ledgers, 30 entries, 2100 bytes")


def test_export_and_import_keep_every_row_and_go_on_after_a_stop(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient, tmp_path: Path
) -> None:
    """Stopped after the first of two groups was written down and the second was half done."""
    ids = [filled(client, 30, name=f"ledger {n}") for n in range(2)]
    named, path = ",".join(map(str, ids)), str(tmp_path / "out")
    with patch.object(export_job, "_GROUP_LEDGERS", 1):
        real = export_job._check_group

        def stop_at_second(*arguments: object) -> None:
            if arguments[2][0].ledger_id == ids[1]:  # type: ignore[index]
                raise JobError("stopped")
            real(*arguments)  # type: ignore[arg-type]

        with (
            patch.object(export_job, "_check_group", stop_at_second),
            pytest.raises(JobError, match="stopped"),
        ):
            export(spark, cluster.uri, named, path)
    again = export(spark, cluster.uri, named, path)
    assert (again.ledgers, again.entries, again.skipped) == (1, 30, 1)
    assert export(spark, cluster.uri, named, path).skipped == 2
    table = spark.read.parquet(f"{path}/entries")
    assert table.count() == 60

    for _ in range(2):  # the second time changes nothing
        done = import_rows(spark, cluster.uri, path, "imported", **SHAPE)
        assert done.entries == 60
    rows = [row for n in range(2) for row in rows_named(f"ledger {n}", range(30))]
    assert committed_rows(client, cluster.uri, Identity("imported")) == rows


def test_export_that_reads_back_something_else_is_an_error(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient, tmp_path: Path
) -> None:
    ledger_id = filled(client, 5)
    path = str(tmp_path / "out")
    export(spark, cluster.uri, str(ledger_id), path)
    (row,) = spark.read.parquet(f"{path}/manifest").collect()
    with pytest.raises(JobError, match="another checksum"):
        export_job._check_group(spark, path, [row], 1)
    row = type(row)(ledger_id=row.ledger_id, entries=6, bytes=row.bytes)
    with pytest.raises(JobError, match=f"ledger {ledger_id}: the record says 6 entries"):
        export_job._check_group(spark, path, [row], 1)


def test_commands_say_what_they_found_and_errors_are_one_line(
    spark: SparkSession,
    cluster: LiveCluster,
    client: LedgerClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger_id = filled(client, 3)
    report = str(tmp_path / "report")
    arguments = ["verify", "--uri", cluster.uri, "--report", report, "--ledgers"]
    assert submit.main([*arguments, str(ledger_id)]) == 0
    assert capsys.readouterr().out.startswith("all copies are good: 1 ledgers, 6 copies, 6 good")
    assert submit.main([*arguments, "987654321"]) == 1
    assert capsys.readouterr().err.startswith("verify: LEDGER_NOT_FOUND ledger=987654321: ")
    assert submit.main(["juggle"]) == 2
