"""Index keys and values for tests."""

from __future__ import annotations

from collections.abc import Iterable

from bookie.storage.index_format import location_of, run_key
from bookie.storage.indexed_run import encode_run_value

STORE_ID = bytes(range(16))


def run_change(
    ledger_id: int,
    entry_ids: Iterable[int],
    *,
    log_id: int = 1,
    offset: int = 4096,
    sequence: int = 1,
    record_bytes: int = 36,
) -> tuple[bytes, bytes]:
    """Key and value of a run with these entries, all of one size."""
    ids = sorted(entry_ids)
    dense = ids[-1] - ids[0] + 1 == len(ids)
    value = encode_run_value(
        first=ids[0],
        count=len(ids),
        body_bytes=record_bytes * len(ids),
        body_crc=0,
        sequence=sequence,
        entry_ids=None if dense else ids,
        starts=record_bytes,
    )
    return run_key(ledger_id, ids[-1], location_of(log_id=log_id, offset=offset)), value
