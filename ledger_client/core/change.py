"""The state of one ensemble change, over all its rounds, and the bound on storms of them.

A change lasts from the first failure to the end of the resending; meanwhile the LAC is frozen.
Failures that arrive during a round wait for the next one. What was replaced is settled slot by
slot in `AddQueue.replace`, round by round: comparing the first ensemble with the last would miss a
bookie that was replaced and then chosen again, and nothing would be sent to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ledger_client.core.adds import AddQueue, FailedSending
from ledger_client.core.commands import FailureKind, Outcome
from ledger_client.core.distribution import Distribution, slots_in
from ledger_client.core.options import ChangeMode, StormLimits
from wire.types import BookieId


class Storm:
    """Rounds and failed bookies within a sliding window of time."""

    def __init__(self, limits: StormLimits) -> None:
        self._limits = limits
        self._rounds: list[tuple[float, frozenset[BookieId]]] = []  # no more than a few

    def next_round(self, now: float, failed: Iterable[BookieId] = ()) -> float | None:
        """The seconds to wait before one more round; None when there have been too many."""
        limits, rounds = self._limits, self._rounds
        while rounds and rounds[0][0] <= now - limits.window_seconds:
            rounds.pop(0)
        if len(rounds) >= limits.rounds_max:
            return None
        rounds.append((now, frozenset(failed)))
        extra = len(rounds) - limits.rounds_free
        if extra <= 0:
            return 0.0
        delay_seconds: float = min(limits.seconds_max, limits.first_seconds * 2.0 ** (extra - 1))
        return delay_seconds

    @property
    def failed(self) -> frozenset[BookieId]:
        """Bookies that failed in any of these rounds; better not chosen again so soon."""
        return frozenset().union(*(failed for _, failed in self._rounds))


class Change:
    """One change in progress."""

    def __init__(self) -> None:
        #: What the present round is replacing.
        self.failed: dict[int, BookieId] = {}
        #: What failed meanwhile, for the next round.
        self.pending: dict[int, BookieId] = {}

    def add(self, failed: Mapping[int, BookieId]) -> None:
        """Note failures. If the present round replaces the bookie, they are void after it."""
        self.pending |= failed

    def start_round(self, ensemble: tuple[BookieId, ...]) -> bool:
        """Take the pending failures whose bookie is still in its slot; whether there are any."""
        self.failed = {
            slot: bookie_id
            for slot, bookie_id in self.pending.items()
            if ensemble[slot] == bookie_id
        }
        self.pending = {}
        return bool(self.failed)

    @property
    def avoid(self) -> frozenset[int]:
        """Slots that nothing is sent to before the change is over."""
        return frozenset(self.failed) | frozenset(self.pending)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failed sending calls for: these slots replaced, now or when the next add starts."""

    slots: dict[int, BookieId]
    is_late: bool = False


def judge(
    failed: FailedSending, mode: ChangeMode, adds: AddQueue, distribution: Distribution
) -> Verdict:
    """Whether a failure is a reason to change the ensemble.

    A batch that has its quorum does not need the failed bookie, but the next one will: in
    immediate mode it is replaced then. Delayed mode puts up with it until some entry cannot reach
    its quorum any more; then all that failed in that entry's write set go together.
    """
    batch = failed.batch
    is_achieved = batch.is_confirmed or adds.is_achieved(batch)
    if mode is ChangeMode.IMMEDIATE:
        return Verdict({failed.slot: failed.bookie_id}, is_late=is_achieved)
    if is_achieved:
        return Verdict({})
    lost = distribution.lost_write_sets(batch.failed, first=batch.first, last=batch.last)
    if failed.outcome is Outcome.READ_ONLY:
        lost = batch.failed  # it said itself that it will not take the next one either
    return Verdict({slot: adds.ensemble[slot] for slot in slots_in(lost)})


#: Why a change did not come about, in words. Everything else is the store's trouble.
CHANGE_FAILED: Final[Mapping[FailureKind, str]] = {
    FailureKind.LEDGER_CLOSED: "another client closed the ledger",
    FailureKind.FENCED: "another client is recovering the ledger",
    FailureKind.LEDGER_GONE: "the ledger was deleted",
    FailureKind.NOT_ENOUGH_BOOKIES: "no bookie is left to replace a failed one",
    FailureKind.METADATA_CONFLICT: "another client changed the ensemble",
    FailureKind.METADATA: "the metadata store did not take an ensemble change",
}
CLOSE_FAILED: Final[Mapping[FailureKind, str]] = {
    FailureKind.FENCED: "another client is recovering the ledger and will close it",
    FailureKind.METADATA_CONFLICT: "another client closed the ledger at another entry",
    FailureKind.LEDGER_GONE: "the ledger was deleted",
    FailureKind.METADATA: "the metadata store did not take the close, the ledger may be open still",
}
