"""What the client has learned about its bookies: who fails, who is slow, whose copies are rotten.

Placement and the order of reads go by it, `LedgerClient.statistics` shows it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ledger_client.core.commands import Outcome
from ledger_client.core.placement import Health
from ledger_client.core.quarantine import Quarantine, QuarantineOptions
from wire.types import BookieId, LedgerId

_log = logging.getLogger(__name__)

#: A failure to reach a bookie is held against it for so long, unless it answers before.
GRUDGE_SECONDS: Final = 60.0
#: A bookie that let another one win a speculative read counts as slow for so long.
SLOW_SECONDS: Final = 60.0
#: The latest corrupt copies that are remembered by name; all of them are counted.
_CORRUPTIONS_MAX: Final = 100

#: Answers that say nothing about the health of who gave them.
_NO_ERROR: Final = frozenset(
    {
        Outcome.OK,
        Outcome.NO_SUCH_LEDGER,
        Outcome.NO_SUCH_ENTRY,
        Outcome.FENCED,
        Outcome.READ_ONLY,
        Outcome.UNAUTHORIZED,  # the caller's fault
        Outcome.NOT_CONNECTED,
        Outcome.CLIENT_CLOSED,
    }
)


@dataclass(frozen=True, slots=True)
class CorruptCopy:
    """A copy of an entry that failed its digest, on its way to be repaired by re-replication."""

    ledger_id: LedgerId
    entry_id: int
    bookie_id: BookieId

    def __str__(self) -> str:
        return (
            f"entry {self.entry_id} of ledger {self.ledger_id} fails its digest on bookie "
            f"{self.bookie_id}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    """What a client has seen so far. A snapshot."""

    #: Copies that failed their digest, each time that one was met.
    corruptions: int
    #: The latest of them, each named once.
    corrupt_copies: tuple[CorruptCopy, ...]
    #: Bookies that fail too often at present; new entries go elsewhere if possible.
    quarantined: frozenset[BookieId]
    #: Bookies that answered a read later than one that was asked after them.
    slow: frozenset[BookieId]
    #: Bookies that could not be reached, or did not answer, a moment ago.
    failing: frozenset[BookieId]
    #: Requests without an answer yet, by bookie.
    pending: Mapping[BookieId, int]


class BookieHealth:
    def __init__(self, options: QuarantineOptions | None = None) -> None:
        self._quarantine = Quarantine(options)
        self._failed_at: dict[BookieId, float] = {}  # the latest that nothing good has followed
        self._slow_until: dict[BookieId, float] = {}
        #: Bookies that are there and that we cannot use, for want of trust, and why.
        self.refusals: dict[BookieId, str] = {}
        self._corruptions = 0
        self._corrupt_copies: deque[CorruptCopy] = deque(maxlen=_CORRUPTIONS_MAX)

    # ------------------------------------------------------------------ what happened

    def on_answers(self, bookie_id: BookieId, outcomes: Iterable[Outcome], now: float) -> None:
        """What one receive buffer brought, whatever it says: the bookie is there."""
        self._failed_at.pop(bookie_id, None)
        self.refusals.pop(bookie_id, None)
        good = bad = 0
        for outcome in outcomes:
            if outcome in _NO_ERROR:
                good += 1
            else:
                bad += 1
        if bad:
            self._on_errors(bookie_id, bad, now)
        elif good and self._quarantine.on_good(bookie_id, good):
            _log.info("bookie %s answers well again and leaves quarantine", bookie_id)

    def on_unreachable(self, bookie_id: BookieId, now: float) -> None:
        self._failed_at[bookie_id] = now

    def on_timeouts(self, bookie_id: BookieId, count: int, now: float) -> None:
        self._failed_at[bookie_id] = now
        self._on_errors(bookie_id, count, now)

    def _on_errors(self, bookie_id: BookieId, count: int, now: float) -> None:
        if self._quarantine.on_errors(bookie_id, count, now):
            options = self._quarantine.options
            _log.warning(
                "bookie %s made %d errors within %.0f s: quarantined for %.0f s, new entries go "
                "elsewhere if they can", bookie_id, options.errors, options.window_seconds,
                options.seconds,
            )  # fmt: skip

    def on_registered(self, bookie_id: BookieId) -> None:
        """It has come (back) to the list of bookies: whatever it did before, it did before."""
        self._failed_at.pop(bookie_id, None)
        self._slow_until.pop(bookie_id, None)
        if self._quarantine.on_restart(bookie_id):
            _log.info("bookie %s was started again and leaves quarantine", bookie_id)

    def on_slow(self, bookie_id: BookieId, now: float) -> None:
        self._slow_until[bookie_id] = now + SLOW_SECONDS

    def on_corruption(self, copy: CorruptCopy, now: float) -> None:
        """Counted every time; said once while it is among the latest."""
        self._corruptions += 1
        self._on_errors(copy.bookie_id, 1, now)
        if copy not in self._corrupt_copies:
            self._corrupt_copies.append(copy)
            _log.warning("%s: another copy is used; have the ledger checked and repaired", copy)

    # ------------------------------------------------------------------ what is known

    def quarantined(self, now: float) -> frozenset[BookieId]:
        return self._quarantine.members(now)

    def failing(self, now: float) -> dict[BookieId, float]:
        """Bookies that failed a moment ago, and when."""
        since = now - GRUDGE_SECONDS
        return {bookie_id: at for bookie_id, at in self._failed_at.items() if at > since}

    def slow(self, now: float) -> frozenset[BookieId]:
        return frozenset(b for b, until in self._slow_until.items() if until > now)

    def for_reads(self, now: float, pending: Mapping[BookieId, int]) -> Health:
        return Health(failed_at=self.failing(now), pending=pending, slow=self.slow(now))

    def statistics(self, now: float, pending: Mapping[BookieId, int]) -> ClientStatistics:
        return ClientStatistics(
            corruptions=self._corruptions,
            corrupt_copies=tuple(self._corrupt_copies),
            quarantined=self.quarantined(now),
            slow=self.slow(now),
            failing=frozenset(self.failing(now)),
            pending=dict(pending),
        )
