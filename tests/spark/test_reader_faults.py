"""What happens to a scan that is under way, and records that nobody understands."""

from __future__ import annotations

import pytest

from ledger_client import LedgerClient
from metadata.store import ANY_VERSION
from spark.errors import SourceError
from tests.ledger_client.live.cluster import LiveCluster
from tests.spark.ledgers import Row, direct_reader, on_client, payloads, plain_rows, written


@pytest.mark.parametrize("write_quorum", [2, 3])
def test_bookie_lost_in_mid_scan_changes_no_row(cluster: LiveCluster, write_quorum: int) -> None:
    """Killed while it is read from; the rows before and after are those of the plain client."""
    ledger = written(cluster, payloads(2000, 1000), write_quorum=write_quorum)
    expected = plain_rows(cluster, ledger)
    reader = direct_reader(
        cluster, ledgers=ledger, minPartitions=1, maxPartitions=1, targetPartitionBytes="1g",
        batchRows=50, readChunkBytes="16k", readWindowBytes="32k",
    )  # fmt: skip
    (partition,) = reader.partitions()
    metadata = on_client(cluster, lambda client: client.metadata(ledger))
    victim = cluster.bookies[metadata.last_fragment.ensemble[ledger % 3]]

    batches = reader.read(partition)
    found = [next(batches)]
    victim.kill()
    try:
        found += batches
    finally:
        victim.start()

    assert len(found) > 20, "most of it was read afterwards"
    rows: list[Row] = []
    for batch in found:
        columns = batch.to_pydict()
        rows += zip(columns["ledger_id"], columns["entry_id"], columns["payload"], strict=True)
    assert rows == expected, "also in their order"


@pytest.mark.parametrize("selection", ["{}", "{}-{}"])
def test_record_that_nobody_understands_fails_with_its_code(
    cluster: LiveCluster, selection: str
) -> None:
    ledger = written(cluster, payloads(3))

    async def spoil(client: LedgerClient) -> None:
        ledgers = client._environment.ledgers
        path = ledgers.paths.path_of(ledger)  # type: ignore[arg-type]
        await ledgers.store.set(path, b"no record", version=ANY_VERSION)

    on_client(cluster, spoil)
    try:
        with pytest.raises(SourceError, match=rf"^BAD_METADATA ledger={ledger}: "):
            direct_reader(cluster, ledgers=selection.format(ledger, ledger)).partitions()
    finally:
        on_client(cluster, lambda client: client.delete(ledger))
