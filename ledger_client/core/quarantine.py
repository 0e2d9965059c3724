"""Bookies that fail too often to be chosen for new entries, and how they get out again.

Being in quarantine is no verdict on what a bookie holds: it is read from, it may stay in ensembles
that have it, and it is chosen when there is nobody else. Only errors of its own count. A bookie
that cannot be reached is avoided by other means, and comes back the moment it answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from wire.types import BookieId


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineOptions:
    #: So many errors within one window send a bookie there.
    errors: int = 100
    window_seconds: float = 60.0
    #: The sentence.
    seconds: float = 1800.0
    #: So many good answers in a row end it early: as much evidence as brought the bookie in.
    good_answers: int = 100


class _Record:
    __slots__ = ("errors", "good", "until", "window_from")

    def __init__(self, now: float) -> None:
        self.window_from = now
        self.errors = 0
        self.good = 0
        self.until: float | None = None


class Quarantine:
    """Keeps a record of every bookie that made an error of late."""

    def __init__(self, options: QuarantineOptions | None = None) -> None:
        self.options = options or QuarantineOptions()
        self._records: dict[BookieId, _Record] = {}

    def on_errors(self, bookie_id: BookieId, count: int, now: float) -> bool:
        """Count errors; whether they were the ones that filled the measure."""
        record = self._records.get(bookie_id)
        if record is None:
            record = self._records[bookie_id] = _Record(now)
        if now - record.window_from >= self.options.window_seconds:
            record.window_from, record.errors = now, 0
        record.errors += count
        record.good = 0
        if record.errors < self.options.errors:
            return False
        was_in = record.until is not None and now < record.until
        record.until = now + self.options.seconds
        return not was_in

    def on_good(self, bookie_id: BookieId, count: int) -> bool:
        """Count good answers; whether they set the bookie free."""
        record = self._records.get(bookie_id)
        if record is None:
            return False
        record.good += count
        if record.until is None or record.good < self.options.good_answers:
            return False
        del self._records[bookie_id]
        return True

    def on_restart(self, bookie_id: BookieId) -> bool:
        """The bookie registered anew. It is another process, with a record of its own to make."""
        record = self._records.pop(bookie_id, None)
        return record is not None and record.until is not None

    def members(self, now: float) -> frozenset[BookieId]:
        """Who is in quarantine now; records that say nothing any more are dropped."""
        idle_since = now - self.options.window_seconds
        for bookie_id, record in list(self._records.items()):
            is_over = record.window_from <= idle_since
            if record.until is not None:
                is_over = record.until <= now
            if is_over:
                del self._records[bookie_id]
        return frozenset(b for b, record in self._records.items() if record.until is not None)
