"""Threads that serve the event loop, behind an interface that the simulator can run inline.

A worker owns one blocking job (write the journal, flush a generation). The loop leaves work in a
list that both can see and calls `wake`; the worker calls its `step` until that returns False.
After each step that returned True the loop is told, once, and runs the worker's `on_progress`.
Hand-over costs one eventfd write each way and no lock; nothing is queued per entry.

An error that leaves `step` is a bug or a dead disk: the worker stops, and the error is raised
in the loop, by `run`. A step must never wait for the loop: `stop` waits for the step.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    name: str
    steps: int  # calls of `step`
    progress: int  # those that returned True
    cpu_seconds: float  # of the thread; 0 without one, or once it has ended


@dataclass(frozen=True, slots=True)
class WorkersStatistics:
    workers: tuple[WorkerStatistics, ...]
    reports_pending: int  # told to the loop, not yet run by it


class Worker(Protocol):
    """What the loop holds of a running worker."""

    def wake(self) -> None:
        """There is something to do. Cheap, may be called from any thread, calls coalesce.

        A worker that ended, by `stop` or by an error, ignores it.
        """


class Workers(Protocol):
    """Where workers come from."""

    def start(
        self, name: str, step: Callable[[], bool], on_progress: Callable[[], None]
    ) -> Worker: ...

    def call_in_loop(self, function: Callable[[], None]) -> None:
        """From a worker: run `function` in the event loop soon, in the order of the calls."""

    async def run(self) -> None:
        """The loop's side, to be started as a task: run what workers report, until `stop`."""

    def stop(self) -> None:
        """End every worker after its present step, wait for it, run its last reports. Idempotent.

        For the loop's thread. Raises what a worker raised in its last step; `run` returns.
        """

    def statistics(self) -> WorkersStatistics: ...


class ThreadWorkers:
    """Each worker is a thread."""

    def __init__(self) -> None:
        self._inbox: deque[Callable[[], None]] = deque()
        self._signal = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._threads: list[_Thread] = []

    def start(self, name: str, step: Callable[[], bool], on_progress: Callable[[], None]) -> Worker:
        thread = _Thread(name, step, on_progress, self)
        try:
            thread.start()
        except RuntimeError:  # the operating system has no thread left to give
            thread.close()
            raise
        self._threads.append(thread)
        return thread

    def call_in_loop(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        # The order matters: whoever reads the signal afterwards finds the function in the inbox.
        if self._signal >= 0:
            os.eventfd_write(self._signal, 1)

    async def run(self) -> None:
        with contextlib.suppress(trio.ClosedResourceError):  # stopped while waiting
            while self._signal >= 0:
                await trio.lowlevel.wait_readable(self._signal)
                self.run_pending()

    def run_pending(self) -> None:
        """Run everything reported so far, without waiting."""
        if self._signal >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._signal)
        # What is appended from here on has a signal of its own, so a busy worker cannot hold the
        # loop here. Without a signal the inbox may hold what an error left behind.
        for _ in range(len(self._inbox)):
            self._inbox.popleft()()

    def stop(self) -> None:
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join()
        # Only now: a worker may wake another one while it ends, and a descriptor that is closed
        # too early may already belong to somebody else's file.
        for thread in self._threads:
            thread.close()
        self._threads.clear()
        if self._signal >= 0:
            try:
                self.run_pending()
            finally:
                signal, self._signal = self._signal, -1
                if trio.lowlevel.in_trio_run():
                    trio.lowlevel.notify_closing(signal)
                os.close(signal)

    def statistics(self) -> WorkersStatistics:
        return WorkersStatistics(
            tuple(thread.statistics() for thread in self._threads), len(self._inbox)
        )


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
        self._steps = 0
        self._progress = 0

    def wake(self) -> None:
        if self._signal >= 0:
            os.eventfd_write(self._signal, 1)

    def end(self) -> None:
        self._ending = True
        self.wake()

    def close(self) -> None:
        """Give the descriptor back. For the loop, once the thread has ended."""
        signal, self._signal = self._signal, -1
        os.close(signal)

    def run(self) -> None:
        _tell_kernel(self.name)
        try:
            while not self._ending:
                self._steps += 1
                if self._step():
                    self._progress += 1
                    self._workers.call_in_loop(self._on_progress)
                elif not self._ending:
                    os.eventfd_read(self._signal)
        except BaseException as error:
            self._workers.call_in_loop(_raiser(error))

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(self.name, self._steps, self._progress, self._cpu_seconds())

    def _cpu_seconds(self) -> float:
        try:
            with open(f"/proc/self/task/{self.native_id}/schedstat", "rb") as file:
                return int(file.read().split()[0]) / 1e9
        except OSError:  # ended, or a kernel without scheduler statistics
            return 0.0


