"""The writers of the sink on real bookies, called as Spark calls them, without its processes.

Attempts that fail, come twice or get lost are told apart by who reports what, which is in the
hands of the test this way.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Mapping
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from ledger_client.sync import LedgerClient
from spark.core.commits import Identity
from spark.errors import SourceError, coding
from spark.options import parse_sink
from spark.sink import LedgerBatchWriter, LedgerStreamWriter
from spark.sink_task import write_part
from tests.ledger_client.live.cluster import LiveCluster
from tests.spark.sinks import SHAPE, batch_of, committed_rows, ledgers_of, on_commits, written

PAYLOADS = StructType().add("payload", "binary")
DAY_MS = 24 * 3600 * 1000


def options_of(cluster: LiveCluster, **more: str) -> dict[str, str]:
    return {"metadataServiceUri": cluster.uri, **SHAPE, **more}


def batch_writer(cluster: LiveCluster, name: str, *, overwrite: bool = False) -> LedgerBatchWriter:
    """As the planner gets it: it crossed over as a pickle."""
    options = options_of(cluster, writeId=name)
    writer = LedgerBatchWriter(options, PAYLOADS, overwrite=overwrite)
    found = pickle.loads(pickle.dumps(writer))
    assert isinstance(found, LedgerBatchWriter)
    return found


def sweep(cluster: LiveCluster, *, later_ms: int) -> list[int]:
    now_ms = time.time_ns() // 1_000_000 + later_ms
    return on_commits(cluster.uri, lambda commits: commits.sweep(now_ms=now_ms))


def test_commit_holds_the_rows_in_the_order_of_partitions(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    job = Identity("ordered")
    messages = [
        written(cluster.uri, job, [b"%d-%d" % (part, n) for n in range(50)], partition=part)
        for part in (2, 0, 1)
    ]
    batch_writer(cluster, "ordered").commit([*messages, None])
    expected = [b"%d-%d" % (part, n) for part in range(3) for n in range(50)]
    assert committed_rows(client, cluster.uri, job) == expected


def test_ledger_rolls_at_its_size_and_rows_keep_their_order(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    job = Identity("rolling")
    rows = [b"%04d" % n + b"x" * 96 for n in range(100)]
    message = written(cluster.uri, job, rows, maxLedgerBytes="1500")
    assert len(message.part.ledgers) == 7
    batch_writer(cluster, "rolling").commit([message])
    assert committed_rows(client, cluster.uri, job) == rows


def test_second_attempt_of_a_partition_leaves_no_double_rows_and_is_swept(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    """A speculative copy that ends too late is not reported; its ledger is nobody's."""
    job = Identity("twice")
    rows = [b"row %d" % n for n in range(20)]
    late = written(cluster.uri, job, rows, attempt=1)
    batch_writer(cluster, "twice").commit([written(cluster.uri, job, rows, attempt=0)])
    assert committed_rows(client, cluster.uri, job) == rows
    assert len(ledgers_of(client, "twice")) == 2
    assert sweep(cluster, later_ms=DAY_MS // 2) == []
    assert late.part.ledgers[0].ledger_id in sweep(cluster, later_ms=DAY_MS)
    assert committed_rows(client, cluster.uri, job) == rows


def test_abort_removes_what_was_written(cluster: LiveCluster, client: LedgerClient) -> None:
    message = written(cluster.uri, Identity("aborted"), [b"row"])
    batch_writer(cluster, "aborted").abort([None, message])
    assert ledgers_of(client, "aborted") == []
    with pytest.raises(Exception, match="nothing is committed as aborted"):
        committed_rows(client, cluster.uri, Identity("aborted"))


def test_abort_after_a_commit_whose_answer_was_lost_keeps_its_rows(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    job = Identity("won")
    message = written(cluster.uri, job, [b"row"])
    writer = batch_writer(cluster, "won")
    with (
        patch("spark.sink._log.info", side_effect=RuntimeError("the answer was lost")),
        pytest.raises(RuntimeError),
    ):
        writer.commit([message])
    writer.abort([message])
    assert committed_rows(client, cluster.uri, job) == [b"row"]


def test_second_run_of_a_job_with_the_same_rows_changes_nothing(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    """Also when the rows are cut into partitions in another way."""
    job = Identity("again")
    rows = [b"row %d" % n for n in range(20)]
    batch_writer(cluster, "again").commit([written(cluster.uri, job, rows)])
    parts = [
        written(cluster.uri, job, rows[:7], partition=0),
        written(cluster.uri, job, rows[7:], partition=1),
    ]
    batch_writer(cluster, "again").commit(parts)
    assert committed_rows(client, cluster.uri, job) == rows
    assert len(ledgers_of(client, "again")) == 1


def test_second_run_of_a_job_with_other_rows_is_refused(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    job = Identity("conflict")
    writer = batch_writer(cluster, "conflict")
    writer.commit([written(cluster.uri, job, [b"one"])])
    other = written(cluster.uri, job, [b"two"])
    with pytest.raises(SourceError, match=r"^COMMIT_CONFLICT: commit conflict: it stands already"):
        writer.commit([other])
    writer.abort([other])
    assert committed_rows(client, cluster.uri, job) == [b"one"]
    assert len(ledgers_of(client, "conflict")) == 1


def test_overwrite_replaces_the_rows_of_a_commit(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    job = Identity("replaced")
    batch_writer(cluster, "replaced").commit([written(cluster.uri, job, [b"old"])])
    batch_writer(cluster, "replaced", overwrite=True).commit(
        [written(cluster.uri, job, [b"new", b"rows"])]
    )
    assert committed_rows(client, cluster.uri, job) == [b"new", b"rows"]
    assert len(ledgers_of(client, "replaced")) == 2  # whoever planned before may still read


def test_commit_of_a_ledger_that_was_deleted_fails(cluster: LiveCluster) -> None:
    message = written(cluster.uri, Identity("deleted"), [b"row"])
    ledger_id = message.part.ledgers[0].ledger_id
    on_commits(cluster.uri, lambda commits: commits.discard(Identity("deleted"), [ledger_id]))
    with pytest.raises(SourceError, match=rf"^LEDGER_GONE ledger={ledger_id}"):
        batch_writer(cluster, "deleted").commit([message])


def test_partition_without_rows_makes_no_ledger(cluster: LiveCluster, client: LedgerClient) -> None:
    job = Identity("nothing")
    message = written(cluster.uri, job, [])
    batch_writer(cluster, "nothing").commit([message])
    assert committed_rows(client, cluster.uri, job) == []
    assert ledgers_of(client, "nothing") == []


def test_replayed_batch_of_a_stream_changes_nothing(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    for batch in range(2):
        identity = Identity("query", batch)
        for _ in range(2):  # the second time Spark did not learn that the first had ended
            writer = LedgerStreamWriter(options_of(cluster), PAYLOADS)
            writer.commit([written(cluster.uri, identity, [b"batch %d" % batch])], batch)
    assert committed_rows(client, cluster.uri, Identity("query")) == [b"batch 0", b"batch 1"]
    assert committed_rows(client, cluster.uri, Identity("query", 1)) == [b"batch 1"]
    assert len(ledgers_of(client, "query")) == 2


def test_stream_commit_without_a_single_task_is_nothing(cluster: LiveCluster) -> None:
    LedgerStreamWriter(options_of(cluster), PAYLOADS).commit([], 7)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (None, r"^BAD_ROW: row 3 of partition 0 has no payload"),
        (b"x" * 6_000_000, r"^BAD_ROW ledger=\d+: ledger \d+: a payload of 6000000 bytes"),
    ],
    ids=["null", "too large"],
)
def test_row_that_no_ledger_can_keep_is_named_and_nothing_is_left(
    cluster: LiveCluster, client: LedgerClient, row: bytes | None, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        written(cluster.uri, Identity("bad-row"), [b"a", b"b", b"c", row])
    assert ledgers_of(client, "bad-row") == []


def test_more_bookies_than_there_are_cannot_be_had(cluster: LiveCluster) -> None:
    with pytest.raises(SourceError, match=r"^NOT_ENOUGH_BOOKIES"), coding():
        written(cluster.uri, Identity("wide"), [b"row"], ensemble="9")


@pytest.mark.parametrize(
    ("columns", "more", "overwrite", "message"),
    [
        ("value binary", {}, False, "rows need a column payload"),
        ("payload integer", {}, False, "a ledger keeps bytes"),
        ("payload binary, note string", {}, False, "column note would be lost"),
        ("payload binary", {}, True, "say which one with writeId"),
        ("payload binary", {"writeId": "a b"}, False, "writeId"),
        ("payload binary", {"writeID": "a/b"}, False, "writeId"),
        ("payload binary", {"ensemble": "1"}, False, "ensemble >= writeQuorum"),
        ("payload binary", {"ledgers": "1"}, False, "for reading only"),
    ],
)
def test_writer_refuses_what_cannot_be_written(
    columns: str, more: Mapping[str, str], overwrite: bool, message: str
) -> None:
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema.add(name, kind)
    options = {"metadataServiceUri": "zk://localhost:1/ledgers", **SHAPE, **more}
    with pytest.raises(SourceError, match=rf"^BAD_OPTION: .*{message}"):
        LedgerBatchWriter(options, schema, overwrite=overwrite)


def test_stream_writer_refuses_to_begin_anew_with_each_batch() -> None:
    options = {"metadataServiceUri": "zk://localhost:1/ledgers"}
    with pytest.raises(SourceError, match=r"^BAD_OPTION: outputMode complete"):
        LedgerStreamWriter(options, PAYLOADS, overwrite=True)


def test_columns_of_a_read_can_be_written_back(cluster: LiveCluster) -> None:
    schema = StructType().add("ledger_id", "long").add("payload", "string").add("length", "integer")
    LedgerBatchWriter(options_of(cluster), schema)


def test_ledger_that_somebody_recovers_while_it_is_written_fails_with_its_code(
    cluster: LiveCluster, client: LedgerClient
) -> None:
    job = Identity("fenced")
    parsed = parse_sink(options_of(cluster))

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_of([b"row"] * 10)
        (ledger_id,) = ledgers_of(client, "fenced")
        client.open(ledger_id).close()  # with recovery: the writer is fenced
        for _ in range(100):
            yield batch_of([b"row"] * 10)

    with pytest.raises(SourceError, match=r"^LEDGER_FENCED "), coding():
        write_part(parsed, job, batches(), partition=0, attempt=0)
