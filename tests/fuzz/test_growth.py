"""What counts as a leak."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.growth import SAMPLES_MAX, LeakError, MemoryLog, resident_mib


def log_of(*mib: float) -> MemoryLog:
    log = MemoryLog()
    for number, value in enumerate(mib):
        log.note(number * 1000, value)
    return log


def test_memory_that_swings_is_no_leak() -> None:
    chance = random.Random(1)
    log_of(*(100 + chance.uniform(-30, 30) for _ in range(1000))).check()


def test_memory_that_fills_a_cache_at_the_beginning_is_no_leak() -> None:
    log_of(*(min(200, 50 + 2 * number) for number in range(1000))).check()


def test_memory_that_grows_to_the_end_is_a_leak_of_so_many_bytes_for_each_frame() -> None:
    log = log_of(*(50 + number * 0.1 for number in range(1000)))
    with pytest.raises(LeakError, match=r"82 MiB in the first .* 127 .* 105 bytes for each frame$"):
        log.check()


def test_a_short_run_has_something_to_compare() -> None:
    log_of(50.0).check()
    log_of(50.0, 52.0).check()


def test_many_looks_are_thinned_out_and_still_find_a_leak() -> None:
    log = log_of(*(50 + number * 0.001 for number in range(100_000)))
    assert len(log.samples) < SAMPLES_MAX
    assert log.samples[-1][0] >= 99_000_000
    with pytest.raises(LeakError):
        log.check()


def test_memory_is_that_of_the_process() -> None:
    assert 5 < resident_mib() < 4096
