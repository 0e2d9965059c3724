"""The client without `async`, for scripts, threads and asyncio programs.

    >>> from ledger_client.sync import LedgerClient
    >>> with LedgerClient("zk://127.0.0.1:2181/ledgers") as client:
    ...     with client.create(password=b"secret") as ledger:
    ...         print(ledger.append(b"hello"))
    ...     with client.open(ledger.id, password=b"secret") as reader:
    ...         print([entry.payload for entry in reader.read(0, reader.last_confirmed)])
    0
    [b'hello']

One thread of the client's own runs everything; calls may come from any number of threads. `submit`
methods return a `concurrent.futures.Future` at once, which `asyncio.wrap_future` makes awaitable.
A call that is interrupted (Ctrl-C) goes on without its caller.
"""

from __future__ import annotations

import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from ledger_client import client as asynchronous
from ledger_client.bookie_info import BookieSpace
from ledger_client.core.options import WriterOptions
from ledger_client.core.placement import PlacementPolicy
from ledger_client.core.quarantine import QuarantineOptions
from ledger_client.core.reader import ReadOptions
from ledger_client.entrance import ClientAuth
from ledger_client.entries import EntryIterator, LedgerEntry
from ledger_client.errors import ClientClosedError
from ledger_client.health import ClientStatistics
from ledger_client.loop import Loop
from ledger_client.reader import LedgerReader as AsyncReader
from ledger_client.tail import LedgerTail as AsyncTail
from ledger_client.topology import Topology
from ledger_client.weights import SpaceOptions
from ledger_client.writer import LedgerWriter as AsyncWriter
from metadata.access import ANONYMOUS, ZookeeperAccess
from metadata.discovery import Bookies
from metadata.model import LedgerMetadata
from metadata.zookeeper_store import SESSION_SECONDS
from runtime.tls import TlsOptions
from wire.types import DigestType, LedgerId

T = TypeVar("T")

#: Bytes that were submitted and have no end yet; above, `submit` waits.
SUBMITTED_BYTES_MAX: Final = 16 * 1024 * 1024
#: What an entry counts for beside its payload.
_ENTRY_BYTES: Final = 64
_LOOK_SECONDS: Final = 0.05


class LedgerClient:
    """The same as `ledger_client.LedgerClient`, as an ordinary context manager."""

    def __init__(
        self,
        uri: str,
        *,
        policy: PlacementPolicy | None = None,
        topology: Topology | None = None,
        space: SpaceOptions | None = None,
        quarantine: QuarantineOptions | None = None,
        session_seconds: float = SESSION_SECONDS,
        tls: TlsOptions | None = None,
        auth: ClientAuth | None = None,
        zookeeper: ZookeeperAccess = ANONYMOUS,
    ) -> None:
        self._client = asynchronous.LedgerClient(
            uri,
            policy=policy,
            topology=topology,
            space=space,
            quarantine=quarantine,
            session_seconds=session_seconds,
            tls=tls,
            auth=auth,
            zookeeper=zookeeper,
        )
        self._loop = Loop(self._client)

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.stop()

    def submit(self, job: Callable[[asynchronous.LedgerClient], Awaitable[T]]) -> Future[T]:
        """Run any coroutine function on the asynchronous client; its result as a future.

        >>> with LedgerClient("zk://127.0.0.1:2181/ledgers") as client:
        ...     client.submit(lambda asynchronous: asynchronous.exists(12345678)).result()
        False
        """
        return self._loop.submit(partial(job, self._client))

    def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 2,
        ack_quorum: int = 2,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        given_entry_ids: bool = False,
        deferred_sync: bool = False,
        shrink_ensemble: bool = False,
        options: WriterOptions | None = None,
    ) -> LedgerWriter:
        job = partial(
            self._client.create,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=password,
            digest_type=digest_type,
            custom_metadata=custom_metadata,
            ledger_id=ledger_id,
            given_entry_ids=given_entry_ids,
            deferred_sync=deferred_sync,
            shrink_ensemble=shrink_ensemble,
            options=options,
        )
        return LedgerWriter(self._loop, self._loop.call(job))

    def open(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest_type: DigestType | None = None,
        options: ReadOptions | None = None,
    ) -> LedgerReader:
        job = partial(
            self._client.open,
            ledger_id,
            password=password,
            digest_type=digest_type,
            options=options,
        )
        return LedgerReader(self._loop, self._loop.call(job))

    def open_no_recovery(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest_type: DigestType | None = None,
        options: ReadOptions | None = None,
    ) -> LedgerReader:
        job = partial(
            self._client.open_no_recovery,
            ledger_id,
            password=password,
            digest_type=digest_type,
            options=options,
        )
        return LedgerReader(self._loop, self._loop.call(job))

    def tail(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest_type: DigestType | None = None,
        first: int = 0,
        options: ReadOptions | None = None,
    ) -> LedgerTail:
        """Entries as they are confirmed, until the ledger is closed; waits between them.

        >>> with LedgerClient("zk://127.0.0.1:2181/ledgers") as client:
        ...     with client.create() as ledger:
        ...         with client.tail(ledger.id) as tail:
        ...             ledger.append(b"news")
        ...             print(next(tail).payload)
        0
        b'news'
        """
        job = partial(
            self._client.tail,
            ledger_id,
            password=password,
            digest_type=digest_type,
            first=first,
            options=options,
        )
        return LedgerTail(self._loop, self._loop.call(job))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._loop.call(partial(self._client.metadata, ledger_id))

    def exists(self, ledger_id: int) -> bool:
        return self._loop.call(partial(self._client.exists, ledger_id))

    def delete(self, ledger_id: int) -> None:
        self._loop.call(partial(self._client.delete, ledger_id))

    def list(self) -> Sequence[LedgerId]:
        async def collect(ids: AsyncIterator[LedgerId]) -> Sequence[LedgerId]:
            return [ledger_id async for ledger_id in ids]

        return self._loop.call(lambda: collect(self._client.list()))

    def bookies(self) -> Bookies:
        return self._client.bookies()

    def bookie_info(self, bookie_id: str) -> BookieSpace:
        return self._loop.call(partial(self._client.bookie_info, bookie_id))

    def statistics(self) -> ClientStatistics:
        async def ask() -> ClientStatistics:
            return self._client.statistics()

        return self._loop.call(ask)


