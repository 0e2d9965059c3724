"""How late the event loop's timers fire, and why: for the engine's benchmark.

A stall has three causes that the clock alone cannot tell apart. The loop was busy itself: its own
CPU time grew. It had no processor: the kernel counts how long a thread that could run had to queue,
and on a busy machine that is most of it. What is left it spent waiting for the GIL, that is for
another thread; where each of them was when the loop came back tells for whom.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import trio

TIMER_SECONDS: Final = 0.001
_OURS: Final = ("bookie", "runtime")


class Stall(NamedTuple):
    seconds: float = 0.0  # beyond the timer's own time
    own: float = 0.0  # CPU of the loop's thread
    queued: float = 0.0  # it could run and had no processor
    others: str = ""  # where the other threads were

    def __str__(self) -> str:
        rest = max(0.0, self.seconds - self.own - self.queued)
        parts = f"loop's own CPU {self.own * 1e3:.1f}, no processor {self.queued * 1e3:.1f}"
        return f"{parts}, waiting for other threads {rest * 1e3:.1f} ms; then {self.others}"


class StallWatch:
    """Runs in the loop that it watches."""

    def __init__(self) -> None:
        self.worst = Stall()

    def reset(self) -> None:
        self.worst = Stall()

    async def run(self) -> None:
        """How late a timer of 1 ms fires at worst."""
        fd = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        try:
            while True:
                own, queued = _usage(fd)
                started = time.perf_counter()
                await trio.sleep(TIMER_SECONDS)
                late = time.perf_counter() - started - TIMER_SECONDS
                if late > self.worst.seconds:
                    now_own, now_queued = _usage(fd)
                    self.worst = Stall(late, now_own - own, now_queued - queued, _places())
        finally:
            os.close(fd)


def _usage(fd: int) -> tuple[float, float]:
    """Seconds on a processor, and seconds in its queue."""
    running, queued, *_ = os.pread(fd, 100, 0).split()
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
