"""Which replica to ask next, and what to say when all of them failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledger_client.core.commands import Outcome, Part
from wire.types import BookieId

#: The slots of a write set in the order in which to ask them (`PlacementPolicy.read_order`).
ReadOrder = Callable[[Sequence[int], Sequence[BookieId]], Sequence[int]]


def in_order(slots: Sequence[int], ensemble: Sequence[BookieId]) -> Sequence[int]:
    return slots


def more_informative(first: Outcome | None, later: Outcome) -> Outcome:
    """The error to report after `first` and `later`.

    "Never had it" yields to anything, so it is reported only when all replicas said so. "No
    connection" yields to everything but that.
    """
    if first is None or first.is_missing:
        return later
    if first is Outcome.NOT_CONNECTED and not later.is_missing:
        return later
    return first


class Sticky:
    """The slot that a handle reads from, where every bookie holds every entry.

    One bookie reads ahead and caches for us; three would each do it for a third of the requests.
    The caller draws the first slot, so that many readers spread; an error moves it on.
    """

    def __init__(self, slot: int, ensemble_size: int) -> None:
        self.slot = slot % ensemble_size
        self._ensemble_size = ensemble_size

    def order(self) -> list[int]:
        return [(self.slot + i) % self._ensemble_size for i in range(self._ensemble_size)]

    def on_error(self, slot: int) -> None:
        if slot == self.slot:
            self.slot = (slot + 1) % self._ensemble_size


class Piece:
    """Entries `first`, `first + stride`, ... of one fragment that have the same write set.

    It shrinks from the front as answers come. What was tried, and what went wrong, is always said
    of the entry in front; another entry in front is another question.
    """

    def __init__(self, *, first: int, count: int, stride: int) -> None:
        self.first = first
        self.count = count
        self.stride = stride
        self.parts: list[Part] = []
        self.ensemble: tuple[BookieId, ...] = ()
        self.open: dict[int, int] = {}  # request to slot, in the order of asking
        self.error: Outcome | None = None
        self._may_pass = False  # some error was neither rot nor absence: later may be better
        self.speculate_at: float | None = None
        self.speculation_seconds = 0.0
        self.is_stuck = False  # every replica failed; the record is being read again
        self._order: list[int] = []
        self._tried: set[int] = set()

    @property
    def is_done(self) -> bool:
        return self.count == 0

    @property
    def is_idle(self) -> bool:
        """Neither done nor being asked for: an answer stopped early."""
        return self.count > 0 and not self.open and not self.is_stuck

    def aim(self, ensemble: tuple[BookieId, ...], order: Sequence[int]) -> None:
        """Ask these bookies, in this order, from the beginning."""
        self.ensemble = ensemble
        self.error = None
        self._may_pass = False
        self.is_stuck = False
        self._order = list(order)
        self._tried.clear()

    def next_slot(self) -> int | None:
        """The first replica in order that was not asked for the entry in front."""
        return next((slot for slot in self._order if slot not in self._tried), None)

    def on_asked(self, request_id: int, slot: int) -> None:
        self.open[request_id] = slot
        self._tried.add(slot)

    def silent_since(self, request_id: int) -> list[BookieId]:
        """The bookies that were asked before this request and have not answered."""
        return [self.ensemble[slot] for other, slot in self.open.items() if other < request_id]

    def asked_bookies(self) -> set[BookieId]:
        return {self.ensemble[slot] for slot in self._tried}

    def on_error(self, outcome: Outcome) -> None:
        self.error = more_informative(self.error, outcome)
        self._may_pass |= outcome is not Outcome.CORRUPT and not outcome.is_missing

    @property
    def is_rotten(self) -> bool:
        """Whether every copy of the entry in front that was found fails its digest."""
        return self.error is Outcome.CORRUPT and not self._may_pass

    def on_good(self, slot: int, good: int, *, size: int, data: object) -> None:
        """Take the first `good` entries. The slot that brought them stays first in line."""
        self.parts.append(Part(self.first, good, self.stride, data, size))
        self.first += good * self.stride
        self.count -= good
        self.open.clear()
        self.error = None
        self._may_pass = False
        self._tried.clear()
        self._order.remove(slot)
        self._order.insert(0, slot)

    def on_failed_front(self, slot: int) -> None:
        """The slot that served the entries before failed the one that is now in front."""
        self._tried.add(slot)

    def cut_behind(self, last: int) -> Piece | None:
        """Keep what lies up to entry `last`; the rest as another piece."""
        keep = (last - self.first) // self.stride + 1
        if keep >= self.count:
            return None
        rest = Piece(
            first=self.first + keep * self.stride, count=self.count - keep, stride=self.stride
        )
        self.count = keep
        return rest
