"""Workers as threads and inline: nothing reported is lost, nothing leaks, errors arrive."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from runtime.workers import InlineWorkers, ThreadWorkers, Workers


class Job:
    """Takes one item per step from `todo` to `done`; `seen` is what the loop was told of."""

    def __init__(self, workers: Workers, name: str = "job") -> None:
        self.todo: deque[int] = deque()
        self.done: list[int] = []
        self.seen: list[int] = []
        self.told = trio.Event()
        self.worker = workers.start(name, self.step, self.on_progress)

    def step(self) -> bool:
        if not self.todo:
            return False
        self.done.append(self.todo.popleft())
        return True

    def on_progress(self) -> None:
        self.seen.append(len(self.seen))
        self.told.set()

    async def wait_until_seen(self, count: int) -> None:
        while len(self.seen) < count:
            self.told = trio.Event()
            await self.told.wait()


@pytest.fixture(params=["threads", "inline"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    workers = ThreadWorkers() if request.param == "threads" else InlineWorkers()
    yield workers
    workers.stop()


@pytest.fixture
def threads() -> Iterator[ThreadWorkers]:
    workers = ThreadWorkers()
    yield workers
    workers.stop()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_worker_does_what_it_is_woken_for_and_the_loop_is_told(workers: Workers) -> None:
    job = Job(workers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run)
        with trio.fail_after(30):
            for number in range(100):
                job.todo.append(number)
                job.worker.wake()
                if number % 7 == 0:
                    await job.wait_until_seen(number + 1)
            await job.wait_until_seen(100)
        nursery.cancel_scope.cancel()
    assert job.done == list(range(100))
    assert len(job.seen) == 100


async def test_worker_takes_its_first_step_unasked(workers: Workers) -> None:
    steps: list[int] = []
    stepped = trio.Event()

    def step() -> bool:
        steps.append(1)
        return len(steps) == 1

    async with trio.open_nursery() as nursery:
        workers.start("eager", step, stepped.set)
        nursery.start_soon(workers.run)
        with trio.fail_after(30):
            await stepped.wait()
        nursery.cancel_scope.cancel()


async def test_reports_run_in_the_order_they_were_made(workers: Workers) -> None:
    heard: list[str] = []
    finished = trio.Event()
    rounds = iter(range(50))

    def step() -> bool:
        number = next(rounds, None)
        if number is None:
            workers.call_in_loop(finished.set)
            return False
        workers.call_in_loop(lambda: heard.append(f"call {number}"))
        return True

    async with trio.open_nursery() as nursery:
        workers.start("talker", step, lambda: heard.append("progress"))
        nursery.start_soon(workers.run)
        with trio.fail_after(30):
            await finished.wait()
        nursery.cancel_scope.cancel()
    expected = [line for number in range(50) for line in (f"call {number}", "progress")]
    assert heard == expected


async def test_error_in_a_step_is_raised_by_run_and_ends_only_that_worker(
    workers: Workers,
) -> None:
    calls = []

    def broken() -> bool:
        calls.append(1)
        raise OSError("disk on fire")

    sound = Job(workers)
    broken_worker = workers.start("broken", broken, lambda: None)
    with trio.fail_after(30):
        with pytest.raises(OSError, match="disk on fire"):
            await workers.run()
        broken_worker.wake()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workers.run)
            sound.todo.append(1)
            sound.worker.wake()
            await sound.wait_until_seen(1)
            nursery.cancel_scope.cancel()
    assert calls == [1]


async def test_error_of_a_report_does_not_lose_the_reports_behind_it(workers: Workers) -> None:
    heard: list[str] = []

    def fail() -> None:
        raise ValueError("first report")

    workers.call_in_loop(fail)
    workers.call_in_loop(lambda: heard.append("second"))
    with pytest.raises(ValueError, match="first report"):
        await workers.run()
    workers.stop()
    assert heard == ["second"]


async def test_run_returns_when_stopped(workers: Workers) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.run)
        await trio.testing.wait_all_tasks_blocked()
        workers.stop()


def test_stop_is_idempotent_and_later_wakes_are_ignored(workers: Workers) -> None:
    job = Job(workers)
    workers.stop()
    workers.stop()
    job.todo.append(1)
    job.worker.wake()
    assert job.done == []
    assert workers.statistics().workers == ()


def test_statistics_count_steps_and_progress(workers: Workers) -> None:
    """Three items and the empty look that follows: at least four steps, three with progress."""
    idle = threading.Event()
    job = Job.__new__(Job)
    job.todo, job.done, job.seen, job.told = deque([1, 2, 3]), [], [], trio.Event()

    def step() -> bool:
        progress = job.step()
        if not progress:
            idle.set()
        return progress

    workers.start("counted", step, lambda: None)
    if isinstance(workers, InlineWorkers):
        workers.run_until_idle()
    assert idle.wait(30)
    (statistics,) = workers.statistics().workers
    assert statistics.name == "counted"
    assert statistics.steps == 4
    assert statistics.progress == 3
    assert statistics.cpu_seconds >= 0


def test_stop_waits_for_the_present_step_and_runs_its_report(threads: ThreadWorkers) -> None:
    entered, release = threading.Event(), threading.Event()
    heard: list[str] = []

    def step() -> bool:
        entered.set()
        assert release.wait(30)
        return True

    threads.start("slow", step, lambda: heard.append("finished"))
    assert entered.wait(30)
    threading.Timer(0.01, release.set).start()
    threads.stop()
    assert heard == ["finished"]


def test_stop_ends_a_worker_that_waits_for_work(threads: ThreadWorkers) -> None:
    Job(threads)
    threads.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "job"]


def test_stop_raises_the_error_of_a_last_step_and_still_closes(threads: ThreadWorkers) -> None:
    before = open_descriptors()
    raised = threading.Event()

    def step() -> bool:
        raised.set()
        raise OSError("last words")

    threads.start("dying", step, lambda: None)
    assert raised.wait(30)
    with pytest.raises(OSError, match="last words"):
        threads.stop()
    assert open_descriptors() == before - 1
    threads.stop()


def test_threads_leave_no_descriptor_behind() -> None:
    before = open_descriptors()
    for _ in range(5):
        workers = ThreadWorkers()
        for number in range(3):
            Job(workers, f"job-{number}")
        workers.stop()
    assert open_descriptors() == before


def test_worker_may_wake_another_while_all_of_them_end() -> None:
    """A descriptor closed by a thread that ended could already be somebody else's file."""
    for _ in range(50):
        workers = ThreadWorkers()
        jobs: list[Job] = []
        first = Job(workers, "first")
        jobs.append(first)

        def nag(jobs: list[Job] = jobs) -> bool:
            jobs[0].worker.wake()
            return True

        workers.start("nag", nag, lambda: None)
        workers.stop()


