"""Reading a range: entries in order, fetched ahead as far as the byte bound allows.

There is no task behind it. Answers gather in a mailbox while the caller works on the entries it
has; when it asks for more, its own task drives the core. So an iteration may be cancelled anywhere
and gone on with, or simply forgotten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self

import trio

from ledger_client.core.commands import (
    AskRead,
    Command,
    Deliver,
    Failure,
    MarkSlow,
    Outcome,
    Part,
    ReadAnswer,
    ReadEnded,
    ReadMetadata,
    ReportCorruption,
)
from ledger_client.core.reader import RangeRead, ReadOptions
from ledger_client.core.replicas import Sticky
from ledger_client.environment import Access, ReadEnvironment
from ledger_client.errors import ClientClosedError, error_of
from ledger_client.health import CorruptCopy
from ledger_client.requests import Answer, FoundEntries, Mailbox, Reads
from metadata.model import LedgerMetadata
from metadata.update import LedgerGoneError
from wire.entry import Entries, decode_entries
from wire.errors import LedgerError

Reread = Callable[[], Awaitable[LedgerMetadata]]
OnLac = Callable[[int], object]

#: Corrupt copies that an error names, at most.
_NOTES_MAX = 10


class LedgerEntry(NamedTuple):
    """One entry, its digest checked."""

    id: int
    payload: bytes


class EntryIterator(ABC):
    """What comes in batches, one by one: `async for entry in ...`."""

    def __init__(self) -> None:
        self._batch: deque[LedgerEntry] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LedgerEntry:
        if not self._batch:
            self._batch.extend(await self.next_batch())
            if not self._batch:
                raise StopAsyncIteration
        return self._batch.popleft()

    @abstractmethod
    async def next_batch(self) -> list[LedgerEntry]:
        """The next entries, however many are there; none at the end."""


class EntryReader(EntryIterator):
    """Entries `first..last` of a ledger, one by one or by what one answer brought."""

    def __init__(
        self,
        environment: ReadEnvironment,
        access: Access,
        metadata: LedgerMetadata,
        *,
        first: int,
        last: int,
        reread: Reread,
        options: ReadOptions | None = None,
        sticky: Sticky | None = None,
        on_lac: OnLac | None = None,
        entry_bytes: float = 0.0,
    ) -> None:
        super().__init__()
        self._environment = environment
        self._access = access
        self._reread = reread
        self._core = RangeRead(
            metadata,
            first=first,
            last=last,
            options=options,
            request_ids=environment.request_ids,
            order=environment.read_order,
            sticky=sticky,
            entry_bytes=entry_bytes,
        )
        self._mail = Mailbox()
        self._asked: dict[int, AskRead] = {}
        self._ready: deque[tuple[Part, ...]] = deque()
        self._taken_bytes = 0
        self._is_started = False
        self._is_over = first > last
        self._failure: Failure | None = None
        self._wants_metadata = False
        self._on_lac = on_lac
        self._corrupt_copies: list[CorruptCopy] = []
        environment.handles.add(self)

    async def next_batch(self) -> list[LedgerEntry]:
        """The next entries, however many are there; none at the end."""
        parts = await self.next_parts()
        if len(parts) == 1:  # the usual case: one bookie has them all
            part = parts[0]
            return list(map(LedgerEntry, part.entry_ids, _entries_of(part).payloads))
        found: dict[int, bytes] = {}
        for part in parts:
            found.update(zip(part.entry_ids, _entries_of(part).payloads, strict=False))
        return [LedgerEntry(entry_id, found[entry_id]) for entry_id in sorted(found)]

    def begin(self) -> None:
        """Ask for the first entries now; otherwise whoever wants them first does."""
        if not self._is_started and not self._is_over:
            self._is_started = True
            self._obey(self._core.start(trio.current_time()))

    async def next_parts(self) -> tuple[Part, ...]:
        """The same as it came; `data` of a part is a `wire.entry.Entries`."""
        self.begin()
        now = trio.current_time()
        if self._taken_bytes:
            taken, self._taken_bytes = self._taken_bytes, 0
            self._obey(self._core.on_consumed(taken, now))
        while not self._ready and not self._is_over:
            await self._go_on()
        if self._ready:
            parts = self._ready.popleft()
            self._taken_bytes = sum(part.size for part in parts)
            return parts
        self._environment.handles.discard(self)
        if self._failure is not None:
            error = error_of(self._failure)
            for copy in self._corrupt_copies:
                error.add_note(str(copy))
            raise error
        return ()

    def on_client_closed(self) -> None:
        self._mail.close()

    # ------------------------------------------------------------------ driving the core

    async def _go_on(self) -> None:
        if self._wants_metadata:
            await self._read_metadata()
            return
        answers = await self._mail.wait(self._core.deadline())
        if self._mail.is_closed:
            raise ClientClosedError(
                f"ledger {self._access.ledger_id}: the client was closed during a read"
            )
        now = trio.current_time()
        if answers:
            self._obey(self._core.on_answers(map(self._verified, answers), now))
            if self._on_lac is not None:
                self._on_lac(self._core.lac)
        self._obey(self._core.tick(now))

    async def _read_metadata(self) -> None:
        try:
            metadata = await self._reread()
        except LedgerError as error:
            self._wants_metadata = False
            is_gone = isinstance(error, LedgerGoneError)
            self._obey(self._core.on_metadata_failed(is_gone=is_gone))
            return
        self._wants_metadata = False
        self._obey(self._core.on_metadata(metadata, trio.current_time()))

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case AskRead():
                    self._ask(command)
                case Deliver(_, _, parts):
                    self._ready.append(parts)
                case ReadMetadata():
                    self._wants_metadata = True
                case ReadEnded(failure):
                    self._is_over = True
                    self._failure = failure and self._environment.explained(failure)
                case MarkSlow(bookie_id):
                    self._environment.on_slow(bookie_id)
                case ReportCorruption(entry_id, bookie_id):
                    copy = CorruptCopy(self._access.ledger_id, entry_id, bookie_id)
                    self._environment.on_corruption(copy)
                    if len(self._corrupt_copies) < _NOTES_MAX:
                        self._corrupt_copies.append(copy)
                case _:
                    raise AssertionError(command)

    def _ask(self, ask: AskRead) -> None:
        self._asked[ask.request_id] = ask
        request = Reads(
            request_id=ask.request_id,
            sink=self._mail.take,
            ledger_id=self._access.ledger_id,
            entry_ids=ask.entry_ids,
            bytes_max=ask.bytes_max,
            seconds=self._core.options.request_seconds,
            is_scan=self._core.options.is_scan,
        )
        self._environment.pool.ask(ask.bookie_id, request)

    def _verified(self, answer: Answer) -> ReadAnswer:
        """Digests are checked here, by whoever wants the entries; no connection waits for it."""
        request_id, outcome, found = answer
        ask = self._asked.pop(request_id)
        if not isinstance(found, FoundEntries) or not found.entries:
            return ReadAnswer(request_id=request_id, outcome=outcome)
        count = min(found.entries, ask.count)
        entries = decode_entries(
            found.data,
            found.bounds[: count + 1],
            found.skip,
            ledger_id=self._access.ledger_id,
            entry_ids=ask.entry_ids[:count],
            digest=self._access.digest,
        )
        return ReadAnswer(
            request_id=request_id,
            outcome=Outcome.CORRUPT if entries.error is not None else outcome,
            good=len(entries.payloads),
            size=sum(map(len, entries.payloads)),
            lac=entries.lac,
            data=entries,
        )


def _entries_of(part: Part) -> Entries:
    assert isinstance(part.data, Entries)
    return part.data
