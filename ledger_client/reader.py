"""Handles for reading: a ledger as it stands, and the tail of one that is being written."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

import trio

from ledger_client.core.lac import ReaderLac
from ledger_client.core.reader import ReadOptions, range_failure
from ledger_client.core.replicas import Sticky
from ledger_client.entries import EntryReader, LedgerEntry
from ledger_client.environment import Access, Environment
from ledger_client.errors import UnreadableEntryError, error_of
from ledger_client.lac import poll_lac, read_lac
from ledger_client.requests import Mailbox
from metadata.ledgers import LedgerWatch
from metadata.model import LedgerMetadata
from metadata.update import LedgerGoneError, VersionedLedger
from wire.types import LedgerId

_PAUSE_SECONDS = 0.2


class LedgerReader:
    """A ledger to read from. Made by `LedgerClient.open` and `open_no_recovery`."""

    def __init__(
        self,
        environment: Environment,
        ledger: VersionedLedger,
        access: Access,
        options: ReadOptions | None = None,
    ) -> None:
        self.id: LedgerId = access.ledger_id
        self._environment = environment
        self._ledger = ledger
        self._access = access
        self._options = options
        self._lac = ReaderLac(ledger.metadata)
        size = ledger.metadata.ensemble_size
        self._sticky = Sticky(environment.chance.randrange(size), size)

    @property
    def metadata(self) -> LedgerMetadata:
        return self._ledger.metadata

    @property
    def is_closed(self) -> bool:
        """Whether the end of the ledger is settled."""
        return self._lac.is_closed

    @property
    def last_confirmed(self) -> int:
        """The last entry that may be read, as far as this handle knows; -1 if there is none."""
        return self._lac.lac

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger; 0 while it is open."""
        return self.metadata.length

    def read(self, first: int, last: int) -> EntryReader:
        """Entries `first..last`, both included, as an asynchronous iterator.

        Only what is confirmed: anything above `last_confirmed` is an InvalidEntryIdError. A range
        that ends just before it begins is empty, so `read(0, last_confirmed)` always works.
        """
        return self._read(first, last, unconfirmed=False)

    def read_unconfirmed(self, first: int, last: int) -> EntryReader:
        """The same beyond what is confirmed. Such entries may be gone after a recovery."""
        return self._read(first, last, unconfirmed=True)

    def _read(self, first: int, last: int, *, unconfirmed: bool) -> EntryReader:
        if last != first - 1 or first < 0:
            failure = range_failure(
                self.metadata,
                first=first,
                last=last,
                lac=self.last_confirmed,
                unconfirmed=unconfirmed,
            )
            if failure is not None:
                raise error_of(failure)
        return EntryReader(
            self._environment,
            self._access,
            self.metadata,
            first=first,
            last=last,
            reread=self.reread,
            options=self._options,
            sticky=self._sticky,
        )

    async def read_last_confirmed(self) -> int:
        """Ask the bookies how far the ledger is confirmed now."""
        if not self.is_closed:
            mail = Mailbox()
            waiting = _Waiting(self._environment, mail)
            try:
                lac = await read_lac(self._environment, self._access, self.metadata, mail)
            finally:
                waiting.end()
            self._lac.on_lac(lac)
        return self.last_confirmed

    async def reread(self) -> LedgerMetadata:
        """Read the record again: bookies may have been replaced, or the ledger closed."""
        self.take(await self._environment.ledgers.read(self.id))
        return self.metadata

    def take(self, ledger: VersionedLedger) -> None:
        """A record that somebody saw; older ones change nothing."""
        if ledger.version > self._ledger.version:
            self._ledger = ledger
            self._lac.on_metadata(ledger.metadata)

    async def wait_confirmed(self, above: int, mail: Mailbox) -> None:
        """Wait for a LAC above this one, for a while; waking the mailbox ends it early."""
        waiting = _Waiting(self._environment, mail)
        try:
            lac = await poll_lac(self._environment, self._access, self.metadata, above, mail)
        finally:
            waiting.end()
        if lac is not None:
            self._lac.on_lac(lac)

    async def close(self) -> None:
        """Nothing is held, so nothing is to be done; readers need not be closed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class _Waiting:
    """Ends a wait when the client is closed."""

    def __init__(self, environment: Environment, mail: Mailbox) -> None:
        self._environment = environment
        self._mail = mail
        environment.handles.add(self)

    def on_client_closed(self) -> None:
        self._mail.close()

    def end(self) -> None:
        self._environment.handles.discard(self)


class LedgerTail:
    """All entries of a ledger from some entry on, until it is closed. Does not fence it.

    An asynchronous iterator and context manager; made by `LedgerClient.tail`.
    """

    def __init__(self, environment: Environment, reader: LedgerReader, first: int) -> None:
        self._environment = environment
        self._reader = reader
        self._next = first
        self._entries: EntryReader | None = None
        self._batch: deque[LedgerEntry] = deque()
        self._mail = Mailbox()
        self._scope = trio.CancelScope()
        self._is_gone = False

    @property
    def id(self) -> LedgerId:
        return self._reader.id

    @property
    def last_confirmed(self) -> int:
        return self._reader.last_confirmed

    def start(self, ledger: VersionedLedger) -> None:
        """Follow the record: news about bookies and about the end come from there."""
        self._environment.nursery.start_soon(self._follow, ledger)

    async def _follow(self, ledger: VersionedLedger) -> None:
        watch = LedgerWatch(self._environment.ledgers, ledger)
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run)
                while not self._reader.is_closed and not self._is_gone:
                    try:
                        ledger = await watch.wait_newer(ledger)
                    except LedgerGoneError:
                        self._is_gone = True
                    else:
                        self._reader.take(ledger)
                    self._mail.wake()
                nursery.cancel_scope.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LedgerEntry:
        if not self._batch:
            self._batch.extend(await self.next_batch())
            if not self._batch:
                raise StopAsyncIteration
        return self._batch.popleft()

    async def next_batch(self) -> list[LedgerEntry]:
        """The next entries as soon as there are any; none when the ledger has ended."""
        while True:
            if self._entries is not None:
                batch = await self._entries.next_batch()
                if batch:
                    self._next = batch[-1].id + 1
                    return batch
                self._entries = None
            if self._next <= self._reader.last_confirmed:
                self._entries = self._reader.read(self._next, self._reader.last_confirmed)
            elif self._reader.is_closed:
                return []
            elif self._is_gone:
                raise LedgerGoneError(f"ledger {self.id} was deleted while it was followed")
            else:
                await self._wait()

    async def _wait(self) -> None:
        try:
            await self._reader.wait_confirmed(self._reader.last_confirmed, self._mail)
        except UnreadableEntryError:
            # Its bookies are away, perhaps just now replaced: the record will say.
            await trio.sleep(_PAUSE_SECONDS)

    async def close(self) -> None:
        self._scope.cancel()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scope.cancel()