async def test_wakes_from_many_threads_are_never_lost(threads: ThreadWorkers) -> None:
    """Each of four threads adds an item, wakes, and only then goes on: all must be done."""
    job = Job(threads)

    def feed(base: int) -> None:
        for number in range(250):
            job.todo.append(base + number)
            job.worker.wake()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run)
        with trio.fail_after(60):
            async with trio.open_nursery() as feeders:
                for base in range(0, 1000, 250):
                    feeders.start_soon(trio.to_thread.run_sync, feed, base)
            await job.wait_until_seen(1000)
        nursery.cancel_scope.cancel()
    assert sorted(job.done) == list(range(1000))


def test_run_pending_is_not_held_by_a_worker_that_keeps_reporting(threads: ThreadWorkers) -> None:
    def report_again() -> None:
        threads.call_in_loop(report_again)

    threads.call_in_loop(report_again)
    threads.run_pending()
    assert threads.statistics().reports_pending == 1
    threads._inbox.clear()


def test_inline_choice_decides_who_goes_next() -> None:
    order: list[str] = []
    picks = iter([1, 0, 0])

    def once(name: str) -> Callable[[], bool]:
        def step() -> bool:
            order.append(name)
            return False

        return step

    workers = InlineWorkers(lambda count: next(picks))
    for name in ("a", "b", "c"):
        workers.start(name, once(name), lambda: None)
    workers.run_until_idle()
    assert order == ["b", "a", "c"]


def test_inline_report_follows_its_step_at_once() -> None:
    workers = InlineWorkers()
    job = Job(workers)
    job.todo += [1, 2]
    assert workers.step()
    assert (job.done, job.seen) == ([1], [0])


def test_inline_report_is_a_step_of_its_own_when_not_prompt() -> None:
    workers = InlineWorkers(prompt=False)
    job = Job(workers)
    job.todo.append(1)
    assert workers.step()
    assert (job.done, job.seen) == ([1], [])
    assert workers.statistics().reports_pending == 1
    assert workers.step()
    assert job.seen == [0]


def test_inline_call_in_loop_waits_for_the_end_of_the_step() -> None:
    workers = InlineWorkers()
    heard: list[str] = []

    def step() -> bool:
        workers.call_in_loop(lambda: heard.append("loop"))
        heard.append("step ends")
        return False

    workers.start("caller", step, lambda: None)
    workers.run_until_idle()
    assert heard == ["step ends", "loop"]
