"""What is asked of one bookie, and how it ended.

A request is known by its number, which is the number that the cores use: one counter serves all
handles of a client, so a number is never met twice on a connection. Ends are handed over by the
receive buffer: a sink gets all answers of one in one call, stores them and wakes its owner. It
must not ask anything itself, since it is called from inside a connection.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import trio

from ledger_client.core.commands import Outcome
from wire.batch import RECORD_HEAD_BYTES, split_records
from wire.messages import Request as Message
from wire.scan_v2 import ADD_ENTRY_OFFSET
from wire.types import Flag, LedgerId

REQUEST_SECONDS: Final = 5.0
#: Fewer entries go one by one: bookies take adds of many ledgers together, batches one by one.
BATCH_ENTRIES_MIN: Final = 4

_DEFERRED: Final = int(Flag.DEFERRED_SYNC)


class Answer(NamedTuple):
    """The end of a request. What `content` is depends on the request and comes with OK only.

    For adds: the entries of a partial answer, None for all. For reads: `FoundEntries`, also with
    another outcome, which is then that of the entry behind them. For fences: `FoundSingly` with
    every entry, whatever the outcome, if the bookie answered. For questions: the response.
    """

    request_id: int
    outcome: Outcome
    content: object = None


class FoundEntries(NamedTuple):
    """Entries in one buffer, not verified yet: entry `i` is `data[bounds[i] + skip : bounds[i+1]]`.

    They are those that were asked for, from the first on and without gaps.
    """

    data: bytes
    bounds: Sequence[int]
    skip: int

    @property
    def entries(self) -> int:
        return len(self.bounds) - 1


#: Entry to how it was answered, and what it is, not verified yet.
FoundSingly: TypeAlias = dict[int, tuple[Outcome, bytes]]

NOTHING_FOUND: Final = FoundEntries(b"", (0,), 0)

Sink: TypeAlias = Callable[[list[Answer]], None]


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    request_id: int
    sink: Sink
    seconds: float = REQUEST_SECONDS
    #: Counted from when its last byte left this process: a queue of our own is no bookie's fault.
    deadline: float = math.inf
    is_over: bool = False
    #: It leaves together with others, at the end of the moment, however few they are.
    can_wait: bool = False
    #: What it holds of the connection's bounds on bytes and on adds without an answer.
    held_bytes: int = 0
    held_adds: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Adds(Request):
    """Entries of one ledger: records (`u32 size | entry`), or v2 frames that say the same.

    Every bookie of an ensemble gets the same bytes. One that takes the other form is served from
    the one that is there.
    """

    ledger_id: LedgerId
    entry_ids: Sequence[int]
    records: bytes = b""
    frames: bytes = b""
    master_key: bytes = field(repr=False)
    flags: int = 0  # a plain one: operations of an enum take a microsecond
    left: int = 0  # answers still to come, where each entry is answered by itself

    def entries(self) -> list[bytes]:
        """The entries, cut out of whatever they are in."""
        data, skip = self.records, RECORD_HEAD_BYTES
        if not data:
            data, skip = self.frames, ADD_ENTRY_OFFSET
        bounds = split_records(data, 0, len(data))
        return [data[start + skip : end] for start, end in pairwise(bounds)]

    @property
    def is_deferred(self) -> bool:
        """Whether it must travel on the connection that a later force takes."""
        return self.flags & _DEFERRED != 0


@dataclass(slots=True, eq=False, kw_only=True)
class Reads(Request):
    """Entries of one ledger, up to the first that is not found."""

    ledger_id: LedgerId
    entry_ids: range
    bytes_max: int
    #: The bookie may let others go first.
    is_scan: bool = False
    #: What came so far, where each entry is answered by itself.
    found: FoundSingly = field(default_factory=dict)


@dataclass(slots=True, eq=False, kw_only=True)
class FenceReads(Request):
    """Entries of one ledger, each of which fences it. The outcome is that of the first error."""

    ledger_id: LedgerId
    entry_ids: Sequence[int]
    master_key: bytes = field(repr=False)
    found: FoundSingly = field(default_factory=dict)


@dataclass(slots=True, eq=False, kw_only=True)
class Question(Request):
    """Anything that only v3 can say."""

    message: Message


class Letters(ABC):
    """Answers for one owner, who is told that there are some."""

    def __init__(self) -> None:
        self.wanted_at = math.inf  # when the owner wants to be woken
        self.alarm_at = math.inf  # when `Alarms` looks at that
        self._has_rung = False
        self._answers: list[Answer] = []

    @abstractmethod
    def wake(self) -> None:
        """Have the owner look."""

    def take(self, answers: list[Answer]) -> None:
        self._answers += answers
        self.wake()

    def keep(self, answers: list[Answer]) -> int:
        """Leave answers for when the owner looks anyway; how many there are now."""
        self._answers += answers
        return len(self._answers)

    @property
    def has_answers(self) -> bool:
        return bool(self._answers)

    def ring(self) -> None:
        """The moment has come that the owner wanted to be woken at."""
        self._has_rung = True
        self.wake()

    def has_rung(self) -> bool:
        """Whether that is so since this was asked last."""
        has_rung, self._has_rung = self._has_rung, False
        return has_rung

    def _taken(self) -> list[Answer]:
        answers, self._answers = self._answers, []
        return answers


class Mailbox(Letters):
    """Where the answers for one task wait until it looks."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self._arrived = trio.Event()

    def wake(self) -> None:
        self._arrived.set()

    def close(self) -> None:
        """The client is going away: the owner is woken for the last time."""
        self.is_closed = True
        self.wake()

    async def wait(self, deadline: float | None = None) -> list[Answer]:
        """Everything that arrived; nothing if the deadline passed or somebody woke us first."""
        if deadline is None:
            await self._arrived.wait()
        else:
            with trio.move_on_at(deadline):
                await self._arrived.wait()
        self._arrived = trio.Event()
        return self._taken()
