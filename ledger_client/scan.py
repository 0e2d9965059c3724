"""Long scans: ranges of many ledgers, one after the other, in runs of entries.

What a plain read takes for an end, a scan may be told to survive: an entry that no bookie has, or
whose every copy is rotten, becomes a run of its own that says so. It is never passed over in
silence. Bookies that are away are asked again in rounds, from another replica each time.

Small ledgers come in crowds, so the first requests for the next ones leave while the present one
is being read, as long as everything fits into one window of bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import trio

from ledger_client.core.commands import Outcome, Part, ReadAnswer
from ledger_client.core.reader import ReadOptions
from ledger_client.core.replicas import Sticky
from ledger_client.core.scan import Pace, RunSticky
from ledger_client.entries import EntryReader
from ledger_client.environment import Access, ReadEnvironment
from ledger_client.errors import CorruptEntryError, UnreadableEntryError
from ledger_client.requests import Answer, FoundEntries
from metadata.model import LedgerMetadata
from metadata.update import LedgerGoneError
from wire.entry import ENTRY_HEADER_BYTES
from wire.entry_run import EntryRun, check_entries, compare_ids, lacs_of
from wire.errors import LedgerError, NoSuchEntryError

#: Ledgers whose first entries may be on their way before their turn.
AHEAD_MAX: Final = 32
#: Entries that one run reports missing.
LOST_RUN: Final = 4096
_FIRST_PAUSE_SECONDS: Final = 0.2
_PAUSE_SECONDS_MAX: Final = 5.0


class Status(StrEnum):
    OK = "ok"
    MISSING = "missing"  # every replica says that it never had it
    DIGEST = "digest"  # every copy that was found fails its digest


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring entries of one ledger that share a status."""

    first: int
    count: int
    entries: EntryRun | None  # none unless OK
    lacs: list[int] | None = None  # as written in each entry, where asked for
    status: Status = Status.OK

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def bytes(self) -> int:
        return 0 if self.entries is None else self.entries.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    chunk_bytes: int = 1024 * 1024
    #: Asked for or waiting, over all ledgers of the scan.
    window_bytes: int = 8 * 1024 * 1024
    verify_digest: bool = True
    with_lacs: bool = False
    #: Report what is missing, or rotten, instead of failing.
    keep_missing: bool = False
    keep_rotten: bool = False
    is_scan: bool = True
    request_seconds: float = 30.0
    #: How often to begin again when no replica could be read.
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Range:
    """Entries `first..last` of a ledger, with what it takes to read them."""

    metadata: LedgerMetadata
    access: Access
    first: int
    last: int
    slot: int = 0  # to begin with, where every bookie holds every entry
    entry_bytes: float = 0.0  # on average; 0: not known

    @property
    def bytes(self) -> int:
        return int((self.last - self.first + 1) * self.entry_bytes)


Refresh = Callable[[LedgerMetadata], Awaitable[LedgerMetadata]]


async def scan(
    environment: ReadEnvironment,
    ranges: Iterator[Range],
    *,
    refresh: Refresh,
    options: ScanOptions,
    pace: Pace | None = None,
) -> AsyncGenerator[tuple[Range, Run], None]:
    """The entries of these ranges, in order. Close it (`aclosing`) if it is left early."""
    ahead: deque[_RangeScan] = deque()
    try:
        while True:
            _look_ahead(environment, ranges, ahead, refresh, options)
            if not ahead:
                return
            front = ahead[0]
            async with aclosing(front.runs()) as runs:
                async for run in runs:
                    yield front.range, run
                    if pace is not None:
                        await trio.sleep(pace.taken(run.bytes, trio.current_time()))
            ahead.popleft()
    finally:
        for waiting in ahead:
            waiting.forget()


def _look_ahead(
    environment: ReadEnvironment,
    ranges: Iterator[Range],
    ahead: deque[_RangeScan],
    refresh: Refresh,
    options: ScanOptions,
) -> None:
    """Begin as many ranges as fit into the window as a whole; the first one always."""
    held = sum(waiting.held_bytes for waiting in ahead)
    while len(ahead) < AHEAD_MAX and held < options.window_bytes:
        following = next(ranges, None)
        if following is None:
            return
        begun = _RangeScan(environment, following, refresh, options)
        held += begun.held_bytes
        ahead.append(begun)
        if len(ahead) == 1 or (held <= options.window_bytes and following.entry_bytes > 0):
            begun.begin()
        else:
            return


