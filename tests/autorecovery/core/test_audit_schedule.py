"""The rhythm of checks, and the queue of recoveries that nobody finished."""

from __future__ import annotations

from autorecovery.core.audit_schedule import REMEMBERED_MAX, StaleRecoveries, seconds_until
from wire.types import LedgerId

ONE, TWO = LedgerId(1), LedgerId(2)


def test_a_check_that_never_ran_is_due_at_once() -> None:
    assert seconds_until(3600, None, 10_000) == 0


def test_a_check_is_due_an_interval_after_the_last() -> None:
    assert seconds_until(3600, 1_000_000, 1_000_000 + 600_000) == 3000
    assert seconds_until(3600, 1_000_000, 1_000_000 + 4_000_000) == 0


def test_a_check_that_is_off_is_never_due() -> None:
    assert seconds_until(0, None, 0) is None


def test_a_check_from_the_future_counts_as_just_made() -> None:
    """F61: somebody's clock is ahead of ours."""
    assert seconds_until(3600, 4_600_000, 1_000_000) == 3600


def test_a_check_from_beyond_the_next_one_counts_as_never_made() -> None:
    """F61: somebody's clock had jumped, and every look until then would find it just made."""
    assert seconds_until(3600, 4_600_001, 1_000_000) == 0


def test_a_recovery_is_stale_when_its_record_is_old_enough() -> None:
    stale = StaleRecoveries(100)
    stale.on_seen(ONE, 30, 1000)
    assert stale.next_due() == 1070
    assert stale.take_due(1069) is None
    assert stale.take_due(1070) == ONE


def test_an_old_recovery_is_stale_at_once() -> None:
    stale = StaleRecoveries(100)
    stale.on_seen(ONE, 5000, 1000)
    assert stale.take_due(1000) == ONE


def test_a_recovery_is_taken_once_until_it_fails() -> None:
    stale = StaleRecoveries(0)
    stale.on_seen(ONE, 0, 0)
    assert stale.take_due(0) == ONE
    assert stale.take_due(1e9) is None
    stale.on_failed(ONE, 10)
    assert stale.next_due() == 70
    assert stale.take_due(70) == ONE
    stale.on_failed(ONE, 100)
    assert stale.next_due() == 220


def test_the_pause_between_attempts_is_bounded() -> None:
    stale = StaleRecoveries(0)
    stale.on_seen(ONE, 0, 0)
    for _ in range(100):
        stale.on_failed(ONE, 0)
    due = stale.next_due()
    assert due is not None
    assert due <= 6 * 3600


def test_a_settled_recovery_is_forgotten() -> None:
    stale = StaleRecoveries(10)
    stale.on_seen(ONE, 0, 0)
    stale.on_seen(TWO, 0, 5)
    stale.on_settled(ONE)
    assert stale.next_due() == 15
    assert len(stale) == 1


def test_seeing_a_recovery_again_does_not_put_it_off() -> None:
    stale = StaleRecoveries(10)
    stale.on_seen(ONE, 0, 0)
    stale.on_seen(ONE, 0, 9)
    assert stale.next_due() == 10


def test_only_so_many_recoveries_are_remembered() -> None:
    stale = StaleRecoveries(10)
    for number in range(REMEMBERED_MAX + 5):
        stale.on_seen(LedgerId(number), 0, 0)
    assert len(stale) == REMEMBERED_MAX
