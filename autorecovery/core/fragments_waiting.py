"""When to look at a ledger again: how long bookies are away, writers get, and failures wait."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from metadata.model import LedgerMetadata
from wire.types import BookieId, LedgerId

#: Ledgers that are remembered as not due. A forgotten one is merely tried sooner.
DEFERRED_MAX: Final = 200_000


class Absences:
    """Since when each bookie is away, as far as this process has seen it."""

    def __init__(self, present: Collection[BookieId], *, now: float) -> None:
        self._began = now
        self._present = frozenset(present)
        self._left: dict[BookieId, float] = {}

    def see(self, present: Collection[BookieId], *, now: float) -> frozenset[BookieId]:
        """Take the present list; the bookies that have come."""
        seen = frozenset(present)
        come = seen - self._present
        for bookie_id in self._present - seen:
            self._left[bookie_id] = now
        for bookie_id in come:
            self._left.pop(bookie_id, None)
        self._present = seen
        return come

    def since(self, bookie_id: BookieId) -> float:
        """Never if it is here; one that was away when we began is away from then on, at least."""
        if bookie_id in self._present:
            return math.inf
        return self._left.get(bookie_id, self._began)


class Grace:
    """How long the writer of an open ledger has had to replace a lost bookie by itself.

    It is fenced only if one and the same bookie was away, and in the ensemble that the writer adds
    to, for the whole of the time allowed (I22).
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._noticed: dict[LedgerId, dict[tuple[int, BookieId], float]] = {}

    def wait_seconds(
        self,
        metadata: LedgerMetadata,
        growing: Collection[BookieId],
        absences: Absences,
        *,
        now: float,
    ) -> float:
        """How long still to wait before the ledger may be recovered; 0 when the time is over."""
        first = metadata.last_fragment.first_entry_id
        known = self._noticed.get(metadata.ledger_id, {})
        noticed = {(first, bookie_id): now for bookie_id in growing}
        noticed |= {key: at for key, at in known.items() if key in noticed}
        self._noticed[metadata.ledger_id] = noticed
        waits = [
            max(at, absences.since(bookie_id)) + self._seconds - now
            for (_, bookie_id), at in noticed.items()
        ]
        return max(0.0, min(waits, default=math.inf))

    def forget(self, ledger_id: LedgerId) -> None:
        self._noticed.pop(ledger_id, None)


class Deferrals:
    """Ledgers that are not due yet, with pauses that double at each failure."""

    def __init__(self, *, first_seconds: float, seconds_max: float) -> None:
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        self._due_at: dict[LedgerId, float] = {}
        self._failures: dict[LedgerId, int] = {}
        self._hopeful: set[LedgerId] = set()

    def __len__(self) -> int:
        return len(self._due_at)

    def is_due(self, ledger_id: LedgerId, *, now: float) -> bool:
        at = self._due_at.get(ledger_id)
        if at is None or at > now:
            return at is None
        del self._due_at[ledger_id]
        return True

    def fail(self, ledger_id: LedgerId, *, now: float, waits_for_bookies: bool = False) -> float:
        """Defer after a failure, longer each time; for how long."""
        failures = self._failures.get(ledger_id, 0)
        self._failures[ledger_id] = failures + 1
        seconds = min(self._seconds_max, self._first_seconds * 2.0 ** min(failures, 30))
        self.wait(ledger_id, seconds, now=now)
        if waits_for_bookies:
            self._hopeful.add(ledger_id)
        return seconds

    def wait(self, ledger_id: LedgerId, seconds: float, *, now: float) -> None:
        """Defer without holding it against the ledger."""
        if len(self._due_at) >= DEFERRED_MAX and ledger_id not in self._due_at:
            self.forget(next(iter(self._due_at)))
        self._due_at[ledger_id] = now + seconds

    def forget(self, ledger_id: LedgerId) -> None:
        """It is whole, or somebody else's."""
        self._due_at.pop(ledger_id, None)
        self._failures.pop(ledger_id, None)
        self._hopeful.discard(ledger_id)

    def wake(self) -> None:
        """Bookies have come: what waited for some is due."""
        for ledger_id in self._hopeful:
            self._due_at.pop(ledger_id, None)
        self._hopeful.clear()

    def next_at(self, *, now: float) -> float:
        """When the next one becomes due that is not yet; never if there is none."""
        return min((at for at in self._due_at.values() if at > now), default=math.inf)
