"""A stream reader as Spark's driver and executors use it, without their processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from ledger_client.sync import LedgerClient
from spark.options import ENTRIES
from spark.schema import default_schema
from spark.stream import LedgerStreamReader

SCHEMA = StructType(default_schema(ENTRIES).fields)
ALL = ReadAllAvailable()

_LOOK_SECONDS = 0.02
_LOOKS_MAX = 1500

Row = tuple[int, int, bytes]
Offset = dict[str, int]


def offset(ledger: int, entry: int) -> Offset:
    return {"entry": entry, "ledger": ledger, "v": 1}


@contextmanager
def reading(uri: str, ledgers: str, **options: str) -> Iterator[LedgerStreamReader]:
    reader = LedgerStreamReader(
        {"metadataServiceUri": uri, "ledgers": ledgers, "startingPosition": "earliest", **options},
        SCHEMA,
    )
    try:
        yield reader
    finally:
        reader.stop()


def rows_between(reader: LedgerStreamReader, start: Offset, end: Offset) -> list[Row]:
    """The rows of one batch, in the order of its partitions."""
    rows: list[Row] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            columns: Any = batch.to_pydict()
            rows += zip(columns["ledger_id"], columns["entry_id"], columns["payload"], strict=True)
    return rows


def wait_for(reader: LedgerStreamReader, start: Offset, end: Offset) -> None:
    """Until there is this much to read."""
    for _ in range(_LOOKS_MAX):
        found = reader.latestOffset(start, ALL)
        if found == end:
            return
        time.sleep(_LOOK_SECONDS)
    raise AssertionError(f"{found} instead of {end}")


def advance(reader: LedgerStreamReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    return reader.latestOffset(start, limit or reader.getDefaultReadLimit())


def made(client: LedgerClient, ledger_id: int | None = None, **more: Any) -> Any:
    """A ledger that is open, of two bookies."""
    return client.create(ensemble_size=2, write_quorum=2, ack_quorum=2, ledger_id=ledger_id, **more)


def filled(client: LedgerClient, count: int, *, name: str = "row", size: int = 0) -> int:
    """A closed ledger with so many entries; its id."""
    with made(client) as ledger:
        ledger.append_many(rows_named(name, range(count), size))
        return int(ledger.id)


def rows_named(name: str, numbers: range, size: int = 0) -> list[bytes]:
    return [f"{name} {n}".encode().ljust(size, b".") for n in numbers]


def expected(ledger_id: int, rows: list[bytes], first: int = 0) -> list[Row]:
    return [(ledger_id, first + index, row) for index, row in enumerate(rows)]
