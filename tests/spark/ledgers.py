"""Ledgers to read, and what the plain client reads from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio
from pyspark.sql import DataFrame, SparkSession

from ledger_client import DigestType, LedgerClient
from tests.ledger_client.live.cluster import LiveCluster

T = TypeVar("T")
Row = tuple[int, int, bytes]


def payloads(count: int, size: int = 100) -> list[bytes]:
    return [f"{i}:".encode().ljust(size, b".") for i in range(count)]


def on_client(cluster: LiveCluster, job: Callable[[LedgerClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with LedgerClient(cluster.uri) as client:
            return await job(client)

    return trio.run(run)


def written(
    cluster: LiveCluster,
    entries: Sequence[bytes],
    *,
    ensemble_size: int = 3,
    write_quorum: int = 3,
    password: bytes = b"",
    custom: dict[str, bytes] | None = None,
    digest_type: DigestType = DigestType.CRC32C,
    close: bool = True,
) -> int:
    """A ledger with these entries, closed unless it is to stay open."""

    async def write(client: LedgerClient) -> int:
        writer = await client.create(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=write_quorum,
            password=password,
            custom_metadata=custom,
            digest_type=digest_type,
        )
        if entries:
            await writer.append_many(entries)
        if close:
            await writer.close()
        else:
            await trio.sleep(0.05)  # the LAC goes out by itself a moment after the last add
        return writer.id

    return on_client(cluster, write)


def plain_rows(cluster: LiveCluster, *ledgers: int, password: bytes = b"") -> list[Row]:
    """What the client reads, as (ledger, entry, payload)."""

    async def read(client: LedgerClient) -> list[Row]:
        found: list[Row] = []
        for ledger_id in ledgers:
            reader = await client.open_no_recovery(ledger_id, password=password)
            async for entry in reader.read(0, reader.last_confirmed):
                found.append((ledger_id, entry.id, entry.payload))
        return found

    return on_client(cluster, read)


def loaded(
    spark: SparkSession, cluster: LiveCluster, schema: str | None = None, **options: object
) -> DataFrame:
    reader = spark.read.format("ledger").option("metadataServiceUri", cluster.uri)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def rows_of(frame: DataFrame) -> list[Row]:
    """All rows as (ledger, entry, payload), sorted: tasks end in any order."""
    found: Any = frame.select("ledger_id", "entry_id", "payload").collect()
    return sorted((row.ledger_id, row.entry_id, bytes(row.payload)) for row in found)
