"""Waiting for news at the tail of a ledger that is still being written.

A bookie parks the question until its LAC passes ours, then answers with the LAC and, if it has it,
the entry we are missing. With striping it may not have it: news of the LAC is success enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count as counter

from ledger_client.core.commands import (
    AskPoll,
    Command,
    Failure,
    FailureKind,
    Outcome,
    PollAnswer,
    PollEnded,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.replicas import more_informative
from wire.types import BookieId, LedgerId

FIRST_SECONDS = 1.5
SECONDS_MAX = 5.0


class LongPoll:
    """One question to the last ensemble, bookie by bookie.

    A confirmed entry is on an ack quorum, so of any `E - Qa + 1` bookies one has heard of it: as
    many empty answers mean that there is no news.
    """

    def __init__(
        self,
        *,
        ledger_id: LedgerId,
        distribution: Distribution,
        ensemble: Sequence[BookieId],
        previous_lac: int,
        order: Sequence[int] | None = None,
        request_ids: Iterator[int] | None = None,
    ) -> None:
        self.is_over = False
        self._ledger_id = ledger_id
        self._ensemble = tuple(ensemble)
        self._previous_lac = previous_lac
        # The next entry's own bookies first: they can bring it along.
        start = previous_lac + 1
        slots = order or [(start + i) % len(ensemble) for i in range(len(ensemble))]
        self._unasked = list(slots)
        self._request_ids = counter(1) if request_ids is None else request_ids
        self._open: set[int] = set()
        self._empty_left = distribution.ensemble_size - distribution.ack_quorum + 1
        self._has_empty = False
        self._error: Outcome | None = None
        self._speculation_seconds = FIRST_SECONDS
        self._speculate_at: float | None = None

    def start(self, now: float) -> list[Command]:
        self._speculate_at = now + self._speculation_seconds
        return self._ask_next()

    def on_answers(self, answers: Iterable[PollAnswer]) -> list[Command]:
        commands: list[Command] = []
        for answer in answers:
            if answer.request_id not in self._open or self.is_over:
                continue
            self._open.discard(answer.request_id)
            commands += self._take(answer)
        return commands

    def tick(self, now: float) -> list[Command]:
        """A parked question says nothing about the others: ask one more bookie."""
        if self.is_over or self._speculate_at is None or now < self._speculate_at:
            return []
        self._speculation_seconds = min(self._speculation_seconds * 2, SECONDS_MAX)
        self._speculate_at = now + self._speculation_seconds
        return self._ask_next()

    def deadline(self) -> float | None:
        return None if self.is_over or not self._unasked else self._speculate_at

    def _take(self, answer: PollAnswer) -> list[Command]:
        if answer.outcome is Outcome.OK and answer.lac > self._previous_lac:
            self.is_over = True
            return [PollEnded(answer.lac, answer.entry)]
        if answer.outcome.is_known:
            self._has_empty = True
            self._empty_left -= 1
        else:
            self._error = more_informative(self._error, answer.outcome)
        if self._empty_left == 0:
            return self._no_news()
        if self._open:
            return []
        return self._ask_next() or self._no_news()

    def _ask_next(self) -> list[Command]:
        if not self._unasked:
            return []
        slot = self._unasked.pop(0)
        request_id = next(self._request_ids)
        self._open.add(request_id)
        return [AskPoll(request_id, slot, self._ensemble[slot], self._previous_lac)]

    def _no_news(self) -> list[Command]:
        self.is_over = True
        failure = None
        if not self._has_empty:
            failure = Failure(
                FailureKind.NOT_READ,
                f"ledger {self._ledger_id}: no bookie of {', '.join(self._ensemble)} could be asked"
                " for its LAC",
                self._error,
                ledger_id=self._ledger_id,
            )
        return [PollEnded(self._previous_lac, None, failure)]
