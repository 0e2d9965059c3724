"""The LAC: told by an idle writer, asked of an ensemble, kept by a reader.

A LAC is only ever a lower bound of what is durable, so an outdated one costs a reader time and
nothing else. What matters when it is asked is coverage: enough bookies must have answered that no
ack quorum can hide among the silent ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ledger_client.core.commands import (
    AskLac,
    Command,
    Failure,
    FailureKind,
    LacAnswer,
    LacReadEnded,
    Outcome,
)
from ledger_client.core.distribution import Distribution
from metadata.model import LedgerMetadata
from wire.types import NO_ENTRY, BookieId, LedgerId


class LacAnnouncer:
    """When a writer says its LAC aloud.

    Entries carry the LAC of the moment they were built, so readers learn of an entry with the next
    one. If there is no next one for `idle_seconds`, the LAC goes out by itself. So it does for an
    append that came after such a silence, as soon as it is confirmed: nothing says that there will
    be a next one, and it would be told a little later anyway. A busy writer never sends one, and a
    LAC that an entry or an earlier message carried is not repeated.
    """

    def __init__(self, idle_seconds: float | None) -> None:
        self._idle_seconds = idle_seconds
        self._appended_at = -math.inf
        self._is_lone = False  # the last append came after a silence
        self._told = NO_ENTRY  # the highest LAC on its way to bookies, by entry or by itself

    def on_append(self, *, lac: int, now: float) -> None:
        if self._idle_seconds is not None:
            self._is_lone = now - self._appended_at >= self._idle_seconds
        self._appended_at = now
        self._told = max(self._told, lac)

    def deadline(self, lac: int) -> float | None:
        """When to look again; None while there is nothing to tell."""
        if self._idle_seconds is None or lac <= self._told:
            return None
        return self._appended_at + (0.0 if self._is_lone else self._idle_seconds)

    def is_due(self, lac: int, now: float) -> bool:
        """Whether to tell `lac` now. Yes is taken as done: failures of this kind are ignored."""
        deadline = self.deadline(lac)
        if deadline is None or now < deadline:
            return False
        self._told = lac
        return True


class LacRead:
    """Ask every bookie of the last ensemble for its LAC, until every write set is covered.

    With `fence` this is the first step of recovery. Without it and with `above`, the first answer
    above that is enough: for a reader that just wants to go on.
    """

    def __init__(
        self,
        *,
        ledger_id: LedgerId,
        distribution: Distribution,
        ensemble: Sequence[BookieId],
        request_ids: Iterator[int],
        fence: bool = False,
        above: int | None = None,
    ) -> None:
        self.lac = NO_ENTRY
        self.is_over = False
        self._ledger_id = ledger_id
        self._distribution = distribution
        self._ensemble = tuple(ensemble)
        self._request_ids = request_ids
        self._fence = fence
        self._above = above
        self._slots: dict[int, int] = {}  # request to slot, while unanswered
        self._known: set[int] = set()
        self._last_error: Outcome | None = None

    def start(self) -> list[Command]:
        commands: list[Command] = []
        for slot, bookie_id in enumerate(self._ensemble):
            request_id = next(self._request_ids)
            self._slots[request_id] = slot
            commands.append(AskLac(request_id, slot, bookie_id, self._fence))
        return commands

    def on_answers(self, answers: Iterable[LacAnswer]) -> list[Command]:
        for answer in answers:
            slot = self._slots.pop(answer.request_id, None)
            if slot is None or self.is_over:
                continue
            if answer.outcome is Outcome.UNAUTHORIZED:
                return self._end(
                    FailureKind.UNAUTHORIZED,
                    f"{self._ensemble[slot]} refuses the password of ledger {self._ledger_id}",
                    answer.outcome,
                )
            if answer.outcome.is_known:
                self._known.add(slot)
            else:
                self._last_error = answer.outcome
            if answer.outcome is Outcome.OK:
                self.lac = max(self.lac, answer.lac)
            if self._above is not None and self.lac > self._above:
                return self._end()
            if self._distribution.is_covered(self._known):
                return self._end()
        if self.is_over or self._slots:
            return []
        silent = [
            str(bookie_id)
            for slot, bookie_id in enumerate(self._ensemble)
            if slot not in self._known
        ]
        return self._end(
            FailureKind.NOT_COVERED,
            f"ledger {self._ledger_id}: {', '.join(silent)} gave no usable answer, so an entry may "
            "exist that no other bookie has; bring them back and try again",
            self._last_error,
        )

    def _end(
        self, kind: FailureKind | None = None, message: str = "", outcome: Outcome | None = None
    ) -> list[Command]:
        self.is_over = True
        failure = None
        if kind is not None:
            failure = Failure(kind, message, outcome, ledger_id=self._ledger_id)
        return [LacReadEnded(self.lac, failure)]


class ReaderLac:
    """The LAC of a handle that reads: it never falls, until CLOSED metadata overrides it.

    Entries below the last fragment are confirmed by definition (it was begun at the LAC + 1), so
    its start is a floor, whatever the bookies of an ensemble that is still empty say.
    """

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.lac = NO_ENTRY
        self.is_closed = False
        self.on_metadata(metadata)

    def on_metadata(self, metadata: LedgerMetadata) -> bool:
        """A fresh record; whether there is news."""
        if self.is_closed:
            return False
        before = self.lac
        if metadata.last_entry_id is not None:
            self.is_closed = True
            self.lac = metadata.last_entry_id
            return True
        self.lac = max(self.lac, metadata.last_fragment.first_entry_id - 1)
        return self.lac != before

    def on_lac(self, lac: int) -> bool:
        """A LAC that a bookie showed; whether there is news."""
        if self.is_closed or lac <= self.lac:
            return False
        self.lac = lac
        return True
