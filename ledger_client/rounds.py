"""One task for all owners whose work is a call: it makes the rounds of those who were woken.

A writer with a task of its own costs several kilobytes, and waking it ten microseconds: nothing
beside a batch of a thousand entries, and much beside the one entry that each of thousands of
ledgers gets in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from ledger_client.requests import Answer, Letters

#: After so many calls others have their turn: connections, callers.
_AT_ONCE: Final = 64


class Rounds:
    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()
        self._is_due = trio.Event()

    def call(self, work: Callable[[], None]) -> None:
        """Call this soon."""
        self._due.append(work)
        self._is_due.set()

    async def run(self) -> None:
        due = self._due
        while True:
            await self._is_due.wait()
            self._is_due = trio.Event()
            while due:
                for _ in range(min(len(due), _AT_ONCE)):
                    due.popleft()()
                await trio.lowlevel.checkpoint()


class Desk(Letters):
    """Where the answers for an owner wait that is called, however many there are, once."""

    def __init__(self, rounds: Rounds, work: Callable[[], None]) -> None:
        """`work` begins with `collect`."""
        super().__init__()
        self._rounds = rounds
        self._work = work
        self._is_due = False

    def wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._rounds.call(self._work)

    def collect(self) -> list[Answer]:
        """Everything that arrived."""
        self._is_due = False
        return self._taken()

    def leave(self) -> None:
        """The owner is over, and calls it no more: it must not wait for Python's collector."""
        self._work = _nothing


def _nothing() -> None:
    """What is left to do for an owner that is over."""
