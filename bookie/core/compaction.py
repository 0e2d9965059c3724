"""Which entry logs to rewrite, when, and how fast. Emptiest first, within a budget of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from wire.errors import LedgerError


class CompactionError(LedgerError):
    """Rules of compaction that make no sense."""


class Kind(Enum):
    """What makes a round of compaction begin."""

    MINOR = "minor"  # often, and only logs that hold next to nothing
    MAJOR = "major"  # seldom, and logs that are half empty
    EAGER = "eager"  # a disk is getting full: anything that gives space back


@dataclass(frozen=True, slots=True)
class LogUse:
    """One sealed log: how much of it still lives."""

    log_id: int
    bytes: int
    live_bytes: int

    @property
    def share(self) -> float:
        return self.live_bytes / self.bytes if self.bytes else 0.0


def choose(logs: Iterable[LogUse], *, threshold: float) -> list[LogUse]:
    """Logs whose living share is below the threshold, the emptiest first.

    An empty log needs no rewriting: it is only removed, which costs nothing, so it comes first.
    """
    return sorted(
        (log for log in logs if log.share < threshold), key=lambda log: (log.share, log.log_id)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Below which living share a log is rewritten, and how often that is looked at.

    An interval or a threshold of zero, or below it, means never.
    """

    minor_threshold: float = 0.2
    minor_seconds: float = 3600.0
    major_threshold: float = 0.5
    major_seconds: float = 86400.0
    eager_threshold: float = 0.8
    eager_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, threshold in (
            ("minorCompactionThreshold", self.minor_threshold),
            ("majorCompactionThreshold", self.major_threshold),
        ):
            if threshold >= 1:
                raise CompactionError(f"{name} is {threshold}: want less than 1, or 0 for never")
        if self.major_threshold > 0 and self.minor_threshold > self.major_threshold:
            raise CompactionError(
                f"minorCompactionThreshold ({self.minor_threshold}) is above "
                f"majorCompactionThreshold ({self.major_threshold}): want it at or below"
            )

    def threshold(self, kind: Kind) -> float:
        if kind is Kind.MINOR:
            return self.minor_threshold
        # A disk that fills up must not be treated more gently than one that does not.
        eager = max(self.eager_threshold, self.major_threshold)
        return self.major_threshold if kind is Kind.MAJOR else eager

    def seconds(self, kind: Kind) -> float:
        return {
            Kind.MINOR: self.minor_seconds,
            Kind.MAJOR: self.major_seconds,
            Kind.EAGER: self.eager_seconds,
        }[kind]


class Schedule:
    """When which round is due. Time comes in as a number.

    A major round does all that a minor one would, so it counts as one. Rounds that operators
    suspended become due as soon as they are resumed.
    """

    def __init__(self, rules: Rules, *, now: float) -> None:
        self.rules = rules
        self.suspended: set[Kind] = set()
        self._last = dict.fromkeys(Kind, now)
        self._last[Kind.EAGER] = float("-inf")  # nothing to wait for when space gets short

    def due(self, now: float, *, is_tight: bool) -> Kind | None:
        """The round to begin now, the most thorough one first."""
        for kind in (Kind.EAGER, Kind.MAJOR, Kind.MINOR):
            if kind is Kind.EAGER and not is_tight:
                continue
            if self.allows(kind) and now - self._last[kind] >= self.rules.seconds(kind):
                return kind
        return None

    def allows(self, kind: Kind) -> bool:
        """Whether a round of this kind may run. Eager ones go by the rules for major ones."""
        asked = Kind.MAJOR if kind is Kind.EAGER else kind
        has_rule = self.rules.threshold(kind) > 0 and self.rules.seconds(kind) > 0
        return has_rule and asked not in self.suspended

    def began(self, kind: Kind, now: float) -> None:
        self._last[kind] = now
        if kind is not Kind.MINOR:
            self._last[Kind.MINOR] = now
        if kind is Kind.EAGER:
            self._last[Kind.MAJOR] = now


class JournalWatch:
    """Whether clients wait too long for the journal: its p99 of the last seconds against a limit.

    One write in a hundred above the limit is what "p99 above it" means, so two counts will do.
    A limit of zero means that no write is too slow.
    """

    def __init__(self, seconds_max: float, *, ticks: int = 10) -> None:
        self._seconds_max = seconds_max
        self._past: deque[tuple[int, int]] = deque(maxlen=ticks)  # writes and slow ones, by tick
        self._writes = self._slow = 0
        self.is_slow = False

    def note(self, seconds: float) -> None:
        """A block was written."""
        self._writes += 1
        self._slow += 0 < self._seconds_max < seconds

    def tick(self) -> None:
        """About a second has passed."""
        self._past.append((self._writes, self._slow))
        self._writes = self._slow = 0
        writes, slow = map(sum, zip(*self._past, strict=True))
        self.is_slow = slow * 100 > writes


class Budget:
    """A token bucket of bytes, charged for what is read and for what is written.

    Time comes in as a number, the answer is how long to wait. Debt is allowed, so that one large
    run passes; it is paid off before the next.
    """

    def __init__(self, *, bytes_per_second: float, now: float, burst_seconds: float = 0.25) -> None:
        self.bytes_per_second = bytes_per_second
        self._burst = bytes_per_second * burst_seconds
        self._level = self._burst
        self._at = now

    def charge(self, count: int, now: float) -> float:
        """Take `count` bytes; the seconds to wait before going on."""
        if self.bytes_per_second <= 0:
            return 0.0  # no limit
        earned = max(0.0, now - self._at) * self.bytes_per_second
        self._at = max(self._at, now)
        self._level = min(self._burst, self._level + earned) - count
        return -self._level / self.bytes_per_second if self._level < 0 else 0.0
