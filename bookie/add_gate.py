"""Holding back connections that add, while the journal or the write cache is full.

The bookie defends its memory by not reading sockets. Only connections that have sent adds are held
back: readers and fencing clients go on. What was received already when the gate closed stays with
its connection, unjudged; it is judged when it is admitted, because a fence may come in between.

Those who wait are let in one after the other, each when the one before has been admitted: waking
all of them at once would fill the cache far beyond its limit. Nobody waits for longer than a client
does: then its adds are refused, and it can go to another bookie.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio


class AddGate:
    def __init__(self, is_full: Callable[[], bool], patience_seconds: float) -> None:
        self._is_full = is_full
        self.patience_seconds = patience_seconds
        self._waiting: deque[trio.Event] = deque()
        self._turn: trio.Event | None = None  # of the one who was let in and is not through yet

    @property
    def is_closed(self) -> bool:
        """Whether an add must wait: there is no room, or others wait for it already."""
        return self._turn is not None or bool(self._waiting) or self._is_full()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def wait(self, deadline: float) -> bool:
        """Wait to be admitted; False when the deadline passed first.

        Whoever is admitted takes its adds to the engine without awaiting in between, and then
        calls `leave`.
        """
        mine = trio.Event()
        self._waiting.append(mine)
        try:
            with trio.move_on_at(deadline):
                await mine.wait()
        except trio.Cancelled:
            if mine.is_set():
                self.leave()  # somebody else takes the turn
            raise
        finally:
            if not mine.is_set():
                self._waiting.remove(mine)
        return mine.is_set()

    def leave(self) -> None:
        """Through: the next one may go."""
        self._turn = None
        self.admit_next()

    def admit_next(self) -> None:
        """Let the first of those who wait in, if there is room and nobody is on the way."""
        if self._waiting and self._turn is None and not self._is_full():
            self._turn = self._waiting.popleft()
            self._turn.set()
