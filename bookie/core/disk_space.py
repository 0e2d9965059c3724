"""What the free space of the disks allows. Computed afresh from what is measured, every time.

A state machine that reacts to transitions gets stuck when it misses one; this one cannot. The only
memory is whether the bookie is read-only now, which gives the hysteresis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from wire.errors import LedgerError


class Level(Enum):
    NORMAL = "normal"
    WARN = "warn"  # collect garbage now, compact eagerly
    FULL = "full"  # take no new entries


class DiskSpaceError(LedgerError):
    """Thresholds that contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Fractions of a disk in use."""

    low_water: float = 0.85  # a read-only bookie becomes writable again below this
    warn: float = 0.90
    full: float = 0.95
    priority_bytes: int = 1280 * 1024 * 1024  # recovery adds are taken while more than this is free

    def __post_init__(self) -> None:
        if not 0 < self.low_water <= self.full <= 1:
            raise DiskSpaceError(
                f"disk thresholds: want 0 < diskUsageLwmThreshold ({self.low_water}) <= "
                f"diskUsageThreshold ({self.full}) <= 1"
            )
        if not 0 < self.warn <= self.full:
            raise DiskSpaceError(
                f"disk thresholds: want 0 < diskUsageWarnThreshold ({self.warn}) <= "
                f"diskUsageThreshold ({self.full})"
            )


@dataclass(frozen=True, slots=True)
class Space:
    total_bytes: int
    free_bytes: int

    @property
    def used(self) -> float:
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    level: Level
    read_only: bool
    accepts_priority: bool  # recovery adds, also while read-only
    reason: str  # names the fullest disk; for logs and status pages


def judge(spaces: Mapping[str, Space], thresholds: Thresholds, *, read_only: bool) -> Verdict:
    """Judge all disks together: the fullest one decides.

    A ledger stays in the directory that it began in, so one full directory already means that some
    ledgers cannot grow; and a full journal disk stops everything.

    `read_only` is what this function said last time, and nothing else: whoever has other reasons
    for being read-only would otherwise stay so until the disks are below the low-water mark.
    """
    assert spaces, "a bookie has disks"
    path, space = max(spaces.items(), key=lambda item: item[1].used)
    limit = thresholds.low_water if read_only else thresholds.full
    must_stop = space.used >= limit
    if space.used >= thresholds.full:
        level = Level.FULL
    elif space.used >= thresholds.warn:
        level = Level.WARN
    else:
        level = Level.NORMAL
    return Verdict(
        level=level,
        read_only=must_stop,
        accepts_priority=all(s.free_bytes > thresholds.priority_bytes for s in spaces.values()),
        reason=f"{path} is {space.used:.1%} full, {space.free_bytes} bytes free",
    )
