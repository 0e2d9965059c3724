"""What the room on the disks allows, judged afresh each time."""

from __future__ import annotations

import pytest

from bookie.core.disk_space import DiskSpaceError, Level, Space, Thresholds, judge

LIMITS = Thresholds(priority_bytes=2)


def space(used: int) -> Space:
    return Space(100, 100 - used)


@pytest.mark.parametrize(
    ("used", "level", "stops", "goes_on"),
    [
        (50, Level.NORMAL, False, False),
        (84, Level.NORMAL, False, False),
        (86, Level.NORMAL, False, True),
        (91, Level.WARN, False, True),
        (96, Level.FULL, True, True),
        (100, Level.FULL, True, True),
    ],
)
def test_level_and_hysteresis(used: int, level: Level, stops: bool, goes_on: bool) -> None:
    verdict = judge({"a": space(used)}, LIMITS, read_only=False)
    assert (verdict.level, verdict.read_only) == (level, stops)
    assert judge({"a": space(used)}, LIMITS, read_only=True).read_only is goes_on


def test_fullest_disk_decides_and_is_named() -> None:
    verdict = judge({"a": space(10), "b": space(97), "c": space(50)}, LIMITS, read_only=False)
    assert verdict.level is Level.FULL
    assert verdict.reason.startswith("b is 97.0% full")


def test_priority_adds_need_room_on_every_disk() -> None:
    assert judge({"a": space(97)}, LIMITS, read_only=True).accepts_priority
    assert not judge({"a": space(97), "b": space(98)}, LIMITS, read_only=True).accepts_priority


def test_disk_without_a_size_counts_as_full() -> None:
    assert judge({"a": Space(0, 0)}, LIMITS, read_only=False).level is Level.FULL


@pytest.mark.parametrize("limits", [(0.9, 0.9, 0.8), (0.0, 0.9, 0.95), (0.8, 0.96, 0.95)])
def test_thresholds_that_contradict_each_other_are_refused(
    limits: tuple[float, float, float],
) -> None:
    low, warn, full = limits
    with pytest.raises(DiskSpaceError, match="diskUsage"):
        Thresholds(low_water=low, warn=warn, full=full)
