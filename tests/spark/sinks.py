"""What the tests of the sink share: writing as a task does, and looking at what is committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import pyarrow as pa
import trio

from ledger_client.sync import LedgerClient
from spark.commits import Commits, open_commits
from spark.core.commits import IDENTITY_KEY, Identity
from spark.options import parse_sink
from spark.sink import Written
from spark.sink_task import write_part

T = TypeVar("T")

#: The live cluster has four bookies; two copies are enough for what is tested here.
SHAPE = {"ensemble": "2", "writeQuorum": "2", "ackQuorum": "2"}


def batch_of(rows: Iterable[bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(list(rows), pa.binary())], names=["payload"])


def written(
    uri: str,
    identity: Identity,
    rows: Sequence[bytes | None],
    *,
    partition: int = 0,
    attempt: int = 0,
    **options: str,
) -> Written:
    """What a task does that gets these rows, in two batches."""
    parsed = parse_sink({"metadataServiceUri": uri, **SHAPE, **options})
    half = len(rows) // 2
    batches = [batch_of(rows[:half]), batch_of(rows[half:])]
    return Written(
        identity, write_part(parsed, identity, batches, partition=partition, attempt=attempt)
    )


def on_commits(uri: str, job: Callable[[Commits], Awaitable[T]]) -> T:
    async def main() -> T:
        async with open_commits(uri) as commits:
            return await job(commits)

    return trio.run(main)


def committed_rows(client: LedgerClient, uri: str, identity: Identity) -> list[bytes]:
    """The rows of a commit, in order, as the plain client reads them."""
    ledger_ids = on_commits(uri, lambda commits: commits.ledger_ids(identity))
    return rows_of(client, ledger_ids)


def rows_of(client: LedgerClient, ledger_ids: Iterable[int]) -> list[bytes]:
    rows: list[bytes] = []
    for ledger_id in ledger_ids:
        with client.open_no_recovery(ledger_id) as reader:
            assert reader.is_closed
            rows += (entry.payload for entry in reader.read(0, reader.last_confirmed))
    return rows


def ledgers_of(client: LedgerClient, name: str) -> list[int]:
    """All ledgers that a sink wrote under this name, committed or not."""
    found: list[int] = []
    for ledger_id in client.list():
        identity = client.metadata(ledger_id).custom_value(IDENTITY_KEY)
        if identity is not None and identity.decode().split("/")[0] == name:
            found.append(ledger_id)
    return found
