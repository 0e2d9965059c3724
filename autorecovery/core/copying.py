"""Copying the entries of one job: what to ask whom, what to send where, and what it all proves.

A piece of entries is read from its best source and sent to all its targets, unchanged. What is
read is sent at once, whole or in part; what is not is read elsewhere:

| The source says | The entry | The rest of the piece |
|---|---|---|
| missing, or a corrupt copy | the next source; the copy goes to this one, too | asked again |
| an error of its disk, if it is verified | the next source; the copy goes here, too | asked again |
| nothing, or trouble | the next source | the next source |
| fewer than asked for | asked again | asked again |

So a hole that is met on the way is filled on the way, and a corrupt copy is never passed on. An
entry that no source has is lost, if all of them said so; where one of them did not answer, it is
unread, and may be there the next time. A job with lost or unread entries has not brought its
targets what they must hold: it must not be committed.

Pure: reads and adds are commands, and every one of them gets an answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeAlias

from autorecovery.core.fragments import CopyJob, Cutter, Piece, Run
from autorecovery.core.parking import RANGES_MAX, joined
from ledger_client.core.commands import Outcome
from wire.availability import runs_of
from wire.types import BookieId

#: A piece aims at so many bytes: large enough to cost little per entry, small enough to share.
PIECE_BYTES: Final = 256 * 1024
PIECE_ENTRIES_MAX: Final = 1000
#: As long as nothing is known about the size of entries.
FIRST_ENTRIES: Final = 8
#: Holes in one piece, after which its rest is read elsewhere, and copied here as a whole.
HOLES_MAX: Final = 4
#: A target that is busy is asked again this often, with a pause before each time.
BUSY_MAX: Final = 6
BUSY_SECONDS: Final = 0.2

#: Answers about one entry only; and with them the one that says the same of all.
_ONE: Final = frozenset({Outcome.NO_SUCH_ENTRY, Outcome.CORRUPT})
_first: Final = itemgetter(0)
_HOLE: Final = _ONE | {Outcome.NO_SUCH_LEDGER}


@dataclass(frozen=True, slots=True)
class ReadPiece:
    request_id: int
    bookie_id: BookieId
    entry_ids: range


@dataclass(frozen=True, slots=True)
class AddPiece:
    request_id: int
    bookie_id: BookieId
    entry_ids: range
    records: bytes
    delay_seconds: float = 0.0


Command: TypeAlias = ReadPiece | AddPiece


class Runs:
    """Entries as ascending runs. Too many of them are joined over their smallest gaps."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[Run] = []

    def add(self, entry_ids: Sequence[int]) -> None:
        self.count += len(entry_ids)
        self._runs += runs_of(entry_ids)
        if len(self._runs) > 4 * RANGES_MAX:
            self._runs = list(joined(self._runs))

    @property
    def runs(self) -> tuple[Run, ...]:
        return joined(self._runs)


@dataclass(slots=True, eq=False)
class _Reading:
    """A piece on its way from a source."""

    piece: Piece
    sources: list[int]  # still to be asked, the present one first
    targets: tuple[int, ...]
    #: What each source said about the first entry; complete only if the piece is a proof.
    said: dict[int, Outcome] = field(default_factory=dict)
    holes: int = 0
    is_proof: bool = False


@dataclass(slots=True, eq=False)
class _Adding:
    """A piece on its way to one target."""

    slot: int
    entry_ids: range
    records: bytes
    left: int
    is_extra: bool  # fills a hole of a source; the job does not depend on it
    busy: int = 0


