"""Ledgers to read, and what the plain client reads from them."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ledger_client import DigestType, LedgerClient
from ledger_client.requests import Adds, Answer
from metadata import update
from metadata.model import new_ledger
from spark.reader import LedgerBatchReader
from spark.schema import default_schema
from tests.ledger_client.live.cluster import LiveCluster
from wire.batch import join_records
from wire.digest import digest_for, master_key
from wire.entry import encode_entry
from wire.types import LedgerId

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
            entries = reader.read(0, reader.last_confirmed)
            found += [(ledger_id, entry.id, entry.payload) async for entry in entries]
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


def direct_reader(
    cluster: LiveCluster, schema: StructType | None = None, /, **options: object
) -> LedgerBatchReader:
    """The reader as Spark makes it, without Spark."""
    texts = {"metadataserviceuri": cluster.uri}
    texts |= {name.lower(): str(value) for name, value in options.items()}
    table = texts.get("table", "entries")
    return LedgerBatchReader(texts, schema or default_schema(table))


def direct_batches(reader: LedgerBatchReader) -> list[Any]:
    """All batches, partition by partition, each of which travels as it would to an executor."""
    found: list[Any] = []
    for partition in reader.partitions():
        found += pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition)))
    return found


def direct_rows(cluster: LiveCluster, **options: object) -> list[Row]:
    found: list[Row] = []
    for batch in direct_batches(direct_reader(cluster, **options)):
        columns = batch.to_pydict()
        found += zip(columns["ledger_id"], columns["entry_id"], columns["payload"], strict=True)
    return sorted(found)


async def planted_runs(
    client: LedgerClient,
    entries: Sequence[bytes],
    *,
    missing: Sequence[int] = (),
    rotten: Sequence[int] = (),
    custom: dict[str, bytes] | None = None,
) -> int:
    """A closed ledger on three bookies, none of which has the missing entries."""
    environment = client._environment
    ensemble = sorted(client.bookies().writable)[:3]
    template = new_ledger(
        ledger_id=LedgerId(0), ensemble=ensemble, write_quorum=3, ack_quorum=3,
        digest_type=DigestType.CRC32C, password=b"", custom=custom,
    )  # fmt: skip
    ledger_id = (await environment.ledgers.create(template)).metadata.ledger_id
    length = 0
    for entry_id, payload in enumerate(entries):
        length += len(payload)
        if entry_id in missing:
            continue
        entry = encode_entry(
            payload, ledger_id=ledger_id, entry_id=entry_id, lac=entry_id - 1, length=length,
            digest=digest_for(DigestType.CRC32C),
        )  # fmt: skip
        if entry_id in rotten:
            entry = entry[:-1] + bytes([entry[-1] ^ 1])
        for bookie_id in ensemble:
            done = trio.Event()

            def take(answers: list[Answer], done: trio.Event = done) -> None:
                done.set()

            request = Adds(
                request_id=next(environment.request_ids), sink=take, ledger_id=ledger_id,
                entry_ids=range(entry_id, entry_id + 1), records=join_records([entry]),
                master_key=master_key(b""),
            )  # fmt: skip
            environment.pool.ask(bookie_id, request)
            await done.wait()
    close = update.Close(last_entry_id=len(entries) - 1, length=length)
    await environment.ledgers.update(ledger_id, close)
    return ledger_id
