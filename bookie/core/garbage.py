"""Which ledgers may be deleted here. Absence from a listing is a hint, never a proof.

Listings have ended early, and metadata stores have been reformatted under running bookies; both
made every ledger look deleted. So: list local ledgers first, then the store, in order; ask the
store for each candidate directly; and when too much would go, wait for a second opinion.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from wire.errors import LedgerError

#: More candidates than this share of the local ledgers need a second round that agrees.
SUSPICIOUS_SHARE: Final = 0.5


class GarbageError(LedgerError):
    """A round of garbage collection that cannot be trusted."""


class Comparison:
    """Finds the local ledgers that a listing lacks, while the listing comes in, range by range.

    Both sides ascend. A range out of order would make living ledgers look dead, so it is an error.
    """

    def __init__(self, local: Sequence[int]) -> None:
        self._local = local
        self._at = 0
        self._previous = -1
        self.listed_count = 0

    def feed(self, listed: Sequence[int]) -> list[int]:
        """Take the next range of listed ledgers; the local ones up to its end that it lacks."""
        if not listed:
            return []
        present = set(listed)
        if min(present) <= self._previous:
            raise GarbageError(
                f"the listing of ledgers is out of order ({min(present)} after {self._previous}): "
                "nothing is deleted on its word"
            )
        self._previous = max(present)
        self.listed_count += len(present)
        start = self._at
        self._at = bisect_right(self._local, self._previous, start)
        passed = self._local[start : self._at]
        # Range by range, not all at the beginning: a million would stall the event loop.
        assert all(a < b for a, b in pairwise(passed)), "local ledgers ascend"
        return [ledger for ledger in passed if ledger not in present]

    def finish(self) -> Sequence[int]:
        """The listing is complete: everything behind its end is absent from it."""
        rest = self._local[self._at :]
        self._at = len(self._local)
        return rest


class Suspicion:
    """Remembers a round that would have deleted too much; the next one must agree.

    What both rounds name is confirmed. Everything else waits again.
    """

    def __init__(self) -> None:
        self._waiting: frozenset[int] = frozenset()

    def confirmed(
        self, candidates: Sequence[int], *, local_count: int, listed_count: int
    ) -> list[int]:
        """Those of the candidates that may go now.

        A listing without any ledger is always suspicious: that is how a store looks that was
        reformatted, or that somebody else's configuration points at.
        """
        many = len(candidates) > SUSPICIOUS_SHARE * local_count and local_count > 1
        if not many and listed_count > 0:
            self._waiting = frozenset()
            return list(candidates)
        agreed = [ledger_id for ledger_id in candidates if ledger_id in self._waiting]
        self._waiting = frozenset(candidates)
        return agreed
