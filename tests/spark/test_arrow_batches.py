"""Runs of entries as record batches: round trip, bounds, and columns that only some rows have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger_client.arrow import BatchBuilder, entry_schema
from ledger_client.environment import Access
from ledger_client.scan import Range, Run, Status
from metadata.model import new_ledger
from wire.entry_run import EntryRun
from wire.errors import LedgerError
from wire.types import BookieId, DigestType, LedgerId


def source(ledger_id: int = 7) -> Range:
    metadata = new_ledger(
        ledger_id=LedgerId(ledger_id), ensemble=[BookieId("a")], write_quorum=1, ack_quorum=1,
        digest_type=DigestType.CRC32C, password=b"", custom={"app": b"x"},
        ctime_ms=1_700_000_000_123,
    )  # fmt: skip
    access = Access.of(LedgerId(ledger_id), DigestType.CRC32C, b"")
    return Range(metadata, access, 0, 1_000_000)


def rows_of(
    runs: list[tuple[Range, Run]], columns: list[str], **bounds: int
) -> list[dict[str, object]]:
    builder = BatchBuilder(entry_schema(columns), **bounds)
    batches = [batch for given, run in runs for batch in builder.add(given, run)]
    batches += builder.finish()
    for batch in batches:
        batch.validate(full=True)
        assert 0 < batch.num_rows <= bounds.get("rows", 4096)
    return [row for batch in batches for row in batch.to_pylist()]


@given(
    st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=12), max_size=8),
    st.integers(1, 9),
    st.integers(1, 60),
)
def test_rows_are_the_entries_whatever_the_bounds(
    payloads: list[list[bytes]], rows: int, size: int
) -> None:
    runs, first, wanted = [], 0, []
    for run in payloads:
        runs.append((source(), Run(first, len(run), EntryRun.joined(run))))
        wanted += [(7, first + i, payload, len(payload)) for i, payload in enumerate(run)]
        first += len(run)

    found = rows_of(runs, ["ledger_id", "entry_id", "payload", "length"], rows=rows, bytes=size)

    assert [tuple(row.values()) for row in found] == wanted


def test_batch_keeps_to_its_bytes_unless_one_entry_is_larger() -> None:
    builder = BatchBuilder(entry_schema(["payload"]), bytes=100)
    sizes = [40, 40, 40, 500, 1, 1]
    run = Run(0, 6, EntryRun.joined([b"x" * size for size in sizes]))
    batches = [*builder.add(source(), run), *builder.finish()]
    assert [batch.num_rows for batch in batches] == [2, 1, 1, 2]


def test_lost_entries_are_rows_without_payload() -> None:
    runs = [
        (source(), Run(0, 2, EntryRun.joined([b"a", b""]), [-1, 0])),
        (source(), Run(2, 3, None, status=Status.MISSING)),
        (source(8), Run(0, 1, EntryRun.joined([b"b"]), [5])),
    ]
    columns = ["status", "payload", "length", "last_confirmed", "metadata", "ledger_ctime"]

    found = rows_of(runs, columns)

    assert [row["status"] for row in found] == ["ok", "ok", "missing", "missing", "missing", "ok"]
    assert [row["payload"] for row in found] == [b"a", b"", None, None, None, b"b"]
    assert [row["length"] for row in found] == [1, 0, 0, 0, 0, 1]
    assert [row["last_confirmed"] for row in found] == [-1, 0, None, None, None, 5]
    assert all(row["metadata"] == [("app", b"x")] for row in found)
    assert len({str(row["ledger_ctime"]) for row in found}) == 1


def test_record_without_a_time_gives_null() -> None:
    given = source()
    given = replace(given, metadata=replace(given.metadata, ctime_ms=None))
    run = Run(0, 1, EntryRun.joined([b"a"]))
    assert rows_of([(given, run)], ["ledger_ctime"]) == [{"ledger_ctime": None}]


def test_unknown_column_is_refused() -> None:
    with pytest.raises(LedgerError, match="there is no column body"):
        entry_schema(["body"])
