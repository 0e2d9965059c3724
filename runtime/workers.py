"""Threads that serve the event loop, behind an interface that the simulator can run inline.

A worker owns one blocking job (write the journal, flush a generation). The loop leaves work in a
list that both can see and calls `wake`; the worker calls its `step` until that returns False.
After each step that returned True the loop is told, once, and runs the worker's `on_progress`.
Hand-over costs one eventfd write each way and no lock; nothing is queued per entry.

An error that leaves `step` is a bug or a dead disk: the worker stops, and the error is raised
in the loop, by `run`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio


class Worker(Protocol):
    """What the loop holds of a running worker."""

    def wake(self) -> None:
        """There is something to do. Cheap, may be called from any thread, calls coalesce."""


class Workers(Protocol):
    """Where workers come from."""

    def start(
        self, name: str, step: Callable[[], bool], on_progress: Callable[[], None]
    ) -> Worker: ...

    def call_in_loop(self, function: Callable[[], None]) -> None:
        """From a worker: run `function` in the event loop soon, in the order of the calls."""


class ThreadWorkers:
    """Each worker is a thread. `run` is the loop's side: a task that lives as long as they do."""

    def __init__(self) -> None:
        self._inbox: deque[Callable[[], None]] = deque()
        self._signal = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._threads: list[_Thread] = []

    def start(self, name: str, step: Callable[[], bool], on_progress: Callable[[], None]) -> Worker:
        thread = _Thread(name, step, on_progress, self)
        self._threads.append(thread)
        thread.start()
        return thread

    def call_in_loop(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        os.eventfd_write(self._signal, 1)

    async def run(self) -> None:
        """Run what the workers report, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._signal)
            self.run_pending()

    def run_pending(self) -> None:
        """Run everything reported so far, without waiting."""
        try:
            os.eventfd_read(self._signal)
        except BlockingIOError:
            return
        while self._inbox:
            self._inbox.popleft()()

    def stop(self) -> None:
        """End every worker after its present step and wait for it. Idempotent."""
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join()
        self._threads.clear()


class _Thread(threading.Thread):
    def __init__(
        self,
        name: str,
        step: Callable[[], bool],
        on_progress: Callable[[], None],
        workers: ThreadWorkers,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._step = step
        self._on_progress = on_progress
        self._workers = workers
        self._signal = os.eventfd(0, os.EFD_CLOEXEC)
        self._ending = False

    def wake(self) -> None:
        os.eventfd_write(self._signal, 1)

    def end(self) -> None:
        self._ending = True
        self.wake()

    def run(self) -> None:
        try:
            while not self._ending:
                while not self._ending and self._step():
                    self._workers.call_in_loop(self._on_progress)
                if not self._ending:
                    os.eventfd_read(self._signal)
        except BaseException as error:
            self._workers.call_in_loop(_raiser(error))
        finally:
            os.close(self._signal)


def _raiser(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


class InlineWorkers:
    """No threads: the owner decides when each worker takes a step. For tests and the simulator.

    `choose` picks which of several runnable workers goes next, so that a seed can fix the order.
    """

    def __init__(self, choose: Callable[[int], int] = lambda count: 0) -> None:
        self._choose = choose
        self._workers: list[_InlineWorker] = []

    def start(self, name: str, step: Callable[[], bool], on_progress: Callable[[], None]) -> Worker:
        worker = _InlineWorker(name, step, on_progress)
        self._workers.append(worker)
        return worker

    def call_in_loop(self, function: Callable[[], None]) -> None:
        function()

    def step(self) -> bool:
        """Let one woken worker take one step; False when none had anything to do."""
        awake = [worker for worker in self._workers if worker.awake]
        if not awake:
            return False
        awake[self._choose(len(awake))].run_once()
        return True

    def run_until_idle(self) -> None:
        while self.step():
            pass


class _InlineWorker:
    def __init__(
        self, name: str, step: Callable[[], bool], on_progress: Callable[[], None]
    ) -> None:
        self.name = name
        self.awake = False
        self._step = step
        self._on_progress = on_progress

    def wake(self) -> None:
        self.awake = True

    def run_once(self) -> None:
        self.awake = False
        if self._step():
            self.awake = True
            self._on_progress()
