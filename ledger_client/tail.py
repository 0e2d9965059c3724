"""The tail of a ledger that is still being written: its entries as they are confirmed.

News comes from the bookies, by long polls that usually bring the next entry along, and from the
record: another ensemble, or the end. Nothing here disturbs the writer.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

import trio

from ledger_client.entries import EntryIterator, EntryReader, LedgerEntry
from ledger_client.environment import Environment
from ledger_client.errors import UnreadableEntryError
from ledger_client.reader import LedgerReader
from ledger_client.requests import Mailbox
from metadata.ledgers import LedgerWatch
from metadata.update import LedgerGoneError, VersionedLedger
from wire.types import LedgerId

_PAUSE_SECONDS: Final = 0.2


class LedgerTail(EntryIterator):
    """All entries of a ledger from some entry on, until it is closed. Does not fence it.

    An asynchronous iterator and context manager; made by `LedgerClient.tail`.
    """

    def __init__(self, environment: Environment, reader: LedgerReader, first: int) -> None:
        super().__init__()
        self._environment = environment
        self._reader = reader
        self._next = first
        self._entries: EntryReader | None = None
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
                error = LedgerGoneError(f"ledger {self.id} was deleted while it was followed")
                error.ledger_id = self.id
                raise error
            else:
                entry = await self._wait()
                if entry is not None and entry.id == self._next:
                    self._next += 1
                    return [entry]

    async def _wait(self) -> LedgerEntry | None:
        try:
            return await self._reader.wait_confirmed(self._reader.last_confirmed, self._mail)
        except UnreadableEntryError:
            # Its bookies are away, perhaps just now replaced: the record will say.
            await trio.sleep(_PAUSE_SECONDS)
            return None

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
