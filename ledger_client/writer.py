"""Writing one ledger: callers' payloads into batches, batches to bookies, answers to callers.

One task owns the core. Callers put payloads into the batch that is being filled and wait for its
end; the owner takes whatever is waiting whenever it looks, so that batches grow with the load and
nobody waits for company. Writes of the record happen in tasks of their own and come back as events.

A caller that is cancelled leaves its payload behind: it may or may not be written, and nothing else
changes for the handle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

import trio

from ledger_client.core.commands import (
    AddAnswer,
    ChangeEnsemble,
    CloseEnded,
    CloseLedger,
    Command,
    Confirm,
    FailAdds,
    Failure,
    FailureKind,
    Package,
    RefuseAdd,
    RetryLater,
    SendAdd,
    SendLac,
)
from ledger_client.core.options import WriterOptions
from ledger_client.core.writer import Writer
from ledger_client.environment import Access, Environment
from ledger_client.errors import EntryTooLargeError, error_of, kind_of
from ledger_client.requests import Adds, Answer, Mailbox, Question
from metadata import update
from metadata.model import LedgerMetadata
from metadata.update import VersionedLedger
from wire.batch import BATCH_HEAD_BYTES, RECORD_HEAD_BYTES, split_records
from wire.entry import ENTRY_HEADER_BYTES, encode_lac, encode_records
from wire.errors import LedgerError
from wire.messages import WriteLacRequest
from wire.types import FRAME_BYTES_MAX, NO_ENTRY, LedgerId

#: A batch takes no further payload above either.
BATCH_BYTES: Final = 256 * 1024
BATCH_ENTRIES: Final = 2048
#: Payloads that no batch has taken to the bookies yet; above, callers wait.
QUEUE_BYTES_MAX: Final = 4 * 1024 * 1024


class _Batch:
    """Payloads that share their fate, and the callers that wait for it."""

    __slots__ = ("done", "failure", "first", "last", "payloads", "records", "size")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.size = 0
        self.done = trio.Event()
        self.failure: Failure | None = None
        self.first = self.last = NO_ENTRY
        self.records = b""

    def end(self, failure: Failure | None = None) -> None:
        self.failure = failure
        self.payloads = []
        self.records = b""
        self.done.set()


class LedgerWriter:
    """A ledger that was just created, to be filled. Made by `LedgerClient.create`."""

    def __init__(
        self,
        environment: Environment,
        ledger: VersionedLedger,
        access: Access,
        options: WriterOptions | None = None,
    ) -> None:
        self.id: LedgerId = access.ledger_id
        self._environment = environment
        self._ledger = ledger
        self._access = access
        self._core = Writer(ledger.metadata, options, request_ids=environment.request_ids)
        self._mail = Mailbox()
        self._events: deque[Callable[[], list[Command]]] = deque()
        self._queue: deque[_Batch] = deque()  # not handed to the core yet
        self._queued_bytes = 0
        self._room_made = trio.Event()
        self._is_waiting_for_room = False
        self._sent: deque[_Batch] = deque()  # in entry order, until confirmed
        self._by_first: dict[int, _Batch] = {}
        self._is_closing = False
        self._ended = trio.Event()
        self._end: CloseEnded | None = None
        overhead = ENTRY_HEADER_BYTES + access.digest.size + RECORD_HEAD_BYTES + BATCH_HEAD_BYTES
        self._payload_bytes_max = FRAME_BYTES_MAX - overhead

    # ------------------------------------------------------------------ for callers

    @property
    def last_confirmed(self) -> int:
        """The last entry that is written for good; -1 before there is one."""
        return self._core.lac

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as this handle knows it."""
        return self._ledger.metadata

    async def append(self, payload: bytes) -> int:
        """Write one entry; its id, once enough bookies have it on disk."""
        self._check(payload)
        await self._wait_room()
        return await self.put(payload)()

    def put(self, payload: bytes) -> Callable[[], Awaitable[int]]:
        """Append without waiting, also for room: await what this returns to get the id.

        For callers that keep an order and a bound of their own; all others want `append`.
        """
        self._check(payload)
        batch, index = self._put(payload)
        self._mail.wake()

        async def wait() -> int:
            return (await _wait(batch, index, 1)).start

        return wait

    async def append_many(self, payloads: Iterable[bytes]) -> Sequence[int]:
        """Write many entries in this order, as fast as bookies take them; all their ids.

        Ids are consecutive unless other tasks append to the same handle meanwhile. After an error
        any number of them, from the first on, may be written.
        """
        parts: deque[tuple[_Batch, int, int]] = deque()  # batch, from its payload, count
        entry_ids: list[range] = []
        for payload in payloads:
            self._check(payload)
            if self._queued_bytes >= QUEUE_BYTES_MAX:
                self._mail.wake()
                await self._wait_room()
                while parts and parts[0][0].done.is_set():
                    entry_ids.append(await _wait(*parts.popleft()))
            batch, index = self._put(payload)
            if parts and parts[-1][0] is batch and sum(parts[-1][1:]) == index:
                parts[-1] = (batch, parts[-1][1], parts[-1][2] + 1)
            else:
                parts.append((batch, index, 1))
        self._mail.wake()
        while parts:
            entry_ids.append(await _wait(*parts.popleft()))
        return _joined(entry_ids)

    async def close(self) -> None:
        """Wait for everything appended so far, then record the end of the ledger. Idempotent."""
        self._is_closing = True
        self._mail.wake()
        await self._ended.wait()
        assert self._end is not None
        if self._end.failure is not None:
            raise error_of(self._end.failure)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        # The caller has an error already, which may be this handle's own; one is enough.
        try:
            await self.close()
        except LedgerError:
            return

    # ------------------------------------------------------------------ payloads

    def _check(self, payload: bytes) -> None:
        if len(payload) > self._payload_bytes_max:
            raise EntryTooLargeError(
                f"ledger {self.id}: a payload of {len(payload)} bytes, at most "
                f"{self._payload_bytes_max} fit into a frame: cut it"
            )

    async def _wait_room(self) -> None:
        while self._queued_bytes >= QUEUE_BYTES_MAX and self._core.failure is None:
            await self._room_made.wait()

    def _put(self, payload: bytes) -> tuple[_Batch, int]:
        failure = self._core.failure
        if failure is None and self._is_closing:
            what = f"ledger {self.id}: this handle is being closed"
            failure = Failure(FailureKind.LEDGER_CLOSED, what)
        if failure is not None:
            raise error_of(failure)
        payload = bytes(payload)
        batch = self._queue[-1] if self._queue else None
        if (
            batch is None
            or batch.size + len(payload) > BATCH_BYTES
            or len(batch.payloads) >= BATCH_ENTRIES
        ):
            batch = _Batch()
            self._queue.append(batch)
        batch.payloads.append(payload)
        batch.size += len(payload)
        self._queued_bytes += len(payload)
        return batch, len(batch.payloads) - 1

    # ------------------------------------------------------------------ the owner

    async def run(self) -> None:
        """Own the core until the ledger's end is settled."""
        while self._end is None:
            answers = await self._mail.wait(self._core.deadline())
            now = trio.current_time()
            if answers:
                self._obey(self._core.on_answers(map(_add_answer, answers), now))
            while self._events:
                self._obey(self._events.popleft()())
            self._obey(self._core.tick(now))
            self._take_payloads(now)
            if self._is_closing and not self._queue and self._core.is_idle:
                self._obey(self._core.close())

    def on_client_closed(self) -> None:
        failure = Failure(FailureKind.CLIENT_CLOSED, f"ledger {self.id}: the client was closed")
        self._fail_all(failure)
        if self._end is None:
            self._finish(CloseEnded(self._core.lac, 0, failure))

    def _take_payloads(self, now: float) -> None:
        """Hand over what is waiting, as far as ledger and connections have room for it."""
        if self._core.failure is not None:
            self._fail_all(self._core.failure)
            return
        while self._queue and not self._core.is_full:
            if not self._environment.pool.has_room(self._core.ensemble):
                self._wait_for_connections()
                return
            batch = self._queue.popleft()
            self._queued_bytes -= batch.size
            self._sent.append(batch)
            self._obey(self._core.add(count=len(batch.payloads), size=batch.size, now=now))
        if self._queued_bytes < QUEUE_BYTES_MAX:
            self._room_made.set()
            self._room_made = trio.Event()

    def _wait_for_connections(self) -> None:
        if self._is_waiting_for_room:
            return
        self._is_waiting_for_room = True

        async def wait() -> None:
            await self._environment.pool.wait_room(self._core.ensemble)
            self._is_waiting_for_room = False
            self._mail.wake()

        self._environment.nursery.start_soon(wait)

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Package():
                    self._package(command)
                case SendAdd():
                    self._send(command)
                case Confirm(through):
                    while self._sent and NO_ENTRY < self._sent[0].last <= through:
                        batch = self._sent.popleft()
                        del self._by_first[batch.first]
                        batch.end()
                case FailAdds(failure):
                    self._fail_all(failure)
                case RefuseAdd(failure):
                    if self._sent and self._sent[-1].last == NO_ENTRY:
                        self._sent.pop().end(failure)
                case SendLac():
                    self._send_lac(command)
                case ChangeEnsemble():
                    self._environment.nursery.start_soon(self._change, command)
                case CloseLedger():
                    self._environment.nursery.start_soon(self._record_end, command)
                case RetryLater(delay_seconds):
                    self._environment.nursery.start_soon(self._retry, delay_seconds)
                case CloseEnded():
                    self._finish(command)
                case _:
                    raise AssertionError(command)

    def _package(self, package: Package) -> None:
        batch = self._sent[-1]
        batch.first, batch.last = package.first, package.last
        batch.records = encode_records(
            batch.payloads,
            ledger_id=self.id,
            first_entry_id=package.first,
            lac=package.lac,
            length=package.length,
            digest=self._access.digest,
        )
        batch.payloads = []
        self._by_first[batch.first] = batch

    def _send(self, send: SendAdd) -> None:
        records = self._by_first[send.first].records
        distribution = self._core.distribution
        entry_ids = distribution.entries_of(slot=send.slot, first=send.first, last=send.last)
        if distribution.is_striped:
            records = records_of(records, send.first, entry_ids)
        request = Adds(
            request_id=send.request_id,
            sink=self._mail.take,
            ledger_id=self.id,
            entry_ids=entry_ids,
            records=records,
            master_key=self._access.master_key,
        )
        self._environment.pool.ask(send.bookie_id, request)

    def _send_lac(self, send: SendLac) -> None:
        body = encode_lac(ledger_id=self.id, lac=send.lac, digest=self._access.digest)
        message = WriteLacRequest(
            ledger_id=self.id, lac=send.lac, master_key=self._access.master_key, body=body
        )
        question = Question(
            request_id=next(self._environment.request_ids), sink=_ignore, message=message
        )
        self._environment.pool.ask(send.bookie_id, question)

    def _fail_all(self, failure: Failure) -> None:
        for batch in (*self._sent, *self._queue):
            batch.end(failure)
        self._sent.clear()
        self._by_first.clear()
        self._queue.clear()
        self._queued_bytes = 0
        self._room_made.set()

    def _finish(self, end: CloseEnded) -> None:
        self._end = end
        self._ended.set()
        self._environment.handles.discard(self)

    # ------------------------------------------------------------------ the record

    def _post(self, event: Callable[[], list[Command]]) -> None:
        self._events.append(event)
        self._mail.wake()

    async def _change(self, command: ChangeEnsemble) -> None:
        await trio.sleep(command.delay_seconds)
        core = self._core
        chosen = self._environment.replacements(core.ensemble, command.failed, command.avoid)
        if not chosen:
            self._post(partial(core.on_change_failed, FailureKind.NOT_ENOUGH_BOOKIES))
            return
        change = update.ChangeEnsemble(
            first_entry_id=command.first_entry_id, failed=command.failed, replacements=chosen
        )
        try:
            await self._update(change)
        except LedgerError as error:
            self._post(partial(core.on_change_failed, kind_of(error)))
            return
        metadata = self._ledger.metadata
        self._post(lambda: core.on_ensemble_changed(metadata, trio.current_time()))

    async def _record_end(self, command: CloseLedger) -> None:
        close = update.Close(last_entry_id=command.last_entry_id, length=command.length)
        try:
            await self._update(close)
        except LedgerError as error:
            self._post(partial(self._core.on_close_failed, kind_of(error)))
            return
        self._post(self._core.on_closed)

    async def _update(self, change: update.LedgerUpdate) -> None:
        updated = await self._environment.ledgers.update(self.id, change, known=self._ledger)
        self._ledger = updated.ledger

    async def _retry(self, delay_seconds: float) -> None:
        await trio.sleep(delay_seconds)
        self._post(self._core.on_retry)


def records_of(records: bytes, first: int, entry_ids: Sequence[int]) -> bytes:
    """Those records of a run of consecutive entries from `first` on that hold `entry_ids`."""
    bounds = split_records(records, 0, len(records))
    return b"".join([records[bounds[e - first] : bounds[e - first + 1]] for e in entry_ids])


def _add_answer(answer: Answer) -> AddAnswer:
    request_id, outcome, entry_ids = answer
    return AddAnswer(request_id, outcome, entry_ids)  # type: ignore[arg-type]


def _ignore(answers: list[Answer]) -> None:
    """An explicit LAC that was lost costs a reader time and nothing else."""


async def _wait(batch: _Batch, index: int, count: int) -> range:
    await batch.done.wait()
    if batch.failure is not None:
        raise error_of(batch.failure)
    return range(batch.first + index, batch.first + index + count)


def _joined(ranges: list[range]) -> Sequence[int]:
    if not ranges:
        return range(0)
    whole = range(ranges[0].start, ranges[-1].stop)
    if len(whole) == sum(map(len, ranges)):
        return whole
    return [entry_id for part in ranges for entry_id in part]
