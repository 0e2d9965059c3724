"""Where a stream stands, and how far its next batch may go.

A stream is a sequence of ledgers, in the order of the option, and its offset is a position: the
next entry to read. Spark begins a batch when the text of the offset changes, so behind the end of a
closed ledger it stays until the next ledger has an entry. Were it moved to entry 0 of that one
first, an empty batch would run for it.

Batches are planned again after a restart, from two offsets and what can not change any more: the
end of a closed ledger. Nothing here depends on the present end of an open one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark.core.position import Position, parse_position
from wire.errors import BadRequestError, LedgerError


class OffsetError(LedgerError):
    """An offset that this stream cannot have: another stream's, or of a restored backup."""


def to_offset(position: Position) -> dict[str, int]:
    """What Spark keeps. It writes the keys in the order of this dictionary."""
    found = json.loads(position.text())
    assert isinstance(found, dict)
    return found


def from_offset(offset: Any) -> Position:
    """What a checkpoint says."""
    try:
        return parse_position(json.dumps(offset, sort_keys=True))
    except BadRequestError as error:
        raise OffsetError(f"the checkpoint is not one of this source: {error}") from None


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """How far a ledger can be read now; for ever, if it is closed."""

    last: int  # -1: nothing yet
    is_closed: bool
    #: Payload bytes of `0..last`, as far as known: an open ledger's are those of a while ago.
    length: int = 0
    #: Deleted, and the caller has said that it may be skipped.
    is_gone: bool = False

    @property
    def entry_bytes(self) -> float:
        """The average payload; what is not known counts as nothing and limits nothing."""
        return self.length / (self.last + 1) if self.last >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class Range:
    """Entries `first..last` of one ledger, both included."""

    ledger: int
    first: int
    last: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one batch; at least one entry goes in, or the stream would stand for ever."""

    entries: int | None = None
    nbytes: int | None = None

    def entries_of(self, entry_bytes: float, entries: int, nbytes: float) -> int | None:
        """How many entries of this size still fit after so many entries and bytes; None: all."""
        fits: list[int] = []
        if self.entries is not None:
            fits.append(self.entries - entries)
        if self.nbytes is not None and entry_bytes > 0:
            fits.append(int((self.nbytes - nbytes) / entry_bytes))
        if not fits:
            return None
        return max(min(fits), 1 if entries == 0 else 0)


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class LedgerSequence:
    """The ledgers of a stream, in order, each once."""

    ledgers: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.ledgers:
            raise OffsetError("a stream needs at least one ledger")
        if len(set(self.ledgers)) != len(self.ledgers):
            twice = next(x for x in self.ledgers if self.ledgers.count(x) > 1)
            raise OffsetError(f"ledger {twice} is named twice, so an offset in it has two meanings")

    @property
    def first(self) -> Position:
        return Position(self.ledgers[0], 0)

    def index_of(self, offset: Position) -> int:
        try:
            return self.ledgers.index(offset.ledger_id)
        except ValueError:
            raise _ahead(
                offset,
                "the checkpoint stands in a ledger that the option `ledgers` does not name: it is "
                "another stream's, or the list was shortened",
            ) from None

    def is_behind(self, one: Position, other: Position) -> bool:
        """Whether `one` comes before `other`."""
        return (self.index_of(one), one.entry_id) < (self.index_of(other), other.entry_id)

    def advance(
        self,
        start: Position,
        ends: Mapping[int, LedgerEnd],
        limits: Limits = NO_LIMITS,
        stop: Position | None = None,
    ) -> Position:
        """The end of the batch that begins at `start`, or `start` if there is nothing new.

        `ends` holds the ledgers that are known; the walk ends at the first that is open or
        missing. `stop` is never passed: what was frozen for a run over all that is available.
        """
        at, entries, nbytes = start, 0, 0.0
        if stop is not None and not self.is_behind(start, stop):
            return start
        for index in range(self.index_of(start), len(self.ledgers)):
            ledger = self.ledgers[index]
            end = ends.get(ledger)
            if end is None:
                break
            if end.is_gone:
                continue
            first = start.entry_id if ledger == start.ledger_id else 0
            # Of an open ledger we may know less now than before a restart: that is no proof.
            if end.is_closed and first > end.last + 1:
                raise _ahead(
                    start,
                    f"the checkpoint stands behind the end of the ledger, whose last entry is "
                    f"{end.last}: it is another stream's, or a backup was restored",
                )
            past = end.last + 1
            if stop is not None and ledger == stop.ledger_id:
                past = min(past, stop.entry_id)
            fit = limits.entries_of(end.entry_bytes, entries, nbytes)
            if fit is not None:
                past = min(past, first + fit)
            if past > first:
                at = Position(ledger, past)
                entries += past - first
                nbytes += (past - first) * end.entry_bytes
            is_stopped = stop is not None and ledger == stop.ledger_id
            if is_stopped or past <= end.last or not end.is_closed:
                break
        return at

    def ranges(self, start: Position, end: Position, ends: Mapping[int, LedgerEnd]) -> list[Range]:
        """The entries from `start` up to `end`, ledger by ledger; `ends` for all but the last.

        A ledger that `ends` does not hold is left out: whoever asks has decided that it may be.
        """
        if self.is_behind(end, start):
            raise _ahead(
                start,
                f"the batch ends before that, at {end.text()}: the order of `ledgers` was changed",
            )
        found = []
        for ledger in self.between(start, end):
            first = start.entry_id if ledger == start.ledger_id else 0
            if ledger == end.ledger_id:
                last = end.entry_id - 1
            elif ledger in ends and not ends[ledger].is_gone:
                last = ends[ledger].last
            else:
                continue
            if last >= first:
                found.append(Range(ledger, first, last))
        return found

    def between(self, start: Position, end: Position) -> Sequence[int]:
        """The ledgers that a batch from `start` to `end` touches."""
        return self.ledgers[self.index_of(start) : self.index_of(end) + 1]


def _ahead(offset: Position, what: str) -> OffsetError:
    error = OffsetError(what)
    error.ledger_id, error.entry_id = offset.ledger_id, offset.entry_id
    return error
