"""Runs of entries as Arrow record batches: columns out of joined buffers, no object per row.

A payload column is one join of what the answers of bookies hold, and one array of offsets; lists of
`bytes` would cost twice as much. The schema decides: its names choose the columns, in its order,
and what it does not name is not built.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, Final

from ledger_client.scan import Range, Run
from wire.errors import LedgerError


class MissingLibraryError(LedgerError, ImportError):
    """A library that this part needs, and nothing else does, is not installed."""


try:
    import pyarrow as pa
except ImportError as _error:
    raise MissingLibraryError(
        f"Arrow batches need pyarrow, which cannot be imported ({_error}): pip install pyarrow"
    ) from _error

#: Rows in a batch below which the price of a batch begins to show.
ROWS_GOOD: Final = 256

_CUSTOM: Final = pa.map_(pa.string(), pa.field("value", pa.binary(), nullable=False))

_FIELDS: Final = {
    "ledger_id": pa.field("ledger_id", pa.int64(), nullable=False),
    "entry_id": pa.field("entry_id", pa.int64(), nullable=False),
    "payload": pa.field("payload", pa.binary()),
    "length": pa.field("length", pa.int32(), nullable=False),
    "last_confirmed": pa.field("last_confirmed", pa.int64()),
    "ledger_ctime": pa.field("ledger_ctime", pa.timestamp("us", tz="UTC")),
    "metadata": pa.field("metadata", _CUSTOM),
    "status": pa.field("status", pa.string(), nullable=False),
}
COLUMNS: Final = ("ledger_id", "entry_id", "payload", "length")


def entry_schema(columns: Sequence[str] = COLUMNS) -> Any:
    """The Arrow schema of these columns."""
    unknown = [name for name in columns if name not in _FIELDS]
    if unknown:
        raise LedgerError(f"there is no column {unknown[0]}: there are {', '.join(_FIELDS)}")
    return pa.schema([_FIELDS[name] for name in columns])


@dataclass(frozen=True, slots=True)
class _Part:
    range: Range
    run: Run


class BatchBuilder:
    """Gathers runs until they make a batch: `rows` or `bytes`, whichever comes first."""

    def __init__(self, schema: Any, *, rows: int = 4096, bytes: int = 4 * 1024 * 1024) -> None:
        self._schema = schema
        self._rows_max = rows
        self._bytes_max = bytes
        self._parts: list[_Part] = []
        self._rows = 0
        self._bytes = 0

    def add(self, source: Range, run: Run) -> Iterator[Any]:
        """Take a run; the batches that are full now."""
        while run.count:
            room = self._rows_max - self._rows
            taken = _fitting(run, room, self._bytes_max - self._bytes)
            if not taken and not self._rows:  # one entry alone is larger than a batch should be
                taken = 1
            if taken:
                head, run = _cut(run, taken)
                self._parts.append(_Part(source, head))
                self._rows += taken
                self._bytes += head.bytes
            if run.count or self._rows >= self._rows_max or self._bytes >= self._bytes_max:
                yield self._build()

    def finish(self) -> Iterator[Any]:
        """What is left."""
        if self._rows:
            yield self._build()

    def _build(self) -> Any:
        parts, self._parts = self._parts, []
        rows, self._rows, self._bytes = self._rows, 0, 0
        columns = [_COLUMNS[field.name](parts, rows, field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _fitting(run: Run, rows: int, size: int) -> int:
    """How many entries of a run fit."""
    rows = min(rows, run.count)
    if run.entries is None or run.entries.bytes_before(rows) <= size:
        return rows
    return bisect_right(range(1, rows + 1), size, key=run.entries.bytes_before)


def _cut(run: Run, count: int) -> tuple[Run, Run]:
    if count == run.count:
        return run, replace(run, first=run.last + 1, count=0, entries=None)
    entries, lacs = run.entries, run.lacs
    head = replace(
        run,
        count=count,
        entries=None if entries is None else entries[:count],
        lacs=None if lacs is None else lacs[:count],
    )
    rest = replace(
        run,
        first=run.first + count,
        count=run.count - count,
        entries=None if entries is None else entries[count:],
        lacs=None if lacs is None else lacs[count:],
    )
    return head, rest


# ---------------------------------------------------------------------- columns


def _numbers(kind: Any, rows: int, values: array[int]) -> Any:
    assert len(values) == rows
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)])


def _ledger_ids(parts: Sequence[_Part], rows: int, kind: Any) -> Any:
    values = array("q")
    for part in parts:
        values += array("q", (part.range.metadata.ledger_id,)) * part.run.count
    return _numbers(kind, rows, values)


def _entry_ids(parts: Sequence[_Part], rows: int, kind: Any) -> Any:
    values = array("q")
    for part in parts:
        values.extend(range(part.run.first, part.run.last + 1))
    return _numbers(kind, rows, values)


def _lengths_of(parts: Sequence[_Part]) -> array[int]:
    values = array("i")
    for part in parts:
        if part.run.entries is not None:
            values += part.run.entries.lengths
        else:
            values += array("i", (0,)) * part.run.count
    return values


def _lengths(parts: Sequence[_Part], rows: int, kind: Any) -> Any:
    return _numbers(kind, rows, _lengths_of(parts))


def _payloads(parts: Sequence[_Part], rows: int, kind: Any) -> Any:
    offsets = array("i", accumulate(_lengths_of(parts), initial=0))
    found = [part.run.entries for part in parts]
    # The one copy between an answer of a bookie and what Spark gets to read.
    joined = b"".join(chain.from_iterable(run.views for run in found if run is not None))
    present = None
    if None in found:
        flags = chain.from_iterable([p.run.entries is not None] * p.run.count for p in parts)
        present = pa.array(flags, pa.bool_()).buffers()[1]
    buffers = [present, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return pa.Array.from_buffers(kind, rows, buffers)


def _lacs(parts: Sequence[_Part], rows: int, kind: Any) -> Any:
    values: list[int | None] = []
    for part in parts:
        values += part.run.lacs or [None] * part.run.count
    return pa.array(values, kind)


def _repeated(value_of: Callable[[_Part], Any]) -> Callable[[Sequence[_Part], int, Any], Any]:
    """A column whose value is the same for all entries of a run."""

    def build(parts: Sequence[_Part], rows: int, kind: Any) -> Any:
        values = pa.array([value_of(part) for part in parts], kind)
        numbers = array("i")
        for i, part in enumerate(parts):
            numbers += array("i", (i,)) * part.run.count
        return values.take(_numbers(pa.int32(), rows, numbers))

    return build


def _ctime_us(part: _Part) -> int | None:
    ctime_ms = part.range.metadata.ctime_ms
    return None if ctime_ms is None else ctime_ms * 1000


_COLUMNS: Final[dict[str, Callable[[Sequence[_Part], int, Any], Any]]] = {
    "ledger_id": _ledger_ids,
    "entry_id": _entry_ids,
    "payload": _payloads,
    "length": _lengths,
    "last_confirmed": _lacs,
    "ledger_ctime": _repeated(_ctime_us),
    "metadata": _repeated(lambda part: part.range.metadata.custom),
    "status": _repeated(lambda part: str(part.run.status)),
}

assert set(_COLUMNS) == set(_FIELDS)


def table_of(batches: Sequence[Any], schema: Any) -> Any:
    return pa.Table.from_batches(batches, schema=schema)
