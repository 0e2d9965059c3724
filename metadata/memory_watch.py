"""A watch on a tree of memory."""

from __future__ import annotations

import math

import trio

from metadata.store import WatchEvent


class MemoryWatch:
    """Fires once; may let its waiters know late, which is how a slow network looks."""

    def __init__(self, events: frozenset[WatchEvent]) -> None:
        self.late_seconds = 0.0
        self._events = events
        self._fired = trio.Event()
        self._due = trio.Event()
        self._due_at = 0.0
        self._event: WatchEvent | None = None

    def is_about(self, event: WatchEvent) -> bool:
        return event in self._events

    @property
    def event(self) -> WatchEvent | None:
        return self._event if self._fired.is_set() and self._is_due() else None

    def fire(self, event: WatchEvent) -> None:
        self._event = event
        self._fired.set()
        if self.late_seconds > 0:
            self._due_at = trio.current_time() + self.late_seconds
        else:
            self._due.set()

    def lose(self) -> None:
        """The session is gone: what was still under way will not arrive any more."""
        if self.event is None:
            self._event = WatchEvent.SESSION_LOST
            self._fired.set()
            self._due.set()

    async def wait(self) -> WatchEvent:
        await self._fired.wait()
        with trio.move_on_at(self._due_at if not self._due.is_set() else math.inf):
            await self._due.wait()
        assert self._event is not None
        return self._event

    def _is_due(self) -> bool:
        return self._due.is_set() or trio.current_time() >= self._due_at