class Copy:
    """One job. Ask it for `begin` while there is room, and tell it every answer."""

    def __init__(
        self,
        job: CopyJob,
        *,
        request_ids: Iterator[int],
        entry_bytes: int | None = None,
        accepted: Sequence[Run] = (),
    ) -> None:
        """`entry_bytes`: the average size, if it is known. `accepted`: entries without which the
        ledger may go on if they are lost, as somebody has decided."""
        self._job = job
        self._accepted = joined(accepted)
        self._cutter = Cutter(job)
        self._again: deque[_Reading] = deque()  # pieces to be read from another source, or again
        self._request_ids = request_ids
        self._reading: dict[int, _Reading] = {}
        self._adding: dict[int, _Adding] = {}
        self._demoted: set[int] = set()
        self._entry_bytes = entry_bytes
        self.entries_copied = 0
        self.bytes_copied = 0
        self.bytes_read = 0
        self.lost = Runs()
        self.unread = Runs()
        #: Lost, and accepted.
        self.given_up = Runs()
        #: Why an entry could not be read, by bookie; the last reason of each.
        self.troubles: dict[BookieId, Outcome] = {}
        #: Targets that did not take what they were sent.
        self.failed: dict[BookieId, Outcome] = {}
        #: Bookies with holes that were filled, and those that refused to be.
        self.filled: set[BookieId] = set()
        self.unfilled: set[BookieId] = set()

    # ------------------------------------------------------------------ state

    @property
    def in_flight(self) -> int:
        return len(self._reading) + len(self._adding)

    @property
    def has_more(self) -> bool:
        """Whether `begin` would ask for something."""
        return not self.failed and (bool(self._again) or not self._cutter.is_done)

    @property
    def is_over(self) -> bool:
        return not self.in_flight and not self.has_more

    @property
    def is_complete(self) -> bool:
        """Whether every target holds what it must, as far as the job goes."""
        return self.is_over and not (self.failed or self.lost.count or self.unread.count)

    @property
    def targets(self) -> Mapping[int, BookieId]:
        return self._job.targets

    @property
    def next_bytes(self) -> int:
        """About how much the next piece will bring."""
        if self._entry_bytes is None:
            return PIECE_BYTES
        return max(self._entry_bytes, min(PIECE_BYTES, self._entry_bytes * self._job.span))

    def is_open(self, request_id: int) -> bool:
        """Whether an answer to this request is still awaited."""
        return request_id in self._reading or request_id in self._adding

    # ------------------------------------------------------------------ reading

    def begin(self) -> list[Command]:
        """Read one more piece."""
        if self.failed:
            return []
        if self._again:
            return self._read(self._again.popleft())
        piece = self._cutter.next(self._count())
        if piece is None:
            return []
        fresh = [slot for slot in piece.sources if slot not in self._demoted]
        sources = [*fresh, *(slot for slot in piece.sources if slot in self._demoted)]
        return self._read(_Reading(piece, sources, piece.targets))

    def _count(self) -> int:
        if self._entry_bytes is None:
            return FIRST_ENTRIES
        return min(PIECE_ENTRIES_MAX, PIECE_BYTES // max(1, self._entry_bytes) or 1)

    def _read(self, reading: _Reading) -> list[Command]:
        if not reading.sources:
            self._give_up(reading)
            return []
        request_id = next(self._request_ids)
        self._reading[request_id] = reading
        bookie_id = self._job.fragment.ensemble[reading.sources[0]]
        return [ReadPiece(request_id, bookie_id, reading.piece.entry_ids)]

    def on_read(
        self, request_id: int, outcome: Outcome, *, good: int = 0, records: bytes = b""
    ) -> list[Command]:
        """`good` entries came, verified, as `records`; `outcome` is that of the one behind them."""
        reading = self._reading.pop(request_id)
        ids = reading.piece.entry_ids
        assert good <= len(ids)
        commands: list[Command] = []
        if good:
            self._learn(len(records) // good)
            self.bytes_read += len(records)
            commands += self._send(reading.targets, ids[:good], records)
        rest = ids[good:]
        if not rest or self.failed:
            return commands
        source = reading.sources[0]
        if outcome is Outcome.OK and good:
            self._later(reading, rest)
        elif outcome in _HOLE or (outcome is Outcome.IO_ERROR and source == self._job.verified):
            self._on_hole(reading, rest, source, outcome)
        else:
            self._demoted.add(source)
            self._on_trouble(reading, rest, source, outcome)
        return commands

    def _learn(self, entry_bytes: int) -> None:
        """Follow the size of entries: at once if they grow, slowly if they shrink."""
        known = self._entry_bytes
        if known is None or entry_bytes > known:
            self._entry_bytes = entry_bytes
        else:
            self._entry_bytes = known - (known - entry_bytes) // 8

    def _on_hole(self, reading: _Reading, rest: range, source: int, outcome: Outcome) -> None:
        """The source lacks an entry that it must hold: from now on it is a target as well."""
        others = [slot for slot in reading.sources if slot != source]
        extended = (*reading.targets, *({source} - set(reading.targets)))
        said = {**reading.said, source: outcome}
        holes = reading.holes + 1
        whole = outcome is Outcome.NO_SUCH_LEDGER or (holes > HOLES_MAX and not reading.is_proof)
        hole = rest if whole else rest[:1]
        self._again.append(
            _Reading(
                Piece(hole, reading.piece.sources, reading.piece.targets),
                others,
                extended,
                said,
                is_proof=reading.is_proof,
            )
        )
        if len(hole) < len(rest):
            reading.holes = holes
            self._later(reading, rest[1:])

    def _on_trouble(self, reading: _Reading, rest: range, source: int, outcome: Outcome) -> None:
        self.troubles[self._job.fragment.ensemble[source]] = outcome
        self._again.append(
            _Reading(
                Piece(rest, reading.piece.sources, reading.piece.targets),
                [slot for slot in reading.sources if slot != source],
                reading.targets,
                {**reading.said, source: outcome},
                is_proof=reading.is_proof,
            )
        )

    def _later(self, reading: _Reading, rest: range) -> None:
        """Ask the same source for the rest, about which nothing is known but what held for all."""
        said = {slot: outcome for slot, outcome in reading.said.items() if outcome not in _ONE}
        self._again.append(
            _Reading(
                Piece(rest, reading.piece.sources, reading.piece.targets),
                reading.sources,
                reading.targets,
                said,
                holes=reading.holes,
                is_proof=reading.is_proof,
            )
        )

    def _give_up(self, reading: _Reading) -> None:
        """No source is left. What they said counts for all entries, or each is asked for alone."""
        ids = reading.piece.entry_ids
        said = [reading.said.get(slot) for slot in reading.piece.sources]
        if any(outcome is not None and outcome not in _HOLE for outcome in said):
            self.unread.add(ids)
        elif reading.is_proof and len(ids) == 1:
            self._lose(ids)
        elif all(outcome is Outcome.NO_SUCH_LEDGER for outcome in said):
            self._lose(ids)  # also where there is no source at all
        else:
            piece = reading.piece
            for part in (ids[:1], ids[1:]):
                if part:
                    self._again.append(
                        _Reading(
                            Piece(part, piece.sources, piece.targets),
                            list(piece.sources),
                            piece.targets,
                            is_proof=True,
                        )
                    )

    def _lose(self, ids: range) -> None:
        accepted = self._accepted
        if not accepted:
            self.lost.add(ids)
            return

        def is_accepted(entry_id: int) -> bool:
            index = bisect_right(accepted, entry_id, key=_first) - 1
            return index >= 0 and entry_id <= accepted[index][1]

        self.lost.add([entry_id for entry_id in ids if not is_accepted(entry_id)])
        self.given_up.add([entry_id for entry_id in ids if is_accepted(entry_id)])

    # ------------------------------------------------------------------ adding

    def _send(self, slots: tuple[int, ...], ids: range, records: bytes) -> list[Command]:
        if self.lost.count:
            return []  # not to be committed any more: only the extent of the loss is of interest
        commands: list[Command] = []
        for slot in slots:
            is_extra = slot not in self._job.targets
            adding = _Adding(slot, ids, records, len(ids), is_extra)
            commands.append(self._add(adding))
        return commands

    def _add(self, adding: _Adding) -> AddPiece:
        request_id = next(self._request_ids)
        self._adding[request_id] = adding
        delay = BUSY_SECONDS * adding.busy
        bookie_id = self._bookie(adding.slot)
        return AddPiece(request_id, bookie_id, adding.entry_ids, adding.records, delay)

    def _bookie(self, slot: int) -> BookieId:
        target = self._job.targets.get(slot)
        return self._job.fragment.ensemble[slot] if target is None else target

    def on_add(
        self, request_id: int, outcome: Outcome, *, confirmed: int | None = None
    ) -> list[Command]:
        """A target took the entries (or `confirmed` of them, more to come), or it did not."""
        adding = self._adding[request_id]
        if outcome is Outcome.OK and confirmed is not None:
            adding.left -= confirmed
            if adding.left > 0:
                return []
        del self._adding[request_id]
        bookie_id = self._bookie(adding.slot)
        if outcome is Outcome.OK:
            if adding.is_extra:
                self.filled.add(bookie_id)
            else:
                self.entries_copied += len(adding.entry_ids)
                self.bytes_copied += len(adding.records)
        elif outcome is Outcome.TOO_MANY_REQUESTS and adding.busy < BUSY_MAX and not self.failed:
            adding.busy += 1
            adding.left = len(adding.entry_ids)
            return [self._add(adding)]
        elif adding.is_extra:
            self.unfilled.add(bookie_id)
        else:
            self.failed[bookie_id] = outcome
        return []
