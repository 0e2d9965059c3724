"""When to audit: which bookies are lost, since when, and whether anybody should wait for them.

A bookie that is restarted is away for a minute and then back with everything it had. Copying its
ledgers meanwhile would be a waste, so an operator may set a delay. The delay is for one bookie:
when a second one is away, copies may be short already and the audit comes at once.

Times are those of a monotonic clock and come in from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from metadata.model import LedgerMetadata
from wire.types import BookieId

#: After all bookies were away at once. That is what the return of a lost metadata store looks
#: like: they register again one by one, and nothing was lost.
SETTLING_SECONDS: Final = 15.0


@dataclass(slots=True)
class LossCounts:
    """What the metrics tell of delayed audits."""

    delayed: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class Absences:
    """Lost bookies, each with when it was missed."""

    since: Mapping[BookieId, float]


class LossWatch:
    """Tells when the next audit for lost bookies is due.

    A bookie is acted upon once per absence. Those that are found lost at the start count like any
    other: an auditor that has just been elected, perhaps because the last one's host is being
    restarted, has no reason to hurry more.
    """

    def __init__(self, *, known: Iterable[BookieId], delay_seconds: float) -> None:
        self._known = set(known)
        self._delay = delay_seconds
        self._lost_at: dict[BookieId, float] = {}  # not acted upon yet
        self._acted = frozenset[BookieId]()  # lost, and acted upon
        self._due: float | None = None
        self._quiet_until = 0.0
        self._were_all_away = False
        self.counts = LossCounts()

    @property
    def due(self) -> float | None:
        """When to audit; a time in the past means now, None that nothing is lost."""
        return self._due

    @property
    def lost(self) -> frozenset[BookieId]:
        """Bookies that are away and not acted upon yet."""
        return frozenset(self._lost_at)

    def is_waiting(self, now: float) -> bool:
        """Whether an audit is put off. Other checks keep still as long: they would mark the same
        ledgers, and make the delay worth nothing."""
        return self._due is not None and self._due > now

    def on_bookies(self, alive: frozenset[BookieId], now: float) -> None:
        """The live bookies, writable or read-only, are now these."""
        self._known |= alive
        self._acted -= alive
        if not alive and self._known:
            self._were_all_away = True
        elif self._were_all_away:
            self._were_all_away = False
            self._quiet_until = now + SETTLING_SECONDS
        for bookie in alive & self._lost_at.keys():
            del self._lost_at[bookie]
        for bookie in self._known - alive - self._acted:
            self._lost_at.setdefault(bookie, now)
        self._reschedule(now, is_by_return=True)

    def on_delay(self, seconds: float, now: float) -> None:
        """An operator set another delay; it counts from when the bookie was lost."""
        self._delay = seconds
        self._reschedule(now, is_by_return=False)

    def begin_audit(self) -> Absences:
        """Whom an audit that begins now is about."""
        return Absences(dict(self._lost_at))

    def on_audited(self, absences: Absences, now: float) -> None:
        """An audit that began with these has marked every ledger it met.

        A bookie that came back and went again meanwhile is lost anew: while it was there the audit
        passed over its ledgers.
        """
        for bookie, since in absences.since.items():
            if self._lost_at.get(bookie) == since:
                del self._lost_at[bookie]
                self._acted |= {bookie}
        self._reschedule(now, is_by_return=False)

    def _reschedule(self, now: float, *, is_by_return: bool) -> None:
        before = self._due
        self._due = self._next(now)
        if self._due is None:
            # With nobody away any more the audit that was put off is not needed.
            if is_by_return and before is not None and self._delay > 0:
                self.counts.cancelled += 1
        elif before is None and self._due > now:
            self.counts.delayed += 1

    def _next(self, now: float) -> float | None:
        if not self._lost_at:
            return None
        if self._were_all_away:
            # Nobody is there to copy from or to; and most likely it is we who cannot see.
            return float("inf")
        since = min(self._lost_at.values())
        due = since + self._delay if len(self._lost_at) == 1 else since
        return max(due, self._quiet_until)


def missing_bookies(metadata: LedgerMetadata, alive: frozenset[BookieId]) -> tuple[BookieId, ...]:
    """The bookies that a ledger names and that are not there, in the order of its fragments.

    Also those that never had a cookie and those that were gone before anybody watched: what
    counts is what the record promises.
    """
    found: dict[BookieId, None] = {}
    for fragment in metadata.fragments:
        for bookie in fragment.ensemble:
            if bookie not in alive:
                found[bookie] = None
    return tuple(found)
