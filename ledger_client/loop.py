"""The thread that runs trio for the client without `async`."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

import trio

from ledger_client import client as asynchronous
from ledger_client.errors import ClientClosedError

T = TypeVar("T")


class Loop:
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

    def call(self, job: Callable[[], Awaitable[T]]) -> T:
        """Run a job to its end. An interrupt here leaves it running."""
        return self.submit(job).result()

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
