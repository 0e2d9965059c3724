"""How a writer behaves, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto


class ChangeMode(Enum):
    """When a failed bookie is replaced."""

    IMMEDIATE = auto()  # at the first failure of a batch that has no quorum yet
    DELAYED = auto()  # when a quorum is out of reach, or a bookie is read-only
    DISABLED = auto()  # never: the same bookies are asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class StormLimits:
    """How many rounds of ensemble changes a handle may spend, and how it slows down.

    A bookie that dies costs one round and no delay, two cost two. Each further round within
    `window_seconds` waits, twice as long as the one before; at `rounds_max` the handle gives up,
    rather than fill the record with fragments.
    """

    window_seconds: float = 60.0
    rounds_free: int = 2
    rounds_max: int = 16
    first_seconds: float = 0.1
    seconds_max: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    change_mode: ChangeMode = ChangeMode.IMMEDIATE
    #: Bookies may acknowledge before they sync; then only `force` moves the LAC.
    deferred_sync: bool = False
    #: An ack quorum counts only if the placement policy finds it spread over fault domains.
    acks_across_domains: bool = False
    #: An add without an ack quorum after this long ends the handle. None: it waits for ever.
    quorum_timeout_seconds: float | None = None
    #: The LAC goes out by itself after so long without an add, and at once for an add that came
    #: after such a silence. None: only with entries.
    lac_idle_seconds: float | None = 0.010
    #: Above either, callers wait.
    queue_bytes_max: int = 32 * 1024 * 1024
    queue_entries_max: int = 100_000
    storm: StormLimits = field(default_factory=StormLimits)
