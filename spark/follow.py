"""The driver's view of a stream: how far each ledger can be read, kept fresh in a thread.

Spark asks for the latest offset dozens of times per second, so the answer is only looked up here.
Closed ledgers are read from their records, many at a time; the first that is open is followed by
long polls to its bookies, and its record is read again from time to time, as only that tells
its end. Nothing is fenced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

import trio

from ledger_client import LedgerClient, LedgerMetadata, LedgerReader
from ledger_client import sync as blocking
from ledger_client.requests import Mailbox
from ledger_client.security import read_security
from metadata.store import StoreUnavailableError
from metadata.update import LedgerGoneError
from spark.core.offsets import LedgerEnd, LedgerSequence
from spark.core.position import Position
from spark.credentials import resolve
from spark.errors import Code, SourceError, coded
from spark.options import SourceOptions
from spark.parallel import PARALLEL_MAX, map_parallel
from wire.entry import Entries
from wire.errors import LedgerError, TransientError

T = TypeVar("T")

#: How soon a closed ledger, or one that is there at last, is noticed.
_LOOK_SECONDS: Final = 0.5
#: The average size of entries is looked at again when a ledger has grown by this.
_GROWTH: Final = 1.5


class Peer(Enum):
    """Whom the view depends on. One being well says nothing about the other."""

    METADATA = "metadata"
    BOOKIES = "bookies"


@dataclass(frozen=True, slots=True)
class Trouble:
    since: float
    error: LedgerError  # the last of it


class Follower:
    """Use `start` once, then `ends`; `close` when the query ends."""

    def __init__(self, options: SourceOptions, sequence: LedgerSequence) -> None:
        self._options = options
        self._sequence = sequence
        self._passwords = resolve(options.credentials)
        security = read_security(options.client_conf)
        self._client = blocking.LedgerClient(options.metadata_service_uri, **security)
        self._changed = threading.Condition()
        self._ends: dict[int, LedgerEnd] = {}
        self._has_caught_up = False
        self._failure: LedgerError | None = None
        self._troubles: dict[Peer, Trouble] = {}
        self._is_started = False
        self._client.__enter__()

    # ------------------------------------------------------------------ for the reader

    def latest(self) -> Position:
        """Behind the last entry of the last ledger that exists, asked for now."""
        return self._client.submit(self._latest).result()

    def ask(self, job: Callable[[LedgerClient, Mapping[int, LedgerEnd]], Awaitable[T]]) -> T:
        """Run something on the client of the follower, with what is known of ends so far."""
        with self._changed:
            known = dict(self._ends)
        return self._client.submit(lambda client: job(client, known)).result()

    def start(self, at: Position) -> None:
        """Follow from this ledger on. The ones before it may be gone and are not looked at."""
        if not self._is_started:
            self._is_started = True
            index = self._sequence.index_of(at)
            self._client.submit(lambda client: self._follow(client, index))

    def ends(self) -> Mapping[int, LedgerEnd] | None:
        """What is known, once everything closed has been seen; None while nothing can be said.

        While the metadata store is away there is nothing new; when it stays away for longer than
        `metadataGrace`, that is an error.
        """
        grace = self._options.metadata_grace_seconds
        with self._changed:
            self._changed.wait_for(self._can_say, timeout=grace)
            if self._failure is not None:
                raise coded(self._failure)
            for trouble in self._troubles.values():
                if time.monotonic() - trouble.since > grace:
                    raise coded(trouble.error)
            if self._troubles:
                return None
            return dict(self._ends) if self._has_caught_up else None

    def _can_say(self) -> bool:
        return self._has_caught_up or bool(self._failure or self._troubles)

    def close(self) -> None:
        with suppress(LedgerError):
            self._client.__exit__(None, None, None)

    # ------------------------------------------------------------------ what was seen

    def _publish(self, ledger_id: int, end: LedgerEnd) -> None:
        with self._changed:
            known = self._ends.get(ledger_id)
            if known is not None and not end.is_closed and known.last > end.last:
                return  # other bookies may know less; what was confirmed stays confirmed
            self._ends[ledger_id] = end
            self._changed.notify_all()

    def _is_well(self, *peers: Peer, caught_up: bool = False) -> None:
        with self._changed:
            for peer in peers:
                self._troubles.pop(peer, None)
            self._has_caught_up = self._has_caught_up or caught_up
            self._changed.notify_all()

    def _is_in_trouble(self, error: LedgerError) -> None:
        is_metadata = isinstance(error, StoreUnavailableError)
        peer = Peer.METADATA if is_metadata else Peer.BOOKIES
        with self._changed:
            known = self._troubles.get(peer)
            since = time.monotonic() if known is None else known.since
            self._troubles[peer] = Trouble(since, error)
            self._changed.notify_all()

    def _fail(self, error: LedgerError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    # ------------------------------------------------------------------ in the thread

    async def _latest(self, client: LedgerClient) -> Position:
        for ledger_id in reversed(self._sequence.ledgers):
            if await _record(client, ledger_id) is None:
                continue
            async with await self._open(client, ledger_id) as reader:
                end = LedgerEnd(reader.last_confirmed, reader.is_closed, reader.length)
                self._publish(ledger_id, end)
                return Position(ledger_id, end.last + 1)
        raise _not_found(self._sequence.ledgers[0])

    async def _follow(self, client: LedgerClient, index: int) -> None:
        while index < len(self._sequence.ledgers):
            try:
                index = await self._walk(client, index)
            except (TransientError, StoreUnavailableError) as error:
                self._is_in_trouble(error)
                await trio.sleep(_LOOK_SECONDS)
            except LedgerError as error:
                self._fail(error)
                return
        self._is_well(*Peer, caught_up=True)

    async def _walk(self, client: LedgerClient, index: int) -> int:
        """Take note of closed ledgers up to the first that is not, and follow that one."""
        some = self._sequence.ledgers[index : index + PARALLEL_MAX]

        async def record(ledger_id: int) -> LedgerMetadata | None:
            return await _record(client, ledger_id)

        records = await map_parallel(record, some)
        for offset, metadata in enumerate(records):
            ledger_id = self._sequence.ledgers[index + offset]
            if metadata is None:
                if not await self._is_any_after(client, index + offset):
                    self._is_well(*Peer, caught_up=True)
                    await trio.sleep(_LOOK_SECONDS)
                    return index + offset
                self._on_gone(ledger_id)
            elif not metadata.is_closed:
                await self._follow_open(client, ledger_id)
                return index + offset  # closed by now, or gone
            else:
                assert metadata.last_entry_id is not None
                self._publish(ledger_id, LedgerEnd(metadata.last_entry_id, True, metadata.length))
        return index + len(some)

    async def _is_any_after(self, client: LedgerClient, index: int) -> bool:
        """Whether a later ledger exists: then this one is not to be waited for."""
        rest = self._sequence.ledgers[index + 1 :]

        async def exists(ledger_id: int) -> bool:
            return await client.exists(ledger_id)

        for start in range(0, len(rest), PARALLEL_MAX):
            if any(await map_parallel(exists, rest[start : start + PARALLEL_MAX])):
                return True
        return False

    def _on_gone(self, ledger_id: int) -> None:
        if self._options.fail_on_data_loss:
            raise _not_found(ledger_id)
        self._publish(ledger_id, LedgerEnd(-1, True, is_gone=True))

    async def _follow_open(self, client: LedgerClient, ledger_id: int) -> None:
        """Until it is closed."""
        try:
            reader = await self._open(client, ledger_id)
        except LedgerGoneError:
            return
        mail = Mailbox()
        failure: LedgerError | None = None
        length, counted = 0.0, 0  # of an entry on average, and how many there were then
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reread, reader, mail)
            while not reader.is_closed:
                try:
                    if reader.last_confirmed + 1 > counted * _GROWTH:
                        length = await _average(reader)
                        counted = reader.last_confirmed + 1
                    last = reader.last_confirmed
                    self._publish(ledger_id, LedgerEnd(last, False, int(length * (last + 1))))
                    self._is_well(Peer.BOOKIES, caught_up=True)
                    await reader.wait_confirmed(last, mail)
                except LedgerGoneError:
                    break
                except (TransientError, StoreUnavailableError) as error:
                    self._is_in_trouble(error)
                    await trio.sleep(_LOOK_SECONDS)
                except LedgerError as error:
                    failure = error  # raised below: the nursery would wrap it in a group
                    break
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _reread(self, reader: LedgerReader, mail: Mailbox) -> None:
        """Look at the record every so often: bookies know nothing of the end of a ledger."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            try:
                await reader.reread()
            except LedgerGoneError:
                mail.wake()
                return
            except LedgerError as error:
                self._is_in_trouble(error)
            else:
                self._is_well(Peer.METADATA)
                if reader.is_closed:
                    mail.wake()

    async def _open(self, client: LedgerClient, ledger_id: int) -> LedgerReader:
        return await client.open_no_recovery(ledger_id, password=self._passwords.of(ledger_id))


async def _record(client: LedgerClient, ledger_id: int) -> LedgerMetadata | None:
    try:
        return await client.metadata(ledger_id)
    except LedgerGoneError:
        return None


async def _average(reader: LedgerReader) -> float:
    """Bytes of an entry: each carries the length of its ledger up to itself."""
    last = reader.last_confirmed
    if last < 0:
        return 0.0
    parts = await reader.read(last, last).next_parts()
    entries = parts[0].data
    assert isinstance(entries, Entries)
    return entries.lengths[0] / (last + 1)


def _not_found(ledger_id: int) -> SourceError:
    return SourceError(
        Code.LEDGER_NOT_FOUND,
        "the stream goes on behind it, so it was deleted or never made: correct the option "
        "ledgers, or skip it with failOnDataLoss=false",
        ledger_id=ledger_id,
    )
