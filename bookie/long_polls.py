"""Reads that wait: parked by ledger until its LAC rises, it is fenced or dropped, or time is up.

A poll that times out is answered like any other, with the LAC unchanged: that is no error. The
engine tells of news in the middle of its own work, so nothing is answered from there: the ledger
is noted, and one task answers everything that is due.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import trio

from bookie.core.ledger import Ledger
from bookie.operations import Operations, Reply
from wire.errors import Status
from wire.messages import ReadRequest, ReadResponse
from wire.types import LAST_ENTRY, NO_ENTRY

if TYPE_CHECKING:
    from bookie.answers import Post

#: More waiting reads than this are refused.
POLLS_MAX: Final = 50_000
#: "No news" may always come early, so nobody needs to be believed that wants to wait for days.
WAIT_SECONDS_MAX: Final = 60.0


class _Poll:
    __slots__ = ("done", "key", "ledger", "owner", "reply", "request", "since", "was_fenced")

    def __init__(
        self, request: ReadRequest, reply: Reply, ledger: Ledger, owner: object, since: float
    ) -> None:
        self.request = request
        self.reply = reply
        self.ledger = ledger
        self.owner = owner
        self.since = since
        self.was_fenced = ledger.fenced
        self.done = False

    @property
    def is_due(self) -> bool:
        """Whether the ledger has what this one waits for. Only the moment of fencing counts."""
        ledger = self.ledger
        assert self.request.previous_lac is not None
        return (
            ledger.lac > self.request.previous_lac
            or ledger.fenced != self.was_fenced
            or not ledger.exists
        )


class LongPolls:
    """Owned by the event loop. `run` is a task of the bookie."""

    def __init__(
        self,
        operations: Operations,
        post: Post,
        *,
        clock: Callable[[], float] = trio.current_time,
        now_ms: Callable[[], int],
        on_waited: Callable[[float], None] = lambda seconds: None,
        polls_max: int = POLLS_MAX,
    ) -> None:
        self._operations = operations
        self._post = post
        self._clock = clock
        self._now_ms = now_ms
        self._on_waited = on_waited
        self._polls_max = polls_max
        self._by_ledger: dict[int, list[_Poll]] = {}
        self._deadlines: list[tuple[float, int, _Poll]] = []
        self._numbers = count()
        self._news: dict[int, Ledger] = {}
        self._wake = trio.Event()
        self.waiting = 0

    def on_news(self, ledger: Ledger) -> None:
        """For the engine: something changed that somebody may wait for."""
        self._news[ledger.id] = ledger
        self._wake.set()

    def poll(self, request: ReadRequest, reply: Reply, owner: object) -> None:
        """Answer when there is news, or at once if there is, or if nobody is to wait."""
        if request.piggyback and request.entry_id != LAST_ENTRY:
            reply(_answer(request, Status.BAD_REQUEST))
            return
        if request.ledger_id < 0:
            reply(_answer(request, Status.NO_LEDGER))
            return
        ledger = self._operations.guarded(
            partial(self._operations.engine.ledger, request.ledger_id)
        )
        if isinstance(ledger, Status):
            reply(_answer(request, ledger))
        elif not ledger.exists:
            reply(_answer(request, Status.NO_LEDGER))
        elif (request.timeout_ms or 0) <= 0:
            self._finish(request, reply, by_lac=False)
        else:
            self._operations.lac(
                request.ledger_id, partial(self._park, request, reply, ledger, owner)
            )

    def forget(self, owner: object) -> None:
        """The connection is gone: nobody waits for its polls any more."""
        mine = [poll for polls in self._by_ledger.values() for poll in polls if poll.owner is owner]
        for poll in mine:
            self._remove(poll)

    def answer_all(self, owner: object | None = None) -> None:
        """Answer as if the time were up, for a bookie or a connection that stops."""
        for polls in list(self._by_ledger.values()):
            for poll in list(polls):
                if owner is None or poll.owner is owner:
                    self._release(poll, by_lac=False)

    async def run(self) -> None:
        while True:
            deadline = self._deadlines[0][0] if self._deadlines else float("inf")
            with trio.move_on_at(deadline):
                await self._wake.wait()
            self._wake = trio.Event()
            self._answer_due()
            self._post.flush()

    def _park(
        self, request: ReadRequest, reply: Reply, ledger: Ledger, owner: object, lac: int | Status
    ) -> None:
        assert request.previous_lac is not None
        assert request.timeout_ms is not None
        if isinstance(lac, int) and lac > request.previous_lac:
            self._finish(request, reply, by_lac=False)
            return
        if self.waiting >= self._polls_max:
            reply(_answer(request, Status.TOO_MANY_REQUESTS))
            return
        now = self._clock()
        poll = _Poll(request, reply, ledger, owner, now)
        ledger.waiters += 1
        self.waiting += 1
        self._by_ledger.setdefault(ledger.id, []).append(poll)
        deadline = now + min(request.timeout_ms / 1000, WAIT_SECONDS_MAX)
        heapq.heappush(self._deadlines, (deadline, next(self._numbers), poll))
        if self._deadlines[0][2] is poll:
            self._wake.set()  # the task sleeps until a later time

    def _answer_due(self) -> None:
        news, self._news = self._news, {}
        for ledger_id, ledger in news.items():
            for poll in list(self._by_ledger.get(ledger_id, ())):
                if poll.ledger is not ledger or poll.is_due:
                    assert poll.request.previous_lac is not None
                    by_lac = poll.ledger.lac > poll.request.previous_lac
                    self._release(poll, by_lac=by_lac)
        now = self._clock()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].done):
            poll = heapq.heappop(self._deadlines)[2]
            if not poll.done:
                self._release(poll, by_lac=False)

    def _release(self, poll: _Poll, *, by_lac: bool) -> None:
        self._remove(poll)
        self._on_waited(self._clock() - poll.since)
        self._finish(poll.request, poll.reply, by_lac=by_lac)

    def _remove(self, poll: _Poll) -> None:
        poll.done = True
        poll.ledger.waiters -= 1
        self.waiting -= 1
        polls = self._by_ledger[poll.ledger.id]
        polls.remove(poll)
        if not polls:
            del self._by_ledger[poll.ledger.id]

    def _finish(self, request: ReadRequest, reply: Reply, *, by_lac: bool) -> None:
        """Read what was asked for, now that the waiting is over."""
        if not request.piggyback:
            self._operations.read(request, reply, with_lac=True)
            return
        update_ms = self._now_ms() if by_lac else None
        self._operations.lac(request.ledger_id, partial(self._deliver, request, reply, update_ms))

    def _deliver(
        self, request: ReadRequest, reply: Reply, update_ms: int | None, lac: int | Status
    ) -> None:
        """Entry `previous_lac + 1`, if it is confirmed and here; in any case the LAC."""
        assert request.previous_lac is not None
        if isinstance(lac, Status):
            reply(_answer(request, lac))
            return
        if lac <= request.previous_lac:
            self._deliver_nothing(request, reply, lac)
            return
        following = request.previous_lac + 1

        def answer(found: bytes | Status) -> None:
            if isinstance(found, bytes):
                reply(
                    ReadResponse(
                        status=Status.OK,
                        ledger_id=request.ledger_id,
                        entry_id=following,
                        body=found,
                        max_lac=lac,
                        lac_update_ms=update_ms,
                    )
                )
            elif found is Status.NO_ENTRY:  # striped to other bookies
                reply(_answer(request, Status.OK, lac))
            else:
                reply(_answer(request, found))

        if following < 0:
            self._deliver_nothing(request, reply, lac)
        else:
            self._operations.warm(
                partial(self._operations.engine.read, request.ledger_id, following), answer
            )

    def _deliver_nothing(self, request: ReadRequest, reply: Reply, lac: int) -> None:
        def answer(last: int | Status) -> None:
            if isinstance(last, Status):
                reply(_answer(request, last))
            elif lac == NO_ENTRY and last == NO_ENTRY:
                reply(_answer(request, Status.NO_ENTRY))
            else:
                reply(_answer(request, Status.OK, lac))

        engine = self._operations.engine
        ledger = self._operations.guarded(partial(engine.ledger, request.ledger_id))
        if isinstance(ledger, Status):
            answer(ledger)
        elif ledger.limbo:
            answer(Status.UNKNOWN_LEDGER_STATE)
        elif not ledger.exists:
            answer(Status.NO_LEDGER)
        else:
            answer(self._operations.guarded(partial(engine.reads.last_entry, ledger)))


def _answer(request: ReadRequest, status: Status, max_lac: int | None = None) -> ReadResponse:
    return ReadResponse(
        status=status, ledger_id=request.ledger_id, entry_id=request.entry_id, max_lac=max_lac
    )