class LedgerWriter:
    """A ledger to be filled, from any thread."""

    def __init__(self, loop: Loop, writer: AsyncWriter) -> None:
        self.id = writer.id
        self._loop = loop
        self._writer = writer
        self._bytes = 0  # submitted and not ended
        self._room = threading.Condition()

    @property
    def last_confirmed(self) -> int:
        return self._writer.last_confirmed

    @property
    def last_appended(self) -> int:
        return self._writer.last_appended

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    def append(self, payload: bytes, *, entry_id: int | None = None) -> int:
        return self.submit(payload, entry_id=entry_id).result()

    def submit(self, payload: bytes, *, entry_id: int | None = None) -> Future[int]:
        """Append without waiting for the end of it. One thread's entries keep their order.

        Waits for room above `SUBMITTED_BYTES_MAX` bytes that have no end yet, unless it fills a
        gap that others wait for.

            >>> with LedgerClient("zk://127.0.0.1:2181/ledgers") as client:
            ...     with client.create() as ledger:
            ...         futures = [ledger.submit(b"x") for _ in range(3)]
            ...         print([future.result() for future in futures])
            [0, 1, 2]
        """
        size = len(payload) + _ENTRY_BYTES
        with self._room:
            while not self._room.wait_for(partial(self._may_submit, entry_id), _LOOK_SECONDS):
                pass  # whether it fills a gap is known in the other thread, which tells nobody
            self._bytes += size
        try:
            begin = partial(self._writer.put, payload, entry_id=entry_id)
            future = self._loop.submit_in_order(begin)
        except ClientClosedError:
            self._release(size)
            raise
        future.add_done_callback(lambda _: self._release(size))
        return future

    def _may_submit(self, entry_id: int | None) -> bool:
        if self._bytes < SUBMITTED_BYTES_MAX:
            return True
        return entry_id is not None and self._writer.fills_gap(entry_id)

    def _release(self, size: int) -> None:
        with self._room:
            self._bytes -= size
            self._room.notify_all()

    def append_many(
        self, payloads: Iterable[bytes], *, entry_ids: Iterable[int] | None = None
    ) -> Sequence[int]:
        """The payloads are taken from the client's thread: hand over a list if that matters."""
        return self._loop.call(partial(self._writer.append_many, payloads, entry_ids=entry_ids))

    def force(self) -> int:
        return self._loop.call(self._writer.force)

    def close(self) -> None:
        self._loop.call(self._writer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call(partial(self._writer.__aexit__, kind, error, traceback))


class LedgerReader:
    """A ledger to read from, from any thread."""

    def __init__(self, loop: Loop, reader: AsyncReader) -> None:
        self.id = reader.id
        self._loop = loop
        self._reader = reader

    @property
    def metadata(self) -> LedgerMetadata:
        return self._reader.metadata

    @property
    def is_closed(self) -> bool:
        return self._reader.is_closed

    @property
    def last_confirmed(self) -> int:
        return self._reader.last_confirmed

    @property
    def length(self) -> int:
        return self._reader.length

    def read(self, first: int, last: int) -> Iterator[LedgerEntry]:
        async def begin() -> EntryIterator:
            return self._reader.read(first, last)

        return _entries(self._loop, self._loop.call(begin))

    def read_unconfirmed(self, first: int, last: int) -> Iterator[LedgerEntry]:
        async def begin() -> EntryIterator:
            return self._reader.read_unconfirmed(first, last)

        return _entries(self._loop, self._loop.call(begin))

    def read_last_confirmed(self) -> int:
        return self._loop.call(self._reader.read_last_confirmed)

    def close(self) -> None:
        self._loop.call(self._reader.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class LedgerTail:
    """An iterator over entries as they are confirmed; ends with the ledger, or by `close`."""

    def __init__(self, loop: Loop, tail: AsyncTail) -> None:
        self.id = tail.id
        self._loop = loop
        self._tail = tail
        self._entries = _entries(loop, tail)

    @property
    def last_confirmed(self) -> int:
        return self._tail.last_confirmed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LedgerEntry:
        return next(self._entries)

    def close(self) -> None:
        self._loop.call(self._tail.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _entries(loop: Loop, batches: EntryIterator) -> Iterator[LedgerEntry]:
    """One trip to the other thread per batch, not per entry."""
    while batch := loop.call(batches.next_batch):
        yield from batch
