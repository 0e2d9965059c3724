"""Ledgers as Arrow record batches and pandas frames, without Spark.

    >>> from ledger_client.arrow import read_table
    >>> from ledger_client.sync import LedgerClient
    >>> with LedgerClient("zk://127.0.0.1:2181/ledgers") as client:
    ...     with client.create(password=b"secret") as ledger:
    ...         _ = ledger.append_many([b"a", b"bc"])
    >>> table = read_table("zk://127.0.0.1:2181/ledgers", [ledger.id], password=b"secret")
    >>> table.select(["entry_id", "payload", "length"]).to_pylist()[1]
    {'entry_id': 1, 'payload': b'bc', 'length': 2}

The same reader as that of the Spark source: nothing is fenced and nothing recovered, an open ledger
is read up to its LAC, digests are checked, and an entry that is missing is an error or, when asked
for, a row that says so. Inside trio use `read_batches`; the other two start trio themselves.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from importlib.util import find_spec
from typing import Any

import trio

from ledger_client.arrow_batches import (
    COLUMNS,
    BatchBuilder,
    MissingLibraryError,
    entry_schema,
    table_of,
)
from ledger_client.client import LedgerClient
from ledger_client.environment import Environment
from ledger_client.reader import LedgerReader
from ledger_client.scan import Range, ScanOptions, scan
from ledger_client.security import read_security
from metadata.model import LedgerMetadata

__all__ = [
    "COLUMNS",
    "BatchBuilder",
    "MissingLibraryError",
    "entry_schema",
    "read_batches",
    "read_pandas",
    "read_table",
]


async def read_batches(
    client: LedgerClient,
    ledgers: Iterable[int],
    *,
    password: bytes = b"",
    columns: Sequence[str] = COLUMNS,
    keep_missing: bool = False,
    batch_rows: int = 4096,
    batch_bytes: int = 4 * 1024 * 1024,
    options: ScanOptions | None = None,
) -> AsyncGenerator[Any, None]:
    """Record batches of these ledgers, in this order; entries in order within each.

    With `keep_missing` entries that are lost or rotten are rows without a payload; ask for the
    column `status` to tell them apart.
    """
    schema = entry_schema(columns)
    builder = BatchBuilder(schema, rows=batch_rows, bytes=batch_bytes)
    options = options or ScanOptions(
        with_lacs="last_confirmed" in columns, keep_missing=keep_missing, keep_rotten=keep_missing
    )
    environment = client._environment
    for ledger_id in ledgers:
        reader = await client.open_no_recovery(ledger_id, password=password)
        runs = scan(
            environment,
            _ranges(environment, reader),
            refresh=partial(_reread, reader),
            options=options,
        )
        async with aclosing(runs):
            async for source, run in runs:
                for batch in builder.add(source, run):
                    yield batch
    for batch in builder.finish():
        yield batch


async def _reread(reader: LedgerReader, known: LedgerMetadata) -> LedgerMetadata:
    return await reader.reread()


def _ranges(environment: Environment, reader: LedgerReader) -> Iterator[Range]:
    metadata = reader.metadata
    if reader.last_confirmed >= 0:
        slot = environment.chance.randrange(metadata.ensemble_size)
        yield Range(
            metadata, reader._access, 0, reader.last_confirmed, slot, entry_bytes_of(metadata)
        )


def entry_bytes_of(metadata: LedgerMetadata) -> float:
    """The average payload of a closed ledger, at least 1; 0 where nobody knows."""
    if metadata.last_entry_id is None or metadata.last_entry_id < 0:
        return 0.0
    return max(1.0, metadata.length / (metadata.last_entry_id + 1))


def read_table(
    uri: str,
    ledgers: Iterable[int],
    *,
    password: bytes = b"",
    columns: Sequence[str] = COLUMNS,
    keep_missing: bool = False,
) -> Any:
    """All rows as one `pyarrow.Table`: they must fit into memory."""
    schema = entry_schema(columns)

    async def read() -> list[Any]:
        async with LedgerClient(uri, **read_security()) as client:
            batches = read_batches(
                client, ledgers, password=password, columns=columns, keep_missing=keep_missing
            )
            async with aclosing(batches):
                return [batch async for batch in batches]

    return table_of(trio.run(read), schema)


def read_pandas(
    uri: str,
    ledgers: Iterable[int],
    *,
    password: bytes = b"",
    columns: Sequence[str] = COLUMNS,
    keep_missing: bool = False,
) -> Any:
    """All rows as a pandas frame."""
    if find_spec("pandas") is None:
        raise MissingLibraryError(
            "a pandas frame needs pandas, which is not installed: pip install pandas, or use "
            "read_table"
        )
    table = read_table(uri, ledgers, password=password, columns=columns, keep_missing=keep_missing)
    return table.to_pandas()
