"""The newest of a row of values, for tasks that care about what is, not about what was."""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Latest(Generic[T]):
    """One task puts values in; any number wait for one they have not seen.

    A slow waiter misses values in between, and never the last one. Nothing is queued, so there is
    nothing to bound.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = trio.Event()

    @property
    def value(self) -> T:
        return self._value

    def put(self, value: T) -> None:
        self._value = value
        self._changed.set()
        self._changed = trio.Event()

    async def wait_other_than(self, seen: T) -> T:
        """The present value, as soon as it is another object than `seen`."""
        while self._value is seen:
            await self._changed.wait()
        return self._value
