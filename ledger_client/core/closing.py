"""How a writer's handle ends: one write of the record, never while another is on its way.

The end of a ledger is its LAC with the bytes up to it. The write happens once per handle, asked for
by the caller or by a fatal error; everybody who asks again gets the same answer. It waits for an
ensemble change that is on its way, so that one handle never races itself in the store.
"""

from __future__ import annotations

from enum import Enum, auto

from ledger_client.core.commands import CloseEnded, CloseLedger, Command, Failure
from wire.types import NO_ENTRY


class _Stage(Enum):
    OPEN = auto()
    FORCING = auto()  # deferred sync: what is confirmed must be durable first
    WAITING = auto()  # for an ensemble change
    RECORDING = auto()
    OVER = auto()


class Closing:
    def __init__(self) -> None:
        self._stage = _Stage.OPEN
        self._last = NO_ENTRY
        self._length = 0
        self._failure: Failure | None = None

    def force_first(self) -> None:
        assert self._stage is _Stage.OPEN
        self._stage = _Stage.FORCING

    def record(self, *, last: int, length: int, is_change_out: bool) -> list[Command]:
        """Write the end down, as soon as no ensemble change is on its way."""
        assert self._stage in (_Stage.OPEN, _Stage.FORCING)
        self._last, self._length = last, length
        self._stage = _Stage.WAITING
        return [] if is_change_out else self.on_change_over()

    def on_change_over(self) -> list[Command]:
        if self._stage is not _Stage.WAITING:
            return []
        self._stage = _Stage.RECORDING
        return [CloseLedger(self._last, self._length)]

    def leave(self, *, last: int, length: int, failure: Failure) -> None:
        """Do not write: the end of this ledger is for somebody else to find."""
        self._last, self._length, self._failure = last, length, failure
        self._stage = _Stage.OVER

    def end(self, failure: Failure | None) -> list[Command]:
        self._failure = failure
        self._stage = _Stage.OVER
        return self.again()

    def again(self) -> list[Command]:
        """The answer for one more caller, once there is one."""
        if self._stage is not _Stage.OVER:
            return []
        return [CloseEnded(self._last, self._length, self._failure)]