class _RangeScan:
    """One range, over as many readers as it takes."""

    def __init__(
        self,
        environment: ReadEnvironment,
        given: Range,
        refresh: Refresh,
        options: ScanOptions,
    ) -> None:
        self.range = given
        self._environment = environment
        self._refresh = refresh
        self._options = options
        self._metadata = given.metadata
        self._next = given.first
        self._upto = given.last  # less while something before a bad entry is still to be read
        self._rounds = 0
        self._is_careful = False  # behind a bad entry the next one may be bad, too
        size = given.metadata.ensemble_size
        self._sticky = RunSticky(given.slot, size)
        self._reader: _Reader | None = None

    @property
    def held_bytes(self) -> int:
        """What it may hold: everything if it is small, else its window."""
        return min(self.range.bytes, self._options.window_bytes)

    def begin(self) -> None:
        if self._reader is None:
            self._reader = self._read()
        self._reader.begin()

    def forget(self) -> None:
        self._reader = None

    async def runs(self) -> AsyncGenerator[Run, None]:
        while self._next <= self.range.last:
            self.begin()
            assert self._reader is not None
            failure: LedgerError | None = None
            try:
                while parts := await self._reader.next_parts():
                    run = _run_of(parts, with_lacs=self._options.with_lacs)
                    assert run.first == self._next, "entries are delivered in order"
                    self._next = run.last + 1
                    self._rounds = 0
                    yield run
                self._upto = self.range.last
            except LedgerError as error:
                failure = error
            self._reader = None
            if isinstance(failure, UnreadableEntryError) and self._rounds < self._options.rounds:
                self._rounds += 1
                await self._pause()
            elif failure is not None:
                for run in self._lost(failure):
                    yield run

    def _lost(self, failure: LedgerError) -> Iterator[Run]:
        """What the caller is told instead of the failure, if it wants to be told."""
        options, entry_id = self._options, failure.entry_id
        if isinstance(failure, LedgerGoneError) and options.keep_missing:
            return self._give_up()
        if entry_id is not None:
            if isinstance(failure, NoSuchEntryError) and options.keep_missing:
                return self._pass_over(entry_id, Status.MISSING)
            if isinstance(failure, CorruptEntryError) and options.keep_rotten:
                return self._pass_over(entry_id, Status.DIGEST)
        raise failure

    def _pass_over(self, entry_id: int, status: Status) -> Iterator[Run]:
        """Read what lies before the entry, then report it and go on behind it."""
        self._is_careful = True
        if entry_id > self._next:
            self._upto = entry_id - 1
            return
        self._next = entry_id + 1
        self._upto = self.range.last
        yield Run(entry_id, 1, None, status=status)

    def _give_up(self) -> Iterator[Run]:
        """The whole ledger is gone: so is everything that was not read yet."""
        while self._next <= self.range.last:
            count = min(LOST_RUN, self.range.last - self._next + 1)
            yield Run(self._next, count, None, status=Status.MISSING)
            self._next += count

    async def _pause(self) -> None:
        self._sticky.on_error(self._sticky.slot)
        seconds = min(_FIRST_PAUSE_SECONDS * 2 ** (self._rounds - 1), _PAUSE_SECONDS_MAX)
        # Many tasks lose the same bookie at once: they must not all come back at once.
        await trio.sleep(seconds * self._environment.chance.uniform(0.5, 1.5))

    def _read(self) -> _Reader:
        options = self._options
        careful, self._is_careful = self._is_careful, False
        return _Reader(
            self._environment,
            self.range.access,
            self._metadata,
            first=self._next,
            last=self._upto,
            refresh=self._reread,
            options=ReadOptions(
                entries_max=4096,
                bytes_max=options.chunk_bytes,
                ahead_bytes=options.chunk_bytes if careful else options.window_bytes,
                is_scan=options.is_scan,
                request_seconds=options.request_seconds,
            ),
            scan=options,
            sticky=self._sticky,
            entry_bytes=self.range.entry_bytes,
        )

    async def _reread(self) -> LedgerMetadata:
        self._metadata = await self._refresh(self._metadata)
        return self._metadata


@dataclass(frozen=True, slots=True)
class _Found:
    """The entries of one answer that are good, with the LAC that each of them carries."""

    entries: EntryRun
    lacs: list[int] | None


class _Reader(EntryReader):
    """A reader that leaves entries inside their answers, and may look into headers, or not at
    digests.
    """

    def __init__(
        self,
        environment: ReadEnvironment,
        access: Access,
        metadata: LedgerMetadata,
        *,
        first: int,
        last: int,
        refresh: Callable[[], Awaitable[LedgerMetadata]],
        options: ReadOptions,
        scan: ScanOptions,
        sticky: Sticky,
        entry_bytes: float,
    ) -> None:
        super().__init__(
            environment,
            access,
            metadata,
            first=first,
            last=last,
            reread=refresh,
            options=options,
            sticky=sticky,
            entry_bytes=entry_bytes,
        )
        self._scan = scan

    def _verified(self, answer: Answer) -> ReadAnswer:
        found = answer.content
        if not isinstance(found, FoundEntries) or not found.entries:
            return super()._verified(answer)
        ask = self._asked.pop(answer.request_id)
        count = min(found.entries, ask.count)
        bounds, entry_ids = found.bounds[: count + 1], ask.entry_ids[:count]
        digest, ledger_id = self._access.digest, self._access.ledger_id
        check = check_entries if self._scan.verify_digest else compare_ids
        good, error = check(
            found.data, bounds, found.skip, ledger_id=ledger_id, entry_ids=entry_ids, digest=digest
        )
        offset = found.skip + ENTRY_HEADER_BYTES + digest.size
        entries = EntryRun(found.data, bounds[: good + 1], offset)
        lacs = None
        if self._scan.with_lacs:
            lacs = lacs_of(found.data, bounds, found.skip, good)
        return ReadAnswer(
            request_id=answer.request_id,
            outcome=Outcome.CORRUPT if error is not None else answer.outcome,
            good=good,
            size=entries.bytes,
            data=_Found(entries, lacs),
        )


def _run_of(parts: tuple[Part, ...], *, with_lacs: bool) -> Run:
    """What one delivery brought, in order of the entries; stripes are merged."""
    first = min(part.first for part in parts)
    count = sum(part.count for part in parts)
    if len(parts) == 1:
        found = _found_in(parts[0])
        lacs = None if found.lacs is None else found.lacs[:count]
        return Run(first, count, found.entries[:count], lacs)
    payloads = [memoryview(b"")] * count
    lacs = [0] * count if with_lacs else None
    for part in parts:
        found = _found_in(part)
        begin = part.first - first
        where = slice(begin, begin + (part.count - 1) * part.stride + 1, part.stride)
        payloads[where] = found.entries[: part.count].views
        if lacs is not None:
            assert found.lacs is not None
            lacs[where] = found.lacs[: part.count]
    return Run(first, count, EntryRun.joined(payloads), lacs)


def _found_in(part: Part) -> _Found:
    assert isinstance(part.data, _Found)
    return part.data
