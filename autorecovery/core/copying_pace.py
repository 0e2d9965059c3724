"""How fast to copy: no faster than allowed, and no faster than the target takes it in its stride.

A bookie that is given too much answers late, to us and to the writers that share its journal, its
disk and its processors. So each target has a window of bytes on their way: it grows while answers
come about as fast as they ever did, and shrinks when they take much longer. A window smaller than a
piece means a pause behind each piece, so that on average no more is on its way than it allows.
"""

from __future__ import annotations

import math
from typing import Final

#: With answers after 5 ms this is less than a megabyte per second, the least that is given.
WINDOW_BYTES_MIN: Final = 4 * 1024
WINDOW_BYTES_FIRST: Final = 64 * 1024
WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
#: By which part of itself, or of the window if that is smaller, an answer moves the window. So it
#: stands where one answer of six is late. Until the first late one it is not known at all what the
#: target bears; it is found out within some dozens of answers, and not by asking too much at once.
_GROWTH: Final = 16
_GROWTH_AT_FIRST: Final = 4
_SHRINKING: Final = 4
#: Answers are late when they take this many times as long as the fastest, and at least this long.
_LATE_FACTOR: Final = 2.5
_LATE_SECONDS_MIN: Final = 0.005
#: The fastest answer is forgotten slowly, doubled in half a minute: a bookie that is busier for
#: good is not late for ever.
_FORGET_PER_SECOND: Final = 1.023
#: No pause is longer: a bookie that is never idle is still given about a megabyte per second, since
#: copies that are never made are worse than writers that wait a little.
_PAUSE_SECONDS_MAX: Final = 0.25
#: A clock that is asked to move by less may not move at all, and a wait would be for ever.
_WAIT_SECONDS_MIN: Final = 1e-6


class Pace:
    """The window of one target."""

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES_FIRST
        self.in_flight_bytes = 0
        self.resume_at = -math.inf  # the end of the pause
        self._fastest: tuple[float, float] | None = None  # seconds, and when they were counted
        self._was_late = False

    def has_room(self, size: int, now: float) -> bool:
        """Outside a pause one piece may always be on its way, whatever its size."""
        if now < self.resume_at:
            return False
        return self.in_flight_bytes == 0 or self.in_flight_bytes + size <= self.window_bytes

    def sent(self, size: int) -> None:
        self.in_flight_bytes += size

    def answered(self, size: int, *, seconds: float, now: float) -> None:
        self.forgotten(size)
        fastest = seconds
        if self._fastest is not None:
            known, at = self._fastest
            fastest = min(seconds, known * _FORGET_PER_SECOND ** (now - at))
        self._fastest = fastest, now
        step = min(size, self.window_bytes)
        if seconds > max(_LATE_SECONDS_MIN, _LATE_FACTOR * fastest):
            self._was_late = True
            self.window_bytes = max(WINDOW_BYTES_MIN, self.window_bytes - step // _SHRINKING)
        else:
            growth = step // (_GROWTH if self._was_late else _GROWTH_AT_FIRST)
            self.window_bytes = min(WINDOW_BYTES_MAX, self.window_bytes + growth)
        if size > self.window_bytes:
            pause = seconds * (size / self.window_bytes - 1)
            self.resume_at = now + min(pause, _PAUSE_SECONDS_MAX)

    def forgotten(self, size: int) -> None:
        """It ended without an answer that tells anything about speed."""
        self.in_flight_bytes -= size
        assert self.in_flight_bytes >= 0


class Rate:
    """So many bytes per second, saved up for one second at most. Debts are paid by waiting.

    Paying afterwards fits what is known when: the size of a piece, once it was read.
    """

    def __init__(self, bytes_per_second: int, *, now: float) -> None:
        """A rate of -1 is none."""
        self._per_second = bytes_per_second
        self._saved = float(max(0, bytes_per_second))
        self._at = now

    def spend(self, size: int, *, now: float) -> None:
        if self._per_second > 0:
            self._refill(now)
            self._saved -= size

    def wait_seconds(self, now: float) -> float:
        """How long until the next piece may begin."""
        if self._per_second <= 0:
            return 0.0
        self._refill(now)
        if self._saved >= 0:
            return 0.0
        return max(_WAIT_SECONDS_MIN, -self._saved / self._per_second)

    def _refill(self, now: float) -> None:
        saved = self._saved + (now - self._at) * self._per_second
        self._saved, self._at = min(float(self._per_second), saved), now
