"""How fast to copy: no faster than allowed, and no faster than the target takes it in its stride.

A bookie that is given too much answers late, to us and to the writers that share its journal. So
each target has a window of bytes on their way: it grows while answers come about as fast as they
ever did, and shrinks when they take much longer.
"""

from __future__ import annotations

from typing import Final

#: Four pieces: less, and on a machine that is busy with others a copy waits more than it works.
WINDOW_BYTES_MIN: Final = 1024 * 1024
WINDOW_BYTES_FIRST: Final = 2 * 1024 * 1024
WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
#: Answers are late when they take this many times as long as the fastest, and at least this long.
_LATE_FACTOR: Final = 4.0
_LATE_SECONDS_MIN: Final = 0.05
#: The fastest answer is forgotten slowly: a bookie that is busier for good is not late for ever.
_FORGET: Final = 1.03
#: One shrinking per so many seconds: answers that were under way already say nothing new.
_SHRINK_SECONDS: Final = 0.1
#: A clock that is asked to move by less may not move at all, and a wait would be for ever.
_WAIT_SECONDS_MIN: Final = 1e-6


class Pace:
    """The window of one target."""

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES_FIRST
        self.in_flight_bytes = 0
        self._fastest_seconds: float | None = None
        self._shrunk_at = float("-inf")

    def has_room(self, size: int) -> bool:
        """One piece may always be on its way, whatever its size."""
        return self.in_flight_bytes == 0 or self.in_flight_bytes + size <= self.window_bytes

    def sent(self, size: int) -> None:
        self.in_flight_bytes += size

    def answered(self, size: int, *, seconds: float, now: float) -> None:
        self.forgotten(size)
        fastest = self._fastest_seconds
        fastest = seconds if fastest is None else min(seconds, fastest * _FORGET)
        self._fastest_seconds = fastest
        if seconds > max(_LATE_SECONDS_MIN, _LATE_FACTOR * fastest):
            if now - self._shrunk_at >= _SHRINK_SECONDS:
                self._shrunk_at = now
                self.window_bytes = max(WINDOW_BYTES_MIN, self.window_bytes * 3 // 4)
        else:
            self.window_bytes = min(WINDOW_BYTES_MAX, self.window_bytes + size // 4)

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
