"""An asynchronous producer behind an ordinary generator.

Spark pulls batches from a generator on the worker's main thread; the client runs on trio. So trio
gets a thread of its own for as long as the generator lives, and batches cross over a queue. The
producer takes a place before it puts one there, and the consumer gives the place back when it asks
for the next: at most `depth` batches wait, whatever the sizes of both sides' appetites.

A consumer that stops early (`limit`, a cancelled job) closes the generator: the producer is
cancelled, its sockets are closed and the thread has ended before the close returns.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

import trio

T = TypeVar("T")
#: Hands one item over; waits while too many are under way.
Emit: TypeAlias = Callable[[T], Awaitable[None]]
Produce: TypeAlias = Callable[[Emit[T]], Awaitable[None]]

#: Batches that are ready and wait. Two keep both threads busy; more only cost memory.
DEPTH: Final = 2


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None = None


class _Crossing(Generic[T]):
    def __init__(self, produce: Produce[T], depth: int) -> None:
        self._produce = produce
        self._depth = depth
        self._items: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
        self._begun: Future[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = Future()
        self._places: trio.Semaphore | None = None
        self._thread = threading.Thread(target=self._run, name="ledger-scan", daemon=True)

    def items(self) -> Iterator[T]:
        self._thread.start()
        token, scope = self._begun.result()
        try:
            while True:
                item = self._items.get()
                if isinstance(item, _End):
                    if item.error is not None:
                        raise item.error
                    return
                yield item
                del item  # it may be megabytes, and the next one is being made
                with suppress(trio.RunFinishedError):  # that was the last one
                    token.run_sync_soon(self._release)
        finally:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(scope.cancel)
            self._thread.join()

    def _release(self) -> None:
        assert self._places is not None
        self._places.release()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # belongs to whoever waits for the items
            self._items.put(_End(error))
        else:
            self._items.put(_End())
        finally:
            if not self._begun.done():
                self._begun.set_exception(RuntimeError("trio could not be started"))

    async def _main(self) -> None:
        self._places = trio.Semaphore(self._depth)
        with trio.CancelScope() as scope:
            self._begun.set_result((trio.lowlevel.current_trio_token(), scope))
            await self._produce(self._emit)

    async def _emit(self, item: T) -> None:
        assert self._places is not None
        await self._places.acquire()
        self._items.put(item)


def bridged(produce: Produce[T], *, depth: int = DEPTH) -> Iterator[T]:
    """What `produce` hands over, from a thread of its own. Its errors are raised here."""
    return _Crossing(produce, depth).items()
