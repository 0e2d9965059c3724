"""The storage threads of a bookie as tasks whose steps take virtual time.

A step does its work at one moment, after the time that its device took for it, and the event loop
hears of it a little later, as it would from a thread: a crash may fall between the deed and the
news.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from runtime.workers import Worker, WorkersStatistics


class TimedWorkers:
    def __init__(self, step_seconds: Callable[[str], float], news_seconds: Callable[[], float]):
        self._step_seconds = step_seconds
        self._news_seconds = news_seconds
        self._workers: list[_TimedWorker] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._news = trio.Event()
        self._healed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._is_over = False

    def start(self, name: str, step: Callable[[], bool], on_progress: Callable[[], None]) -> Worker:
        worker = _TimedWorker(name, step, on_progress, self)
        self._workers.append(worker)
        if self._nursery is not None:
            self._nursery.start_soon(worker.run)
        return worker

    def call_in_loop(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        self._news.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for worker in self._workers:
                nursery.start_soon(worker.run)
            while not self._is_over:
                await self._news.wait()
                self._news = trio.Event()
                await trio.sleep(self._news_seconds())
                for _ in range(len(self._inbox)):
                    self._inbox.popleft()()
            nursery.cancel_scope.cancel()

    async def take_time(self, name: str) -> None:
        """The time of a step; a disk that hangs does so no longer than until it is healed."""
        with trio.move_on_after(self._step_seconds(name)):
            await self._healed.wait()

    def heal(self) -> None:
        self._healed.set()
        self._healed = trio.Event()

    def stop(self) -> None:
        was_over = self._is_over
        self.die()
        while self._inbox and not was_over:
            self._inbox.popleft()()

    def die(self) -> None:
        """The process is gone: no worker takes another step, and nobody hears of the last one."""
        self._is_over = True
        self._news.set()
        for worker in self._workers:
            worker.end()

    def statistics(self) -> WorkersStatistics:
        return WorkersStatistics((), len(self._inbox))


class _TimedWorker:
    def __init__(
        self,
        name: str,
        step: Callable[[], bool],
        on_progress: Callable[[], None],
        workers: TimedWorkers,
    ) -> None:
        self._name = name
        self._step = step
        self._on_progress = on_progress
        self._workers = workers
        self._woken = trio.Event()
        self._woken.set()  # a thread takes its first step unasked, too
        self._has_ended = False

    def wake(self) -> None:
        self._woken.set()

    def end(self) -> None:
        self._has_ended = True
        self._woken.set()

    async def run(self) -> None:
        while not self._has_ended:
            await self._woken.wait()
            await self._workers.take_time(self._name)
            self._woken = trio.Event()
            self._take_step()

    def _take_step(self) -> None:
        if not self._has_ended and self._step():
            self._woken.set()
            self._workers.call_in_loop(self._on_progress)
