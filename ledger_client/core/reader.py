"""Reading a range of entries: replica by replica, clipped, delivered in order.

A range is cut into groups at fragment ends and by size; a group into pieces of entries with the
same write set: one piece where every bookie holds everything, else one per residue of the entry
id. A piece is asked of one bookie at a time, many entries per request.

How a shell drives it. Check the bounds (`range_failure`), `start`, then answers to `on_answers`,
`tick` at `deadline`, `on_metadata` (or `on_metadata_failed`) after `ReadMetadata`, `on_consumed`
with the size of each part that its caller has taken. An answer carries its entries as opaque
`data`, which comes back in `Deliver`, in order; of a part only the first `count` entries count.
`ReadEnded` is the last command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count as counter

from ledger_client.core.commands import (
    AskRead,
    Command,
    Deliver,
    Failure,
    FailureKind,
    MarkSlow,
    Outcome,
    ReadAnswer,
    ReadEnded,
    ReadMetadata,
    ReportCorruption,
)
from ledger_client.core.distribution import Distribution
from ledger_client.core.replicas import Piece, ReadOrder, Sticky, in_order
from metadata.model import LedgerMetadata
from wire.types import NO_ENTRY, BookieId

#: Asked for at first, before the size of an entry is known.
FIRST_ENTRIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    #: One request asks for no more than this. Bookies that answer entry by entry know no limit
    #: in bytes, so for them the count must be one that the largest entries allow.
    entries_max: int = 1000
    bytes_max: int = 1024 * 1024
    #: Bytes in flight or waiting for the caller.
    ahead_bytes: int = 8 * 1024 * 1024
    #: Ask the next replica when there is no answer after this; doubled each time. None: never.
    speculative_seconds: float | None = 2.0
    speculative_seconds_max: float = 20.0
    #: Ask all replicas at once.
    parallel: bool = False
    #: Tell bookies that this is a scan: readers of fresh entries go before it.
    is_scan: bool = False
    #: How long a bookie may take for one request.
    request_seconds: float = 5.0


def range_failure(
    metadata: LedgerMetadata, *, first: int, last: int, lac: int, unconfirmed: bool = False
) -> Failure | None:
    """Why this range may not be read. Beyond the end of a closed ledger nothing may be."""
    end = metadata.last_entry_id if metadata.last_entry_id is not None else lac
    what = None
    if not 0 <= first <= last:
        what = f"entries {first}..{last} are no range: want 0 <= first <= last"
    elif last > end and (metadata.is_closed or not unconfirmed):
        known = "ends at" if metadata.is_closed else "is confirmed up to"
        what = f"entries {first}..{last} asked, the ledger {known} entry {end}"
    if what is None:
        return None
    ledger_id = metadata.ledger_id
    message = f"ledger {ledger_id}: {what}"
    return Failure(FailureKind.BAD_ENTRY_ID, message, ledger_id=ledger_id, entry_id=last)


class _Group:
    __slots__ = ("first", "last", "pieces")

    def __init__(self, first: int, last: int, pieces: list[Piece]) -> None:
        self.first = first
        self.last = last
        self.pieces = pieces


class RangeRead:
    """One call of read: entries `first..last`, all of them or an error."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        first: int,
        last: int,
        options: ReadOptions | None = None,
        request_ids: Iterator[int] | None = None,
        order: ReadOrder = in_order,
        sticky: Sticky | None = None,
        entry_bytes: float = 0.0,
    ) -> None:
        self.options = options or ReadOptions()
        self.is_over = False
        self.lac = NO_ENTRY  # the highest that an answer showed
        self._metadata = metadata
        self._distribution = Distribution.of(metadata)
        self._last = last
        self._request_ids = counter(1) if request_ids is None else request_ids
        self._order = order
        self._sticky = None if self._distribution.is_striped else sticky
        self._next = first  # the first entry that is in no group yet
        self._groups: deque[_Group] = deque()
        self._requests: dict[int, Piece] = {}
        self._heard: set[BookieId] = set()  # answered something well in this operation
        self._held_bytes = 0  # brought, not consumed yet
        self._given_bytes = 0  # those of them that the caller has in hand
        self._average_bytes = entry_bytes  # of an entry; 0: not known, and nothing read yet
        self._may_reread = True

    # ------------------------------------------------------------------ events

    def start(self, now: float) -> list[Command]:
        return self._go_on(now)

    def on_answers(self, answers: Iterable[ReadAnswer], now: float) -> list[Command]:
        commands: list[Command] = []
        for answer in answers:
            piece = self._requests.pop(answer.request_id, None)
            if piece is None or self.is_over:
                continue  # late: another replica was faster
            slot = piece.open.pop(answer.request_id)
            commands += self._take(piece, slot, answer, now)
        return commands + self._go_on(now)

    def on_consumed(self, size: int, now: float) -> list[Command]:
        self._held_bytes -= size
        self._given_bytes -= size
        return self._go_on(now)

    def on_metadata(self, metadata: LedgerMetadata, now: float) -> list[Command]:
        """A fresh record: pieces that are stuck go to the new bookies, if there are any."""
        self._metadata = metadata
        commands: list[Command] = []
        for piece in [p for group in self._groups for p in group.pieces if p.is_stuck]:
            if not self.is_over:
                commands += self._retry(piece, now)
        return commands + self._go_on(now)

    def on_metadata_failed(self, *, is_gone: bool = False) -> list[Command]:
        """The record could not be read again, or is gone for good; what is known must do."""
        stuck = [p for group in self._groups for p in group.pieces if p.is_stuck]
        return self._fail(stuck[0], is_gone=is_gone) if stuck and not self.is_over else []

    def tick(self, now: float) -> list[Command]:
        """Ask one more replica for pieces that have waited too long.

        Not if a bookie asked for this piece has served another one: then it is merely busy.
        """
        commands: list[Command] = []
        for piece in self._waiting():
            if piece.speculate_at is None or now < piece.speculate_at:
                continue
            if not piece.asked_bookies() & self._heard:
                commands += self._ask_next(piece, now)
            piece.speculation_seconds = min(
                piece.speculation_seconds * 2, self.options.speculative_seconds_max
            )
            piece.speculate_at = now + piece.speculation_seconds
        return commands

    def deadline(self) -> float | None:
        moments = [p.speculate_at for p in self._waiting() if p.speculate_at is not None]
        return min(moments, default=None)

    def _waiting(self) -> list[Piece]:
        return [p for group in self._groups for p in group.pieces if p.open]

    # ------------------------------------------------------------------ answers

    def _take(self, piece: Piece, slot: int, answer: ReadAnswer, now: float) -> list[Command]:
        outcome = answer.outcome
        bookie_id = piece.ensemble[slot]
        self.lac = max(self.lac, answer.lac)
        # What was not asked for may lie past the fragment, or past the end of the ledger.
        good = min(answer.good, piece.count)
        commands: list[Command] = []
        if good:
            self._heard.add(bookie_id)
            self._held_bytes += answer.size
            self._average_bytes = answer.size / answer.good
            self._may_reread = True
            if not self.options.parallel:  # where nobody was asked before anybody else
                commands += map(MarkSlow, piece.silent_since(answer.request_id))
            for request_id in piece.open:
                del self._requests[request_id]
            piece.on_good(slot, good, size=answer.size, data=answer.data)
            if piece.is_done:
                return commands
            if outcome is Outcome.OK:  # stopped early, which says nothing about the next entry
                return commands  # asked for again as soon as there is room
            piece.on_failed_front(slot)
        elif outcome is Outcome.OK:
            outcome = Outcome.IO_ERROR  # "well", and not a single entry: do not ask it again
        if outcome is Outcome.CORRUPT:
            commands.append(ReportCorruption(piece.first, bookie_id))
        piece.on_error(outcome)
        if self._sticky is not None:
            self._sticky.on_error(slot)
        if piece.open:
            return commands  # somebody is still looking
        return commands + (self._ask_next(piece, now) or self._all_failed(piece, now))

    def _all_failed(self, piece: Piece, now: float) -> list[Command]:
        """No replica is left. Perhaps they have moved: look once, then give up."""
        piece.is_stuck = True
        current = self._metadata.fragment_of(piece.first).ensemble
        if current != piece.ensemble:
            return self._retry(piece, now)
        if any(p.is_stuck and p is not piece for group in self._groups for p in group.pieces):
            return []  # the record is being read already
        if self._may_reread:
            self._may_reread = False
            return [ReadMetadata()]
        return self._fail(piece)

    def _retry(self, piece: Piece, now: float) -> list[Command]:
        end = self._metadata.last_entry_id
        fragment = self._metadata.fragment_of(piece.first)
        if fragment.ensemble == piece.ensemble or (end is not None and piece.first > end):
            return self._fail(piece)
        rest = piece.cut_behind(min(self._fragment_end(piece.first), self._last))
        self._aim(piece)
        commands = self._ask(piece, now)
        if rest is not None:  # an ensemble change split the fragment meanwhile
            group = next(g for g in self._groups if piece in g.pieces)
            group.pieces.insert(group.pieces.index(piece) + 1, rest)
            self._aim(rest)
            commands += self._ask(rest, now)
        return commands

    def _fail(self, piece: Piece, *, is_gone: bool = False) -> list[Command]:
        self.is_over = True
        self._requests.clear()
        error, end = piece.error or Outcome.NO_SUCH_ENTRY, self._metadata.last_entry_id
        names = ", ".join(piece.ensemble[s] for s in self._distribution.write_set(piece.first))
        kind = FailureKind.NO_SUCH_ENTRY
        if is_gone:
            kind, what = FailureKind.LEDGER_GONE, "the ledger was deleted meanwhile"
        elif end is not None and piece.first > end:
            what = f"the ledger was closed at entry {end} meanwhile"
        elif error.is_missing:
            what = f"{names} say that they never had it"
        elif piece.is_rotten:
            kind = FailureKind.CORRUPT
            what = f"no copy on {names} matches its digest: have the ledger checked"
        else:
            kind = FailureKind.NOT_READ
            what = f"{names} could not be read, the most telling answer was {error.name}"
        ledger_id = self._metadata.ledger_id
        message = f"entry {piece.first} of ledger {ledger_id}: {what}"
        failure = Failure(kind, message, error, ledger_id=ledger_id, entry_id=piece.first)
        return [ReadEnded(failure)]

    # ------------------------------------------------------------------ asking

    def _go_on(self, now: float) -> list[Command]:
        """Deliver what is next in order, begin what fits, and end when all is delivered."""
        if self.is_over:
            return []
        commands = self._deliver()
        for group in self._groups:
            for piece in group.pieces:
                if piece.is_idle and self._has_room(is_front=group is self._groups[0]):
                    commands += self._ask_next(piece, now)
        while self._next <= self._last and self._has_room(is_front=not self._groups):
            for piece in self._next_group().pieces:
                commands += self._ask(piece, now)
        if not self._groups and self._next > self._last:
            self.is_over = True
            commands.append(ReadEnded())
        return commands

    def _has_room(self, *, is_front: bool) -> bool:
        """Whether one more request fits.

        In front it always does when the caller has nothing in hand: everything that is held then
        waits for this request, and nobody else will make room.
        """
        if is_front and self._given_bytes <= 0:
            return True
        open_bytes = len(self._requests) * self.options.bytes_max
        return open_bytes + self._held_bytes + self.options.bytes_max <= self.options.ahead_bytes

    def _next_group(self) -> _Group:
        """The next entries of one fragment, about as many as one request may bring."""
        first, options = self._next, self.options
        size = self._distribution.ensemble_size if self._distribution.is_striped else 1
        count = min(options.entries_max, FIRST_ENTRIES)
        if self._average_bytes:
            count = min(options.entries_max, max(1, int(options.bytes_max / self._average_bytes)))
        last = min(self._last, self._fragment_end(first), first + count * size - 1)
        pieces = []
        for start in range(first, min(first + size, last + 1)):
            piece = Piece(first=start, count=(last - start) // size + 1, stride=size)
            self._aim(piece)
            pieces.append(piece)
        self._next = last + 1
        group = _Group(first, last, pieces)
        self._groups.append(group)
        return group

    def _fragment_end(self, entry_id: int) -> int:
        """The last entry that may be read from the fragment of `entry_id`."""
        fragments = self._metadata.fragments
        later = fragments[fragments.index(self._metadata.fragment_of(entry_id)) + 1 :]
        return later[0].first_entry_id - 1 if later else self._last

    def _aim(self, piece: Piece) -> None:
        ensemble = self._metadata.fragment_of(piece.first).ensemble
        slots = self._sticky.order() if self._sticky else self._distribution.write_set(piece.first)
        piece.aim(ensemble, self._order(slots, ensemble))

    def _ask(self, piece: Piece, now: float) -> list[Command]:
        commands = self._ask_next(piece, now)
        while self.options.parallel and (more := self._ask_next(piece, now)):
            commands += more
        seconds = self.options.speculative_seconds
        if seconds is not None:
            piece.speculation_seconds = seconds
            piece.speculate_at = now + seconds
        return commands

    def _ask_next(self, piece: Piece, now: float) -> list[Command]:
        slot = piece.next_slot()
        if slot is None:
            return []
        request_id = next(self._request_ids)
        piece.on_asked(request_id, slot)
        self._requests[request_id] = piece
        if piece.speculation_seconds:
            piece.speculate_at = now + piece.speculation_seconds
        return [
            AskRead(
                request_id=request_id,
                slot=slot,
                bookie_id=piece.ensemble[slot],
                first=piece.first,
                count=piece.count,
                stride=piece.stride,
                bytes_max=self.options.bytes_max,
            )
        ]

    # ------------------------------------------------------------------ delivering

    def _deliver(self) -> list[Command]:
        commands: list[Command] = []
        while self._groups:
            group = self._groups[0]
            is_done = all(piece.is_done for piece in group.pieces)
            if self._distribution.is_striped:
                if is_done:
                    parts = tuple(part for piece in group.pieces for part in piece.parts)
                    commands.append(Deliver(group.first, group.last, parts))
                    self._given_bytes += sum(part.size for part in parts)
            else:  # one piece after the other, part by part
                for piece in group.pieces:
                    for part in piece.parts:
                        last = part.first + part.count - 1
                        commands.append(Deliver(part.first, last, (part,)))
                        self._given_bytes += part.size
                    piece.parts.clear()
                    if not piece.is_done:
                        break
            if not is_done:
                break
            self._groups.popleft()
        return commands
