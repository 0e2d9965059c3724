"""Arrow batches and pandas frames without Spark."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from ledger_client import LedgerClient, NoSuchEntryError, arrow
from ledger_client.arrow import MissingLibraryError, read_batches, read_pandas, read_table
from tests.ledger_client.live.cluster import LiveCluster
from tests.ledger_client.live.planted import planted


async def test_batches_hold_what_the_client_reads(cluster: LiveCluster) -> None:
    """Striped and not, several ledgers in the order given, an open one up to its LAC."""
    async with LedgerClient(cluster.uri) as client:
        wanted: list[tuple[int, int, bytes]] = []
        ledgers = []
        for write_quorum in (3, 2):
            async with await client.create(write_quorum=write_quorum) as writer:
                await writer.append_many([b"%d" % i for i in range(300)])
            ledgers.append(writer.id)
            wanted += [(writer.id, i, b"%d" % i) for i in range(300)]

        found: list[tuple[int, int, bytes]] = []
        batches = read_batches(client, ledgers, batch_rows=128)
        async with aclosing(batches):
            async for batch in batches:
                assert batch.num_rows <= 128
                columns = batch.to_pydict()
                found += zip(
                    columns["ledger_id"], columns["entry_id"], columns["payload"], strict=True
                )

        assert found == wanted


async def test_lost_entries_fail_or_are_rows(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        bookies = sorted(client.bookies().writable)[:3]
        rotten = await planted(client, [b"a", b"b"], bookies=bookies, rotten=bookies)
        lost = await planted(client, [b"a", b"b"], bookies=[])

        with pytest.raises(NoSuchEntryError):
            async with aclosing(read_batches(client, [lost.ledger_id])) as batches:
                _ = [batch async for batch in batches]
        kept = read_batches(
            client,
            [lost.ledger_id, rotten.ledger_id],
            columns=["status", "payload"],
            keep_missing=True,
        )
        async with aclosing(kept):
            rows = [row async for batch in kept for row in batch.to_pylist()]

        assert [row["status"] for row in rows] == ["missing", "missing", "digest", "digest"]
        assert all(row["payload"] is None for row in rows)


def test_pandas_frame_is_the_table_as_pandas_makes_it(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "find_spec", lambda name: None)
    with pytest.raises(MissingLibraryError, match="needs pandas, which is not installed"):
        read_pandas(cluster.uri, [])

    class Table:
        def to_pandas(self) -> str:
            return "a frame"

    monkeypatch.setattr(arrow, "find_spec", lambda name: object())
    monkeypatch.setattr(arrow, "table_of", lambda batches, schema: Table())
    assert read_pandas(cluster.uri, []) == "a frame"


def test_table_of_no_ledgers_has_its_columns(cluster: LiveCluster) -> None:
    table = read_table(cluster.uri, [])
    assert (table.num_rows, table.column_names) == (
        0, ["ledger_id", "entry_id", "payload", "length"],
    )  # fmt: skip
