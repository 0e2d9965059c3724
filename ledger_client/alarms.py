"""Waking owners when they want to look again: one task and one sleep for all of them.

With a deadline of its own every wait costs a cancel scope. That is nothing beside a batch of a
thousand entries, and much beside the one entry that each of thousands of ledgers gets in turn.

What rings is mostly the LAC of a writer that went idle, which is three requests: as much as an
entry. So alarms have a budget, and when thousands of ledgers are written now and then, those that
were set first ring first, late, and most of them for the entries of several rounds.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import Final

import trio

from ledger_client.requests import Letters

#: Alarms so close to each other ring together.
_TOGETHER_SECONDS: Final = 0.002
#: So many ring per second, after so many at once.
RINGS_PER_SECOND: Final = 500
RINGS_AT_ONCE: Final = 500
#: Later ones are looked at early, and set again: of those that an earlier one has overtaken no more
#: are kept than belong to a second.
_AHEAD_SECONDS: Final = 1.0


class Alarms:
    def __init__(self) -> None:
        self._set: list[tuple[float, int, Letters]] = []
        self._order = count()
        self._sleeps_until = math.inf
        self._is_earlier = trio.Event()
        self._budget = float(RINGS_AT_ONCE)
        self._budget_at = -math.inf

    @property
    def kept(self) -> int:
        """How many there are, with those that an earlier one has overtaken."""
        return len(self._set)

    def wake_at(self, mail: Letters, moment: float) -> None:
        """Wake its owner then, and not at the moment of an earlier call any more.

        A writer puts its alarm off with every entry: that is looked at when it would ring.
        """
        mail.wanted_at = moment
        if mail.alarm_at <= moment:
            return
        if moment > self._budget_at + _AHEAD_SECONDS:  # which was a moment ago: mostly that will do
            moment = min(moment, trio.current_time() + _AHEAD_SECONDS)
            if mail.alarm_at <= moment:
                return
        mail.alarm_at = moment
        heappush(self._set, (moment, next(self._order), mail))
        if moment < self._sleeps_until:
            self._is_earlier.set()

    async def run(self) -> None:
        while True:
            now = trio.current_time()
            self._ring(now)
            self._sleeps_until = math.inf
            if self._set:
                self._sleeps_until = max(self._set[0][0], now + _TOGETHER_SECONDS)
            with trio.move_on_at(self._sleeps_until):
                await self._is_earlier.wait()
            self._is_earlier = trio.Event()

    def _ring(self, now: float) -> None:
        earned = (now - self._budget_at) * RINGS_PER_SECOND
        self._budget, self._budget_at = min(RINGS_AT_ONCE, self._budget + earned), now
        while self._set and self._set[0][0] <= now and self._budget >= 1:
            moment, _, mail = heappop(self._set)
            if moment != mail.alarm_at:  # an earlier one has overtaken it
                continue
            mail.alarm_at = math.inf
            if mail.wanted_at > now:
                self.wake_at(mail, mail.wanted_at)
            else:
                self._budget -= 1
                mail.ring()
