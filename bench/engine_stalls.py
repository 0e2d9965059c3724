"""How late the event loop's timers fire, and why: for the engine's benchmark.

A stall has causes that the clock alone cannot tell apart. The loop was busy itself: its own CPU
time grew. It had no processor: the kernel counts how long a thread that could run had to queue, and
on a busy machine that is most of it. The rest it spent waiting: for the GIL, that is for another
thread (where each of them was when the loop came back tells for whom), or because the machine stood
still. Who waits for the GIL asks for it every half millisecond, and each time counts as giving the
processor away: a long stall with few of these was none of the interpreter's.

What the machine does by itself a control tells: an empty loop in a process of its own, beside the
same disk traffic and the same busy threads, whose GIL it does not share.

    python -m bench.engine_stalls   (the control: a line on its input, its stalls on its output)
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from types import FrameType
from typing import Final, NamedTuple

import trio

TIMER_SECONDS: Final = 0.001
LONG_SECONDS: Final = 0.005
_OURS: Final = ("bookie", "runtime")
# `os.pread` would give the GIL away a thousand times a second, and make stalls of its own.
_pread = ctypes.PyDLL(None).pread
_pread.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64]


class Stall(NamedTuple):
    seconds: float = 0.0  # beyond the timer's own time
    own: float = 0.0  # CPU of the loop's thread
    queued: float = 0.0  # it could run and had no processor
    waits: int = 0  # how often it gave the processor away
    others: str = ""  # where the other threads were

    def __str__(self) -> str:
        rest = max(0.0, self.seconds - self.own - self.queued)
        parts = f"loop's own CPU {self.own * 1e3:.1f}, no processor {self.queued * 1e3:.1f}"
        waiting = f"waiting {rest * 1e3:.1f} ms in {self.waits} waits"
        return f"{parts}, {waiting}; then {self.others}"


class Stalls(NamedTuple):
    """What a loop saw while something went on."""

    seconds: float
    worst: Stall
    p999: float  # of how late the timer was
    long_count: int  # stalls above LONG_SECONDS

    @property
    def long_per_minute(self) -> float:
        return self.long_count / self.seconds * 60 if self.seconds else 0.0


class StallWatch:
    """Runs in the loop that it watches."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._worst = Stall()
        self._late = array("d")
        self._since = time.perf_counter()

    def stalls(self) -> Stalls:
        """Since the reset."""
        late = sorted(self._late)
        return Stalls(
            time.perf_counter() - self._since,
            self._worst,
            late[len(late) * 999 // 1000] if late else 0.0,
            sum(seconds > LONG_SECONDS for seconds in late),
        )

    async def run(self) -> None:
        """How late a timer of 1 ms fires."""
        fd = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        try:
            while True:
                own, queued = _usage(fd)
                waits = getrusage(RUSAGE_THREAD).ru_nvcsw
                started = time.perf_counter()
                await trio.sleep(TIMER_SECONDS)
                late = time.perf_counter() - started - TIMER_SECONDS
                self._late.append(late)
                if late > self._worst.seconds:
                    now_own, now_queued = _usage(fd)
                    waits = getrusage(RUSAGE_THREAD).ru_nvcsw - waits
                    self._worst = Stall(late, now_own - own, now_queued - queued, waits, _places())
        finally:
            os.close(fd)


def _usage(fd: int) -> tuple[float, float]:
    """Seconds on a processor, and seconds in its queue."""
    buffer = ctypes.create_string_buffer(100)
    _pread(fd, buffer, 100, 0)
    running, queued, *_ = buffer.value.split()
    return int(running) / 1e9, int(queued) / 1e9


def _places() -> str:
    """In which of our functions each other thread is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    places = [
        f"{names.get(ident, '?')} in {place}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident() and (place := _place(frame)) is not None
    ]
    return ", ".join(sorted(places)) or "nobody at work"


def _place(frame: FrameType | None) -> str | None:
    """The innermost function of ours; none if the thread rests."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if frame.f_code.co_name == "run" and path.stem == "workers":
            return None  # it waits to be woken
        if path.parent.name in _OURS or path.parent.parent.name in _OURS:
            return f"{path.stem}.{frame.f_code.co_name}"
        frame = frame.f_back
    return None


class EmptyLoop:
    """The control, from outside."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.engine_stalls"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.take()  # it runs

    def take(self) -> Stalls:
        """What it saw since it was asked last. Waits for the answer: not while one is measured."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        seconds, worst, p999, long_count = json.loads(self._process.stdout.readline())
        return Stalls(seconds, Stall(*worst), p999, long_count)

    def close(self) -> None:
        self._process.communicate()  # the end of its input ends it


async def _control() -> None:
    watch = StallWatch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        while True:
            await trio.lowlevel.wait_readable(sys.stdin)
            if not os.read(sys.stdin.fileno(), 1):
                break
            stalls = watch.stalls()
            os.write(sys.stdout.fileno(), json.dumps(stalls).encode() + b"\n")
            watch.reset()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_control)
