"""Faults that a console can inflict: their names, and what the panel behind them offers.

Only whoever started the bookies can do this, so `quire up` has a panel and `quire console` none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from wire.errors import LedgerError
from wire.types import BookieId


class Fault(Enum):
    KILL = "kill"
    PAUSE = "pause"
    SLOW = "slow"
    FILL = "fill"
    PARTITION = "partition"
    RESUME = "resume"
    REVIVE = "revive"


class FaultRefusedError(LedgerError):
    """The fault was not inflicted; the message says why."""


class UnknownBookieError(FaultRefusedError):
    """No process of ours is this bookie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """A bookie as its parent sees it, and which buttons would do something now."""

    #: running, ended, starting, or the fault that is upon it: paused, slow, full, cut off
    state: str
    pid: int | None
    #: Every fault, with the reason why it cannot be had now; None if it can.
    buttons: Mapping[Fault, str | None]


class FaultPanel(Protocol):
    def states(self) -> Mapping[BookieId, ProcessState]: ...

    async def inflict(self, bookie_id: BookieId, fault: Fault) -> None:
        """Returns when it is done. FaultRefusedError if it was not."""
