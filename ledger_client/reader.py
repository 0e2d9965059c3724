"""A handle for reading: a ledger as it stands."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ledger_client.core.lac import ReaderLac
from ledger_client.core.reader import ReadOptions, range_failure
from ledger_client.core.replicas import Sticky
from ledger_client.entries import EntryReader, LedgerEntry
from ledger_client.environment import Access, Environment
from ledger_client.errors import error_of, reaching_metadata
from ledger_client.lac import poll_lac, read_lac
from ledger_client.requests import Mailbox
from metadata.model import LedgerMetadata
from metadata.update import VersionedLedger
from wire.types import LedgerId


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
            on_lac=self._lac.on_lac,
        )

    async def read_last_confirmed(self) -> int:
        """Ask the bookies how far the ledger is confirmed now."""
        if not self.is_closed:
            mail = Mailbox()
            with self._environment.waking(mail):
                lac = await read_lac(self._environment, self._access, self.metadata, mail)
            self._lac.on_lac(lac)
        return self.last_confirmed

    async def reread(self) -> LedgerMetadata:
        """Read the record again: bookies may have been replaced, or the ledger closed."""
        with reaching_metadata(f"ledger {self.id} cannot be looked up"):
            self.take(await self._environment.ledgers.read(self.id))
        return self.metadata

    def take(self, ledger: VersionedLedger) -> None:
        """A record that somebody saw; older ones change nothing."""
        if ledger.version > self._ledger.version:
            self._ledger = ledger
            self._lac.on_metadata(ledger.metadata)

    async def wait_confirmed(self, above: int, mail: Mailbox) -> LedgerEntry | None:
        """Wait for a LAC above this one, for a while; waking the mailbox ends it early.

        The bookie with the news may bring the entry behind `above` along; it is returned then.
        """
        with self._environment.waking(mail):
            news = await poll_lac(self._environment, self._access, self.metadata, above, mail)
        if news is None:
            return None
        self._lac.on_lac(news.lac)
        if news.entry is None or news.entry.entry_id > self.last_confirmed:
            return None
        return LedgerEntry(news.entry.entry_id, bytes(news.entry.payload))

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
