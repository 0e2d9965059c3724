"""Which logs are compacted, when, and how fast."""

from __future__ import annotations

import pytest

from bookie.core.compaction import (
    Budget,
    CompactionError,
    JournalWatch,
    Kind,
    LogUse,
    Rules,
    Schedule,
    choose,
)


def test_emptiest_logs_below_the_threshold_come_first() -> None:
    logs = [LogUse(1, 100, 60), LogUse(2, 100, 10), LogUse(3, 100, 0), LogUse(4, 100, 49)]
    assert [log.log_id for log in choose(logs, threshold=0.5)] == [3, 2, 4]
    assert [log.log_id for log in choose(logs, threshold=0.2)] == [3, 2]
    assert choose([LogUse(1, 0, 0)], threshold=0.1) == [LogUse(1, 0, 0)]


def test_schedule_begins_rounds_when_they_are_due() -> None:
    schedule = Schedule(Rules(), now=1000.0)
    assert schedule.due(1000.0 + 3599, is_tight=False) is None
    assert schedule.due(1000.0 + 3600, is_tight=False) is Kind.MINOR
    schedule.began(Kind.MINOR, 4600.0)
    assert schedule.due(4700.0, is_tight=False) is None
    assert schedule.due(1000.0 + 86400, is_tight=False) is Kind.MAJOR
    schedule.began(Kind.MAJOR, 87400.0)
    assert schedule.due(87400.0 + 3599, is_tight=False) is None


def test_tight_disk_makes_a_round_due_at_once_and_then_every_minute() -> None:
    schedule = Schedule(Rules(), now=0.0)
    assert schedule.due(1.0, is_tight=True) is Kind.EAGER
    schedule.began(Kind.EAGER, 1.0)
    assert schedule.due(60.0, is_tight=True) is None
    assert schedule.due(61.0, is_tight=True) is Kind.EAGER
    assert schedule.due(86400.0, is_tight=False) is Kind.MINOR


def test_suspended_rounds_are_not_due() -> None:
    schedule = Schedule(Rules(), now=0.0)
    schedule.suspended.add(Kind.MAJOR)
    assert schedule.due(1e6, is_tight=True) is Kind.MINOR
    schedule.suspended.add(Kind.MINOR)
    assert schedule.due(1e6, is_tight=True) is None
    schedule.suspended.clear()
    assert schedule.due(1e6, is_tight=True) is Kind.EAGER


@pytest.mark.parametrize("rules", [Rules(minor_seconds=0), Rules(minor_threshold=0)])
def test_rule_of_zero_means_never(rules: Rules) -> None:
    assert Schedule(rules, now=0.0).due(80000.0, is_tight=False) is None


def test_rules_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(CompactionError, match="minorCompactionThreshold"):
        Rules(minor_threshold=0.6, major_threshold=0.5)
    with pytest.raises(CompactionError, match="majorCompactionThreshold is 1"):
        Rules(major_threshold=1.0)
    assert Rules(major_threshold=0.9).threshold(Kind.EAGER) == 0.9
    assert Rules().threshold(Kind.EAGER) == 0.8


def test_budget_lets_a_burst_pass_and_then_holds_the_rate() -> None:
    budget = Budget(bytes_per_second=1000, now=0.0)
    assert budget.charge(250, 0.0) == 0.0
    assert budget.charge(500, 0.0) == pytest.approx(0.5)
    assert budget.charge(0, 0.5) == pytest.approx(0.0)
    assert budget.charge(100, 0.5) == pytest.approx(0.1)
    assert budget.charge(250, 100.0) == 0.0, "a long rest earns one burst, not more"
    assert budget.charge(100, 100.0) == pytest.approx(0.1)


def test_budget_passes_one_large_run_on_credit() -> None:
    budget = Budget(bytes_per_second=1000, now=0.0)
    assert budget.charge(10_250, 0.0) == pytest.approx(10.0)
    assert budget.charge(0, 4.0) == pytest.approx(6.0)


def test_budget_without_a_rate_never_waits() -> None:
    assert Budget(bytes_per_second=0, now=0.0).charge(1 << 40, 0.0) == 0.0


def test_clock_that_goes_back_earns_nothing() -> None:
    budget = Budget(bytes_per_second=1000, now=10.0)
    assert budget.charge(1250, 10.0) == pytest.approx(1.0)
    assert budget.charge(0, 5.0) == pytest.approx(1.0)
    assert budget.charge(0, 10.5) == pytest.approx(0.5)


def is_slow_a_second_later(watch: JournalWatch) -> bool:
    watch.tick()
    return watch.is_slow


def test_journal_is_slow_when_more_than_one_write_in_a_hundred_is() -> None:
    watch = JournalWatch(0.05)
    for _ in range(99):
        watch.note(0.05)
    watch.note(0.06)
    assert not is_slow_a_second_later(watch)
    watch.note(0.06)
    assert is_slow_a_second_later(watch)
    later = [is_slow_a_second_later(watch) for _ in range(10)]
    assert not later[-1], "what was long ago does not count"


def test_without_a_limit_no_journal_is_slow() -> None:
    watch = JournalWatch(0.0)
    watch.note(1000.0)
    assert not is_slow_a_second_later(watch)
