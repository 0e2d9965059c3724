"""Ledgers as a stream: the ones of the option, in the order given, the last one followed.

Offsets, plans and waiting live in one long-lived process on the driver; rows are read by tasks, in
a second instance of the reader that knows only the options. What Spark asks of the first must
give the same answer after a restart: see `spark/core/offsets.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ledger_client.errors import MetadataUnavailableError
from spark.core.offsets import (
    NO_LIMITS,
    LedgerEnd,
    LedgerSequence,
    Limits,
    OffsetError,
    from_offset,
    to_offset,
)
from spark.core.position import Position
from spark.core.selection import Listed, Selection
from spark.errors import BadOptionError, Code, SourceError, coding
from spark.follow import Follower
from spark.options import FAIL, TO_LAC, SourceOptions, parse_source
from spark.reader import check_columns, read_plan
from spark.stream_plan import plan_between

_log = logging.getLogger(__name__)

#: A stream names its ledgers one by one; offsets are looked up among them.
LEDGERS_MAX: Final = 100_000
_PAUSE_SECONDS: Final = 0.5


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The methods are Spark's; on the driver all of them run in one thread."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        with coding():
            self._options = parse_source(options, streaming=True)
            self._schema = check_columns(schema, self._options)
        self._sequence = _sequence(self._options)
        self._follower_made: Follower | None = None
        self._initial: dict[str, int] | None = None
        self._stop: Position | None = None  # frozen by a run over all that is available
        self._seen: Position | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_follower_made": None}

    @property
    def _follower(self) -> Follower:
        """Connected when first needed: constructors run in processes that never ask."""
        if self._follower_made is None:
            with coding():
                self._follower_made = Follower(self._options, self._sequence)
        return self._follower_made

    # ------------------------------------------------------------------ offsets, on the driver

    def initialOffset(self) -> dict[str, int]:
        """Asked for more than once before the first batch; there is one answer.

        With `latest` it is lost with this process if that dies before the first batch is written
        down; an explicit start, or `earliest`, is not.
        """
        if self._initial is None:
            with _coding():
                self._initial = to_offset(self._first())
        return self._initial

    def _first(self) -> Position:
        if self._options.starting_position is not None:
            return self._options.starting_position
        return self._follower.latest() if self._options.starts_latest else self._sequence.first

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        with _coding():
            begin = from_offset(start)
            ends = self._ends(begin)
            if ends is None:
                return to_offset(begin)  # nothing can be said, so there is nothing new
            self._seen = self._sequence.advance(begin, ends)
            return to_offset(self._sequence.advance(begin, ends, self._limits(limit), self._stop))

    def _ends(self, begin: Position) -> dict[int, LedgerEnd] | None:
        self._follower.start(begin)
        ends = self._follower.ends()
        if ends is None:
            return None
        return {ledger_id: self._admitted(ledger_id, end) for ledger_id, end in ends.items()}

    def _admitted(self, ledger_id: int, end: LedgerEnd) -> LedgerEnd:
        """What `openLedgers` lets through of a ledger."""
        if end.is_closed or self._options.open_ledgers == TO_LAC:
            return end
        if self._options.open_ledgers == FAIL:
            raise SourceError(
                Code.LEDGER_OPEN,
                "the ledger is open, and openLedgers=fail: close it, or set openLedgers to toLac",
                ledger_id=ledger_id,
            )
        return replace(end, last=-1)

    def _limits(self, limit: ReadLimit) -> Limits:
        if isinstance(limit, ReadAllAvailable):
            return NO_LIMITS
        return Limits(
            entries=self._options.max_entries_per_trigger,
            nbytes=self._options.max_bytes_per_trigger,
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark can be told one of our two limits; both are kept."""
        if self._options.max_entries_per_trigger is not None:
            return ReadMaxRows(self._options.max_entries_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, int] | None:
        return None if self._seen is None else to_offset(self._seen)

    def prepareForTriggerAvailableNow(self) -> None:
        with _coding():
            self._stop = self._follower.latest()

    # ------------------------------------------------------------------ plans, on the driver

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        with _coding():
            begin, past = from_offset(start), from_offset(end)
            deadline = time.monotonic() + self._options.metadata_grace_seconds
            while True:
                try:
                    return self._follower.ask(
                        lambda client, known: plan_between(
                            client,
                            self._options,
                            self._sequence,
                            begin,
                            past,
                            known,
                            with_custom="metadata" in self._schema.names,
                        )
                    )
                except MetadataUnavailableError as error:
                    if time.monotonic() > deadline:
                        raise
                    _log.warning("the batch is planned again: %s", error)
                    time.sleep(_PAUSE_SECONDS)

    def commit(self, end: dict[str, int]) -> None:
        """Ledgers are not ours to delete: nothing depends on how far a query has come."""

    def stop(self) -> None:
        if self._follower_made is not None:
            self._follower_made.close()
            self._follower_made = None

    # ------------------------------------------------------------------ rows, on executors

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_plan(partition.value, self._options, self._schema)


def _sequence(options: SourceOptions) -> LedgerSequence:
    sequence = LedgerSequence(tuple(_ids(options.selection)))
    start = options.starting_position
    if start is not None and start.ledger_id not in sequence.ledgers:
        raise BadOptionError(
            f"startingPosition is in ledger {start.ledger_id}, which ledgers={options.selection} "
            "does not name"
        )
    return sequence


def _ids(selection: Selection) -> list[int]:
    """Every id that is meant. Of a range all are, and those that are missing are waited for."""
    if not isinstance(selection, Listed):
        raise BadOptionError(
            f"a stream has an order, and {selection} has none that lasts: name its ledgers one by "
            "one, such as ledgers=5,7,10-20"
        )
    count = sum(span.last - span.first + 1 for span in selection.spans)
    if count > LEDGERS_MAX:
        raise BadOptionError(
            f"ledgers={selection} names {count} ledgers, and a stream takes {LEDGERS_MAX} at most"
        )
    return list(chain.from_iterable(range(s.first, s.last + 1) for s in selection.spans))


@contextmanager
def _coding() -> Iterator[None]:
    """Errors get their code; that of an offset is one that only streams have."""
    with coding():
        try:
            yield
        except OffsetError as error:
            raise SourceError(
                Code.OFFSET_AHEAD,
                str(error),
                ledger_id=error.ledger_id,
                entry_id=error.entry_id,
            ) from None
