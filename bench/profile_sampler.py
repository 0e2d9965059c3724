"""Where a process's CPU time goes, by thread and function, seen from a thread of its own.

Now and then the sampler asks the kernel how much each thread has used since it last looked, and
puts that on the function in which it finds the thread. So a function's figure is CPU time, also
that of system calls and of C code that lets other threads run; threads that wait cost nothing. A
thread is stopped between two steps of Python's, so the figures are good by function and not by
line.

The sampler must not wait for a thread's next system call to get its turn, or system calls would
seem to take everything that was computed since the last one: while it looks, threads change after
50 us. (With Python's 5 ms a client that computes for two thirds of its time seemed to send for two
thirds of it; `perf` showed that.)
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

_INTERVAL_SECONDS: Final = 0.002
_SWITCH_SECONDS: Final = 50e-6
_TICKS_PER_SECOND: Final = 100
_OWN_NAME: Final = "sampler"


@dataclass(slots=True)
class ThreadProfile:
    """Seconds of CPU: of the thread, by function, and by function with all that it calls."""

    name: str
    seconds: float = 0.0
    own: dict[str, float] = field(default_factory=dict)
    whole: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "seconds": self.seconds,
            "own": self.own,
            "whole": self.whole,
        }


class Sampler:
    """`start`, and `stop` for the profiles of Python's threads; those of one name are one."""

    def __init__(self) -> None:
        self._profiles: dict[str, ThreadProfile] = {}
        self._clocks: dict[int, tuple[int, float]] = {}  # by thread: its clock, and what it said
        self._switch_seconds = sys.getswitchinterval()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=_OWN_NAME, daemon=True)

    def start(self) -> None:
        self._switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._look(count=False)
        self._thread.start()

    def stop(self) -> list[ThreadProfile]:
        self._is_over.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_seconds)
        return sorted(self._profiles.values(), key=lambda found: -found.seconds)

    def _run(self) -> None:
        while not self._is_over.wait(_INTERVAL_SECONDS):
            self._look(count=True)

    def _look(self, *, count: bool) -> None:
        frames = sys._current_frames()  # the only way there is
        for thread in threading.enumerate():
            ident = thread.ident
            if ident is None or thread.name == _OWN_NAME or ident not in frames:
                continue
            try:
                clock, before = self._clocks.get(ident) or (time.pthread_getcpuclockid(ident), 0.0)
                now = time.clock_gettime(clock)
            except OSError:  # it has just ended
                self._clocks.pop(ident, None)
                continue
            self._clocks[ident] = (clock, now)
            if count and now > before:
                self._put(_kind(thread.name), frames[ident], now - before)

    def _put(self, name: str, frame: FrameType | None, seconds: float) -> None:
        profile = self._profiles.get(name)
        if profile is None:
            profile = self._profiles[name] = ThreadProfile(name)
        profile.seconds += seconds
        seen: set[str] = set()
        while frame is not None:
            code = frame.f_code
            function = f"{Path(code.co_filename).name}:{code.co_qualname}"
            if not seen:
                profile.own[function] = profile.own.get(function, 0.0) + seconds
            if function not in seen:
                profile.whole[function] = profile.whole.get(function, 0.0) + seconds
                seen.add(function)
            frame = frame.f_back


def threads_of(pid: int) -> dict[str, float]:
    """Seconds of CPU by the kernel's names of a process's threads; those of one name are one."""
    found: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            before, _, after = (task / "stat").read_text().rpartition(")")
        except OSError:  # it has just ended
            continue
        fields = after.split()
        ticks = int(fields[11]) + int(fields[12])
        name = _kind(before.partition("(")[2])
        found[name] = found.get(name, 0.0) + ticks / _TICKS_PER_SECOND
    return found


def _kind(name: str) -> str:
    """Threads that differ by a number do the same work."""
    return name.rstrip("0123456789-_ #") or name
