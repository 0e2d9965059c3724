"""The client without `async`, for scripts, threads and asyncio programs.

    with LedgerClient("zk://127.0.0.1:2181/ledgers") as client:
        with client.create(password=b"secret") as ledger:
            ledger.append(b"hello")

One thread of the client's own runs everything; calls may come from any number of threads. `submit`
methods return a `concurrent.futures.Future` at once, which `asyncio.wrap_future` makes awaitable.
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
from typing import Final, Protocol, Self, TypeVar

import trio

from ledger_client import client as asynchronous
from ledger_client.core.options import WriterOptions
from ledger_client.core.reader import ReadOptions
from ledger_client.entries import LedgerEntry
from ledger_client.errors import ClientClosedError
from ledger_client.reader import LedgerReader as AsyncReader
from ledger_client.reader import LedgerTail as AsyncTail
from ledger_client.writer import LedgerWriter as AsyncWriter
from metadata.model import LedgerMetadata
from wire.types import DigestType, LedgerId

T = TypeVar("T")

SUBMITTED_BYTES_MAX: Final = 16 * 1024 * 1024


class _Loop:
    """The thread that runs trio, from the opening of the client to its end."""

    def __init__(self, client: asynchronous.LedgerClient) -> None:
        self._client = client
        self._opened: Future[None] = Future()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._stop: trio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="ledger-client", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._opened.result()

    def stop(self) -> None:
        assert self._token is not None
        assert self._stop is not None
        self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def submit(self, job: Callable[[], Awaitable[T]]) -> Future[T]:
        return self.submit_in_order(lambda: job)

    def submit_in_order(self, begin: Callable[[], Callable[[], Awaitable[T]]]) -> Future[T]:
        """Call `begin` in the order of these calls; what it returns is awaited in any order."""
        future: Future[T] = Future()
        if self._token is None:
            raise ClientClosedError("the client is not open: use it inside its `with` block")
        try:
            self._token.run_sync_soon(self._begin, begin, future)
        except trio.RunFinishedError:
            raise ClientClosedError("the client was closed") from None
        return future

    def _begin(self, begin: Callable[[], Callable[[], Awaitable[T]]], future: Future[T]) -> None:
        assert self._nursery is not None
        if not future.set_running_or_notify_cancel():
            return
        try:
            job = begin()
        except Exception as error:  # whatever it is, it belongs to who asked
            future.set_exception(error)
            return
        self._nursery.start_soon(self._work, job, future)

    async def _work(self, job: Callable[[], Awaitable[T]], future: Future[T]) -> None:
        try:
            result = await job()
        except trio.Cancelled:
            future.set_exception(ClientClosedError("the client was closed meanwhile"))
            raise
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def _main(self) -> None:
        self._stop = trio.Event()
        async with self._client, trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            self._opened.set_result(None)
            await self._stop.wait()
            nursery.cancel_scope.cancel()


class LedgerClient:
    """The same as `ledger_client.LedgerClient`, as an ordinary context manager."""

    def __init__(self, uri: str) -> None:
        self._client = asynchronous.LedgerClient(uri)
        self._loop = _Loop(self._client)

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
        """Run any coroutine function on the asynchronous client; its result as a future."""
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
            options=options,
        )
        return LedgerWriter(self._loop, self._loop.submit(job).result())

    def open(
        self, ledger_id: int, *, password: bytes = b"", options: ReadOptions | None = None
    ) -> LedgerReader:
        job = partial(self._client.open, ledger_id, password=password, options=options)
        return LedgerReader(self._loop, self._loop.submit(job).result())

    def open_no_recovery(
        self, ledger_id: int, *, password: bytes = b"", options: ReadOptions | None = None
    ) -> LedgerReader:
        job = partial(self._client.open_no_recovery, ledger_id, password=password, options=options)
        return LedgerReader(self._loop, self._loop.submit(job).result())

    def tail(
        self, ledger_id: int, *, password: bytes = b"", first: int = 0
    ) -> Iterator[LedgerEntry]:
        """Entries as they are confirmed, until the ledger is closed; waits between them."""
        job = partial(self._client.tail, ledger_id, password=password, first=first)
        tail: AsyncTail = self._loop.submit(job).result()
        return _entries(self._loop, tail)

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._loop.submit(partial(self._client.metadata, ledger_id)).result()

    def exists(self, ledger_id: int) -> bool:
        return self._loop.submit(partial(self._client.exists, ledger_id)).result()

    def delete(self, ledger_id: int) -> None:
        self._loop.submit(partial(self._client.delete, ledger_id)).result()

    def list(self) -> Sequence[LedgerId]:
        async def collect(ids: AsyncIterator[LedgerId]) -> Sequence[LedgerId]:
            return [ledger_id async for ledger_id in ids]

        return self._loop.submit(lambda: collect(self._client.list())).result()


class LedgerWriter:
    """A ledger to be filled, from any thread."""

    def __init__(self, loop: _Loop, writer: AsyncWriter) -> None:
        self.id = writer.id
        self._loop = loop
        self._writer = writer
        self._bytes = 0  # submitted and not ended
        self._room = threading.Condition()

    @property
    def last_confirmed(self) -> int:
        return self._writer.last_confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    def append(self, payload: bytes) -> int:
        return self.submit(payload).result()

    def submit(self, payload: bytes) -> Future[int]:
        """Append without waiting for the end of it. One thread's entries keep their order.

        Waits for room above `SUBMITTED_BYTES_MAX` bytes that have no end yet.
        """
        size = len(payload)
        with self._room:
            self._room.wait_for(lambda: self._bytes < SUBMITTED_BYTES_MAX)
            self._bytes += size
        try:
            future = self._loop.submit_in_order(partial(self._writer.put, payload))
        except ClientClosedError:
            self._release(size)
            raise
        future.add_done_callback(lambda _: self._release(size))
        return future

    def _release(self, size: int) -> None:
        with self._room:
            self._bytes -= size
            self._room.notify_all()

    def append_many(self, payloads: Iterable[bytes]) -> Sequence[int]:
        """The payloads are taken from the client's thread: hand over a list if that matters."""
        return self._loop.submit(partial(self._writer.append_many, payloads)).result()

    def close(self) -> None:
        self._loop.submit(self._writer.close).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.submit(partial(self._writer.__aexit__, kind, error, traceback)).result()


class LedgerReader:
    """A ledger to read from, from any thread."""

    def __init__(self, loop: _Loop, reader: AsyncReader) -> None:
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
        async def begin() -> _Batches:
            return self._reader.read(first, last)

        return _entries(self._loop, self._loop.submit(begin).result())

    def read_last_confirmed(self) -> int:
        return self._loop.submit(self._reader.read_last_confirmed).result()

    def close(self) -> None:
        self._loop.submit(self._reader.close).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class _Batches(Protocol):
    async def next_batch(self) -> list[LedgerEntry]: ...


def _entries(loop: _Loop, batches: _Batches) -> Iterator[LedgerEntry]:
    """One trip to the other thread per batch, not per entry."""
    while batch := loop.submit(batches.next_batch).result():
        yield from batch
