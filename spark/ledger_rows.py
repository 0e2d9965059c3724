"""table=ledgers: one row per ledger, out of the records that the plan carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from metadata.model import LedgerMetadata


def _last(metadata: LedgerMetadata) -> int | None:
    last = metadata.last_entry_id
    return None if last is None or last < 0 else last


def _ctime_us(metadata: LedgerMetadata) -> int | None:
    return None if metadata.ctime_ms is None else metadata.ctime_ms * 1000


_VALUES: Final[dict[str, Callable[[LedgerMetadata], Any]]] = {
    "ledger_id": lambda metadata: metadata.ledger_id,
    "state": lambda metadata: metadata.state.name,
    "first_entry": lambda metadata: None if _last(metadata) is None else 0,
    "last_entry": _last,
    "bytes": lambda metadata: metadata.length if metadata.is_closed else None,
    "ctime": _ctime_us,
    "ensemble_size": lambda metadata: metadata.ensemble_size,
    "write_quorum": lambda metadata: metadata.write_quorum,
    "ack_quorum": lambda metadata: metadata.ack_quorum,
    "digest_type": lambda metadata: metadata.digest_type and metadata.digest_type.name,
    "metadata": lambda metadata: metadata.custom,
}


def ledger_rows(records: Sequence[LedgerMetadata], schema: Any) -> Iterator[Any]:
    """One batch; a plan has few enough records in each partition."""
    columns = [
        pa.array([_VALUES[field.name](metadata) for metadata in records], field.type)
        for field in schema
    ]
    yield pa.RecordBatch.from_arrays(columns, schema=schema)