def _tell_kernel(name: str) -> None:
    """Name the calling thread, as `top -H` shows it; Python does so only since 3.14."""
    with contextlib.suppress(OSError), open("/proc/thread-self/comm", "wb") as file:
        file.write(name.encode()[:15])


def _raiser(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


class InlineWorkers:
    """No threads: the owner decides when each worker takes a step. For tests and the simulator.

    `choose` picks which of several runnable workers goes next, so that a seed can fix the order.
    Reports follow their step at once; with `prompt=False` delivering the oldest report is one
    more choice (the first), so that a crash can fall between the deed and the news of it.
    """

    def __init__(
        self, choose: Callable[[int], int] = lambda count: 0, *, prompt: bool = True
    ) -> None:
        self._choose = choose
        self._prompt = prompt
        self._workers: list[_InlineWorker] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._woken: trio.Event | None = None
        self._stopped = False

    def start(self, name: str, step: Callable[[], bool], on_progress: Callable[[], None]) -> Worker:
        worker = _InlineWorker(name, step, on_progress, self)
        self._workers.append(worker)
        worker.wake()  # a thread takes its first step unasked, too
        return worker

    def call_in_loop(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        self.notify()

    async def run(self) -> None:
        while not self._stopped:
            while self.step():
                await trio.lowlevel.checkpoint()
            self._woken = trio.Event()
            await self._woken.wait()

    def step(self) -> bool:
        """Let one woken worker take one step; False when none had anything to do."""
        choices: list[Callable[[], None]] = [w.run_once for w in self._workers if w.awake]
        if self._inbox:
            choices.insert(0, self._deliver)
        if not choices:
            return False
        choices[self._choose(len(choices))]()
        while self._prompt and self._inbox:
            self._deliver()
        return True

    def run_until_idle(self) -> None:
        while self.step():
            pass

    def stop(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._stopped = True
        self.notify()
        while self._inbox:
            self._deliver()

    def statistics(self) -> WorkersStatistics:
        return WorkersStatistics(
            tuple(worker.statistics() for worker in self._workers), len(self._inbox)
        )

    def notify(self) -> None:
        if self._woken is not None:
            self._woken.set()

    def _deliver(self) -> None:
        self._inbox.popleft()()


class _InlineWorker:
    def __init__(
        self,
        name: str,
        step: Callable[[], bool],
        on_progress: Callable[[], None],
        workers: InlineWorkers,
    ) -> None:
        self.name = name
        self.awake = False
        self._step = step
        self._on_progress = on_progress
        self._workers = workers
        self._ended = False
        self._steps = 0
        self._progress = 0

    def wake(self) -> None:
        if not self._ended:
            self.awake = True
            self._workers.notify()

    def end(self) -> None:
        self._ended = True
        self.awake = False

    def run_once(self) -> None:
        self.awake = False
        self._steps += 1
        try:
            progress = self._step()
        except BaseException:
            self.end()
            raise
        if progress:
            self._progress += 1
            self.awake = not self._ended
            self._workers.call_in_loop(self._on_progress)

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(self.name, self._steps, self._progress, 0.0)
