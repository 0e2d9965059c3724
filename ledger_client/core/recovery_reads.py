"""Where does a ledger end? Reads beyond the LAC, and the verdict on each entry.

An entry that the old writer confirmed has an ack quorum of copies. So `Qw - Qa + 1` bookies that
say they never had it, and are fenced by the very same request, prove that it was not confirmed and
never will be. Anything less proves nothing: silence, rot and trouble are not absence.

All reads go to the ensemble that the record named when recovery began. Bookies that joined since
hold nothing of the old writer's, and their "never had it" would cut the ledger off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto

from ledger_client.core.commands import AskRecoveryRead, Command, Outcome, RecoveryReadAnswer
from ledger_client.core.distribution import Distribution
from wire.types import BookieId


class Verdict(Enum):
    WAITING = auto()
    PRESENT = auto()
    MISSING = auto()  # proven: the ledger ends before this entry
    UNDETERMINED = auto()
    UNAUTHORIZED = auto()


class _Entry:
    """What is known about one entry."""

    __slots__ = ("answers_open", "entry_id", "found", "missing", "unasked", "verdict")

    def __init__(self, entry_id: int, slots: Sequence[int]) -> None:
        self.entry_id = entry_id
        self.unasked = list(slots)
        self.answers_open = 0
        self.missing = 0
        self.verdict = Verdict.WAITING
        self.found: tuple[int, object] | None = None


class RecoveryReads:
    """A window of reads in flight, consumed strictly in entry order."""

    def __init__(
        self,
        *,
        distribution: Distribution,
        ensemble: Sequence[BookieId],
        request_ids: Iterator[int],
        first: int,
        floor: int,
        ask_all: bool,
    ) -> None:
        #: The first entry that is not consumed yet.
        self.next_entry_id = first
        self._floor = floor  # entries up to here exist; somebody may have seen them
        self._distribution = distribution
        self._ensemble = tuple(ensemble)
        self._request_ids = request_ids
        self._ask_all = ask_all
        self._entries: dict[int, _Entry] = {}
        self._requests: dict[int, _Entry] = {}
        self._has_missing = False

    def ask_through(self, last: int) -> list[Command]:
        """Begin to read what is not being read yet, up to `last`; nothing once an end is known."""
        commands: list[Command] = []
        if self._has_missing:
            return commands
        for entry_id in range(self.next_entry_id + len(self._entries), last + 1):
            entry = _Entry(entry_id, self._distribution.write_set(entry_id))
            self._entries[entry_id] = entry
            count = self._distribution.write_quorum if self._ask_all else 1
            commands += (self._ask(entry) for _ in range(count))
        return commands

    def _ask(self, entry: _Entry) -> Command:
        slot = entry.unasked.pop(0)
        request_id = next(self._request_ids)
        entry.answers_open += 1
        self._requests[request_id] = entry
        return AskRecoveryRead(request_id, slot, self._ensemble[slot], entry.entry_id)

    def take(self, answer: RecoveryReadAnswer) -> list[Command]:
        """Record an answer; the next replica is asked when it settled nothing."""
        entry = self._requests.pop(answer.request_id, None)
        if entry is None or entry.verdict is not Verdict.WAITING:
            return []
        entry.answers_open -= 1
        spare = self._distribution.write_quorum - self._distribution.ack_quorum
        if answer.outcome is Outcome.OK:
            # One copy is enough, even against a bookie that denies it: to be here it was sent,
            # and writing it again does no harm.
            entry.verdict = Verdict.PRESENT
            entry.found = (answer.length, answer.payload)
        elif answer.outcome is Outcome.UNAUTHORIZED:
            entry.verdict = Verdict.UNAUTHORIZED
        else:
            entry.missing += answer.outcome.is_missing
            if entry.missing > spare and entry.entry_id > self._floor:
                entry.verdict = Verdict.MISSING
                self._has_missing = True
            elif entry.unasked and not entry.answers_open:
                return [self._ask(entry)]
            elif not entry.answers_open:
                entry.verdict = Verdict.UNDETERMINED
        return []

    def consume(self) -> tuple[list[tuple[int, object]], Verdict]:
        """The entries that are next in order, and what stands behind them."""
        found: list[tuple[int, object]] = []
        while (entry := self._entries.get(self.next_entry_id)) is not None:
            if entry.found is None:
                return found, entry.verdict
            found.append(entry.found)
            del self._entries[self.next_entry_id]
            self.next_entry_id += 1
        return found, Verdict.WAITING
