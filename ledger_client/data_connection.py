"""Adds and reads, by v2: batches for bookies that take them, one frame per entry for others.

Batches are answered with their own number. Ordinary answers name ledger and entry only, so each
entry remembers who asked, in the order of asking: the same entry may be on its way twice, and a
request that was given up keeps its place in that order until its answer comes. Copies of single
entries are gathered in bundles (`copies.py`); a copy leaves before anything else of its ledger that
is handed over later, so an answer that could be a copy's is the copy's.

Our bookies announce that they take batches of adds. Batch reads are announced by nobody: bookies
have them since 4.17, older ones close the connection. So a bookie is asked, and if the connection
ends before it ever answered one, everything goes again, entry by entry.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, count

from ledger_client.connection import ALONE_MAX, Connection, Found, Place
from ledger_client.copies import BUNDLE_BYTES, BUNDLE_COPIES, Bundle, Key
from ledger_client.core.commands import OUTCOME_BY_STATUS, Outcome
from ledger_client.expected_adds import ExpectedAdds
from ledger_client.health import BookieHealth
from ledger_client.intake import Batch
from ledger_client.requests import (
    BATCH_ENTRIES_MIN,
    NOTHING_FOUND,
    Adds,
    Answer,
    FenceReads,
    FoundEntries,
    Reads,
    Request,
)
from runtime.sockets import Network
from wire.batch import BATCH_HEAD_BYTES, RECORD_HEAD_BYTES, batch_head, join_records
from wire.build_v2 import add_requests, fence_requests, read_requests
from wire.codec_v2 import encode_request
from wire.errors import ProtocolError, Status
from wire.framing import FrameBuffer
from wire.messages import AddBatchResponse, BatchReadRequest
from wire.scan_v2 import (
    READ_ANSWER_ENTRY_OFFSET,
    AddAnswerMix,
    AddAnswers,
    BatchReadAnswer,
    ReadAnswers,
    add_key,
    scan_responses,
)
from wire.types import FRAME_BYTES_MAX, BookieId, Flag, LedgerId

_ReadKey = tuple[int, int]  # ledger, entry
_Singly = Reads | FenceReads  # what is answered entry by entry


class _Trial:
    """A kind of request that the bookie may choke on, found out by trying.

    A connection that ends while the first of them has no answer leaves a doubt, and the next one
    does without. The one after that tries again: the bookie may be another version by then, and
    the doubt may have been wrong.
    """

    def __init__(self) -> None:
        self.is_open = False  # tried on this connection
        self.is_doubted = False
        self._is_proven = False

    def on_answer(self) -> None:
        self._is_proven = True

    def on_lost(self) -> bool:
        """The connection is gone; whether this may be the reason."""
        self.is_doubted = self.is_open and not self._is_proven
        self.is_open = False
        return self.is_doubted


class DataConnection(Connection):
    def __init__(
        self,
        bookie_id: BookieId,
        *,
        locate: Callable[[BookieId], Place],
        network: Network,
        chance: random.Random,
        health: BookieHealth,
    ) -> None:
        super().__init__(bookie_id, locate=locate, network=network, chance=chance, health=health)
        self._batches = _Trial()
        self._batch_reads = _Trial()
        self._adds = ExpectedAdds()
        self._reads: dict[_ReadKey, _Singly | list[_Singly]] = {}
        self._bundle: Bundle | None = None  # being filled
        self._own_ids = count(-1, -1)  # beside the numbers that the cores give
        self._copies: dict[Key, Bundle] = {}  # on their way

    # ------------------------------------------------------------------ copies

    def add_copy(self, key: Key, copy: Batch) -> None:
        """Send a copy: at once if few adds are on their way, else with others in a moment."""
        bundle, is_new = self._bundle, self._bundle is None
        if bundle is None:
            bundle = self._bundle = Bundle(request_id=next(self._own_ids), sink=_ignore)
        bundle.copies[key] = copy
        bundle.ledger_ids.add(copy.owner.id)
        bundle.held_bytes += len(copy.frames)
        bundle.held_adds += 1
        if (
            self._held_adds + bundle.held_adds <= ALONE_MAX
            or bundle.held_bytes >= BUNDLE_BYTES
            or bundle.held_adds >= BUNDLE_COPIES
            or self._stream is None
        ):
            self._end_moment()
        elif is_new:
            self._out_filled.set()

    def _send(self, request: Request) -> None:
        if isinstance(request, Bundle):
            self._part(request)
            if not request.copies:
                self._forget(request)
                return
        super()._send(request)

    def _part(self, bundle: Bundle) -> None:
        """Where other adds of its ledger are on their way, a copy's answer is told from theirs.

        A recovery may have added the same entry a moment ago.
        """
        asked = self._adds.asked
        if not asked and self._copies.keys().isdisjoint(bundle.copies):
            return
        for key, copy in list(bundle.copies.items()):
            if key in self._copies or copy.owner.id in asked:
                del bundle.copies[key]
                super().ask(self._as_adds(copy))

    def _as_adds(self, copy: Batch) -> Adds:
        def take(answers: list[Answer]) -> None:
            for answer in answers:
                self._tell(copy, answer.outcome)

        return Adds(
            request_id=next(self._own_ids),
            sink=take,
            ledger_id=copy.owner.id,
            entry_ids=(copy.first,),
            frames=copy.frames,
            master_key=b"",  # in the frame
        )

    def _tell(self, copy: Batch, outcome: Outcome) -> None:
        if outcome is Outcome.OK:
            copy.owner.on_copy(copy.entry, self.bookie_id)
        else:
            copy.owner.on_copy_failed(copy.entry, self.bookie_id, outcome)

    def ask(self, request: Request) -> None:
        bundle = self._bundle
        if (
            bundle is not None
            and isinstance(request, Adds)
            and request.ledger_id in bundle.ledger_ids
        ):
            self._end_moment()
        super().ask(request)

    def close(self) -> None:
        self._end_moment()
        super().close()

    def _end_moment(self) -> None:
        bundle, self._bundle = self._bundle, None
        if bundle is not None:
            self._held_bytes += bundle.held_bytes
            self._held_adds += bundle.held_adds
            super().ask(bundle)

    def _end(self, request: Request, outcome: Outcome) -> None:
        super()._end(request, outcome)
        if isinstance(request, Bundle):
            request.end(self.bookie_id, outcome)

    def _frame(self, request: Request) -> list[bytes]:
        if isinstance(request, Bundle):
            self._copies |= dict.fromkeys(request.copies, request)
            return [request.frames()]
        if isinstance(request, Adds):
            return self._frame_adds(request)
        if isinstance(request, FenceReads):
            return [self._frame_fences(request)]
        assert isinstance(request, Reads)
        return [self._frame_reads(request)]

    def _frame_adds(self, adds: Adds) -> list[bytes]:
        takes_batches = self.place is not None and self.place.takes_batches
        is_worth_it = bool(adds.records) or len(adds.entry_ids) >= BATCH_ENTRIES_MIN
        if takes_batches and is_worth_it and not self._batches.is_doubted:
            records = adds.records or join_records(adds.entries())
            if BATCH_HEAD_BYTES + len(records) <= FRAME_BYTES_MAX:
                self._batches.is_open = True
                head = batch_head(
                    len(records),
                    request_id=adds.request_id,
                    ledger_id=adds.ledger_id,
                    first_entry_id=adds.entry_ids[0],
                    last_entry_id=adds.entry_ids[-1],
                    count=len(adds.entry_ids),
                    master_key=adds.master_key,
                    flags=adds.flags,
                )
                return [head, records]
        adds.left = len(adds.entry_ids)
        self._adds.expect(adds)
        if adds.frames:
            return [adds.frames]
        return [add_requests(adds.entries(), master_key=adds.master_key, flags=adds.flags)]

    def _frame_reads(self, reads: Reads) -> bytes:
        entry_ids = reads.entry_ids
        if not self._batch_reads.is_doubted and entry_ids.step == 1 and len(entry_ids) > 1:
            self._batch_reads.is_open = True
            return encode_request(
                BatchReadRequest(
                    request_id=reads.request_id,
                    ledger_id=reads.ledger_id,
                    first_entry_id=entry_ids[0],
                    count_max=len(entry_ids),
                    bytes_max=reads.bytes_max,
                    read_class_batch=reads.is_scan,
                )
            )
        self._expect_reads(reads)
        flags = Flag.READ_CLASS_BATCH if reads.is_scan else Flag.NONE
        return read_requests(entry_ids, ledger_id=reads.ledger_id, flags=flags)

    def _frame_fences(self, reads: FenceReads) -> bytes:
        """One by one, as every version has them: a batch of them would end at the first hole."""
        self._expect_reads(reads)
        return fence_requests(
            reads.entry_ids,
            ledger_id=reads.ledger_id,
            master_key=reads.master_key,
            flags=Flag.HIGH_PRIORITY,
        )

    def _expect_reads(self, reads: _Singly) -> None:
        reads.found.clear()  # of an earlier connection
        for entry_id in reads.entry_ids:
            self._expect((reads.ledger_id, entry_id), reads)

    # ------------------------------------------------------------------ answers

    def _scan(self, frames: FrameBuffer, found: Found) -> None:
        for item in scan_responses(frames):
            match item:
                case AddBatchResponse():
                    self._take_batch(item, found)
                case AddAnswerMix():
                    self._take_mix(item, found)
                case AddAnswers():
                    self._take_adds(item, found)
                case BatchReadAnswer():
                    self._take_batch_read(item, found)
                case ReadAnswers():
                    self._take_reads(item, found)
                case _:
                    raise ProtocolError(
                        f"bookie {self.bookie_id} sent a {type(item).__name__}, unasked"
                    )

    def _take_batch(self, item: AddBatchResponse, found: Found) -> None:
        self._batches.on_answer()
        request = self._open.get(item.request_id)
        if request is not None:
            self._put(found, request, OUTCOME_BY_STATUS[item.status])

    def _take_batch_read(self, item: BatchReadAnswer, found: Found) -> None:
        self._batch_reads.on_answer()
        request = self._open.get(item.request_id)
        if request is not None:
            entries = FoundEntries(item.data, item.bounds, RECORD_HEAD_BYTES)
            outcome = OUTCOME_BY_STATUS[item.status]
            self._put(found, request, outcome, entries if entries.entries else NOTHING_FOUND)

    def _take_mix(self, item: AddAnswerMix, found: Found) -> None:
        """Good answers, mostly to copies."""
        bundle_of, bookie_id = self._copies.pop, self.bookie_id
        others: list[Key] = []
        for key in item.keys:
            bundle = bundle_of(key, None)
            if bundle is None:
                others.append(key)
                continue
            copy = bundle.copies.pop(key, None)
            if copy is not None:  # else the bundle was given up
                if not copy.entry.is_confirmed:  # beyond the quorum there is nothing to hear
                    copy.owner.on_copy(copy.entry, bookie_id)
                if not bundle.copies:
                    self._forget(bundle)
        for ledger_id, entry_id in AddAnswerMix(others).ids():
            self._take_adds(AddAnswers(Status.OK, LedgerId(ledger_id), [entry_id]), found)
        found.setdefault(_ignore, []).append(Answer(0, Outcome.OK))

    def _take_copies(self, item: AddAnswers, outcome: Outcome, found: Found) -> list[int]:
        """The entries that are left when those have been taken that are copies."""
        left: list[int] = []
        for entry_id in item.entry_ids:
            key = add_key(item.ledger_id, entry_id)
            if key in self._copies:
                self._take_copy(key, outcome, found)
            else:
                left.append(entry_id)
        return left

    def _take_copy(self, key: Key, outcome: Outcome, found: Found) -> None:
        bundle = self._copies.pop(key)
        copy = bundle.copies.pop(key, None)
        if copy is None:
            return
        self._tell(copy, outcome)
        if not bundle.copies:
            self._forget(bundle)
        found.setdefault(_ignore, []).append(Answer(0, outcome))

    def _take_adds(self, item: AddAnswers, found: Found) -> None:
        """Acknowledgements are passed on as they come, one answer per request and buffer."""
        outcome = OUTCOME_BY_STATUS[item.status]
        left = item.entry_ids
        if self._copies:
            left = self._take_copies(item, outcome, found)
        confirmed: dict[Adds, list[Sequence[int]]] = {}
        for adds, run in self._adds.take(item.ledger_id, left):
            if adds.is_over:
                continue
            if outcome is Outcome.OK:
                confirmed.setdefault(adds, []).append(run)
            else:
                self._put(found, adds, outcome)
        for adds, runs in confirmed.items():
            # More than one only if they came in disorder.
            entry_ids = runs[0] if len(runs) == 1 else sorted(chain.from_iterable(runs))
            adds.left -= len(entry_ids)
            found.setdefault(adds.sink, []).append(Answer(adds.request_id, outcome, entry_ids))
            if adds.left <= 0:
                self._forget(adds)

    def _take_reads(self, item: ReadAnswers, found: Found) -> None:
        """Entries wait for the others of their request, then go on together."""
        outcome = OUTCOME_BY_STATUS[item.status]
        bounds = item.bounds
        for i, entry_id in enumerate(item.entry_ids):
            reads = self._expected((item.ledger_id, entry_id))
            if reads is None or reads.is_over:
                continue
            body = b""
            if item.status is Status.OK:
                body = item.data[bounds[i] + READ_ANSWER_ENTRY_OFFSET : bounds[i + 1]]
            reads.found[entry_id] = (outcome, body)
            if len(reads.found) < len(reads.entry_ids):
                continue
            if isinstance(reads, FenceReads):
                self._put(found, reads, _first_error(reads), reads.found)
            else:
                self._put(found, reads, *_gathered(reads))

    def _put(
        self, found: Found, request: Request, outcome: Outcome, content: object = None
    ) -> None:
        self._forget(request)
        found.setdefault(request.sink, []).append(Answer(request.request_id, outcome, content))

    # ------------------------------------------------------------------ who asked

    def _on_lost(self) -> None:
        bundle, self._bundle = self._bundle, None
        if bundle is not None:  # it shares the fate of what was sent
            bundle.held_bytes = bundle.held_adds = 0
            self._open[bundle.request_id] = bundle
        self._copies.clear()
        self._adds.clear()
        self._reads.clear()
        doubts = [self._batches.on_lost(), self._batch_reads.on_lost()]
        if any(doubts) and not self._is_closed:
            # Perhaps it choked on a batch. Adds and reads may be repeated, so all of them go
            # again. If the bookie is gone, the next connect says so.
            self._retry_at = 0.0
            self._waiting += self._open.values()
            self._open.clear()

    def _expect(self, key: _ReadKey, request: _Singly) -> None:
        first = self._reads.setdefault(key, request)
        if isinstance(first, list):
            first.append(request)
        elif first is not request:
            self._reads[key] = [first, request]

    def _expected(self, key: _ReadKey) -> _Singly | None:
        request = self._reads.pop(key, None)
        if isinstance(request, list):
            rest = request[1:]
            self._reads[key] = rest if len(rest) > 1 else rest[0]
            return request[0]
        return request


def _ignore(answers: list[Answer]) -> None:
    """Of copies their owners know; what is left is for the bookie's reputation."""


def _first_error(reads: FenceReads) -> Outcome:
    """For the bookie's reputation; whoever asked looks at every entry."""
    outcomes = (outcome for outcome, _ in reads.found.values())
    return next((one for one in outcomes if not one.is_known), Outcome.OK)


def _gathered(reads: Reads) -> tuple[Outcome, FoundEntries]:
    """What single answers say together: the entries before the first that was not found."""
    bodies: list[bytes] = []
    for entry_id in reads.entry_ids:
        outcome, body = reads.found[entry_id]
        if outcome is not Outcome.OK:
            break
        bodies.append(body)
    else:
        outcome = Outcome.OK
    bounds = list(accumulate(map(len, bodies), initial=0))
    return outcome, FoundEntries(b"".join(bodies), bounds, 0)
