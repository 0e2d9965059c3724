"""A query from ledgers to ledgers, stopped in every phase and started again: each row once.

What a crash leaves is what the checkpoint holds at that moment. So a phase is brought about by a
batch that fails, or by taking away the file that the crash would have prevented.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ledger_client.sync import LedgerClient
from spark.core.commits import Identity
from tests.ledger_client.live.cluster import LiveCluster
from tests.spark.sinks import SHAPE, committed_rows, ledgers_of, on_commits
from tests.spark.streams import filled, rows_named

_STARTS_MAX = 10
_TOO_SLOW = "Python worker failed to connect back"


class Copy:
    """A query that copies ledgers, forty rows at a time."""

    def __init__(self, spark: SparkSession, uri: str, checkpoint: Path) -> None:
        self._spark = spark
        self._uri = uri
        self.checkpoint = checkpoint

    def run(self, ledgers: str, *, fails_at: str | None = None) -> str:
        """Everything that is available; the id of the query.

        Spark gives the Python process of a query ten seconds to come up, which a busy machine
        may need for its imports alone: that is one more restart, and no result.
        """
        for _ in range(_STARTS_MAX):
            try:
                return self._run(ledgers, fails_at)
            except PySparkException as error:
                if _TOO_SLOW not in str(error):
                    raise
        raise AssertionError(f"{_TOO_SLOW}, {_STARTS_MAX} times")

    def _run(self, ledgers: str, fails_at: str | None) -> str:
        payload = "payload"
        if fails_at is not None:
            payload = f"if(payload = cast('{fails_at}' as binary), raise_error('no'), payload)"
        query = (
            self._spark.readStream.format("ledger")
            .option("metadataServiceUri", self._uri)
            .option("ledgers", ledgers)
            .option("startingPosition", "earliest")
            .option("maxEntriesPerTrigger", "40")
            .load()
            .selectExpr(f"cast({payload} as binary) as payload")
            .writeStream.format("ledger")
            .options(**SHAPE)
            .option("metadataServiceUri", self._uri)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return str(query.id)

    def logged(self, folder: str) -> list[int]:
        """The batches in this folder of the checkpoint."""
        return sorted(int(p.name) for p in (self.checkpoint / folder).glob("[0-9]*"))

    def forget_commit(self, batch: int) -> None:
        """As if Spark had died before it wrote down that the batch is done."""
        for path in (self.checkpoint / "commits").glob(f"*{batch}*"):
            path.unlink()


def test_query_stopped_in_every_phase_writes_each_row_once(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient, tmp_path: Path
) -> None:
    first, second = filled(client, 100, name="a"), filled(client, 50, name="b")
    copy = Copy(spark, cluster.uri, tmp_path / "checkpoint")

    # The offset of the second batch is written, its tasks are half done.
    with pytest.raises(PySparkException):
        copy.run(str(first), fails_at="a 50")
    assert (copy.logged("offsets"), copy.logged("commits")) == ([0, 1], [0])

    query = copy.run(str(first))
    rows = rows_named("a", range(100))
    assert committed_rows(client, cluster.uri, Identity(query)) == rows
    assert copy.logged("offsets") == copy.logged("commits") == [0, 1, 2]

    # The sink has committed, and Spark has not written it down.
    copy.forget_commit(2)
    assert copy.logged("commits") == [0, 1]
    assert copy.run(str(first)) == query
    assert copy.logged("commits") == [0, 1, 2]
    assert committed_rows(client, cluster.uri, Identity(query)) == rows

    # Everything is written down; the stream goes on in another ledger.
    assert copy.run(f"{first},{second}") == query
    rows += rows_named("b", range(50))
    assert committed_rows(client, cluster.uri, Identity(query)) == rows
    assert len(set(copy.logged("commits"))) == 5

    listed = on_commits(cluster.uri, lambda commits: commits.ledger_ids(Identity(query)))
    left = set(ledgers_of(client, query)) - set(listed)
    for ledger_id in left:  # of attempts that failed; a sweep would take them
        assert client.metadata(ledger_id).custom_value("quire.spark.state") == b"staged"


def test_error_of_a_stream_begins_with_its_code(
    spark: SparkSession, cluster: LiveCluster, client: LedgerClient, tmp_path: Path
) -> None:
    ledger_id = filled(client, 1)
    checkpoint = tmp_path / "checkpoint"
    copy = Copy(spark, cluster.uri, checkpoint)
    copy.run(str(ledger_id))
    with pytest.raises(PySparkException, match=f"OFFSET_AHEAD ledger={ledger_id} entry="):
        copy.run(str(filled(client, 1)))
