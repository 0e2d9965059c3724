"""What the client remembers of its bookies, and what it says about it."""

from __future__ import annotations

import logging

import pytest

from ledger_client.core.commands import Outcome
from ledger_client.core.quarantine import QuarantineOptions
from ledger_client.health import GRUDGE_SECONDS, SLOW_SECONDS, BookieHealth, CorruptCopy
from wire.types import BookieId, LedgerId

B1, B2 = BookieId("b1"), BookieId("b2")
COPY = CorruptCopy(LedgerId(7), 3, B1)


def test_corrupt_copy_is_logged_once_and_counted_always(
    caplog: pytest.LogCaptureFixture,
) -> None:
    health = BookieHealth()
    with caplog.at_level(logging.WARNING):
        for now in (1.0, 2.0, 3.0):
            health.on_corruption(COPY, now)
    assert [record.getMessage() for record in caplog.records] == [
        "entry 3 of ledger 7 fails its digest on bookie b1: another copy is used; have the ledger "
        "checked and repaired"
    ]
    statistics = health.statistics(3.0, {})
    assert (statistics.corruptions, statistics.corrupt_copies) == (3, (COPY,))


def test_names_of_corrupt_copies_are_bounded() -> None:
    health = BookieHealth(QuarantineOptions(errors=10**9))
    for entry_id in range(1000):
        health.on_corruption(CorruptCopy(LedgerId(7), entry_id, B1), 0.0)
    statistics = health.statistics(0.0, {})
    assert (statistics.corruptions, len(statistics.corrupt_copies)) == (1000, 100)
    assert statistics.corrupt_copies[-1].entry_id == 999


def test_rotten_disk_leads_to_quarantine() -> None:
    health = BookieHealth(QuarantineOptions(errors=5))
    for _ in range(5):
        health.on_corruption(COPY, 0.0)
    assert health.quarantined(0.0) == {B1}


def test_slow_bookie_is_forgiven_after_a_while() -> None:
    health = BookieHealth()
    health.on_slow(B1, 0.0)
    assert health.for_reads(1.0, {B1: 4}).slow == {B1}
    assert health.for_reads(1.0, {B1: 4}).pending == {B1: 4}
    assert health.for_reads(SLOW_SECONDS, {}).slow == frozenset()


def test_failure_is_held_against_a_bookie_until_it_answers_or_time_passes() -> None:
    health = BookieHealth()
    health.on_unreachable(B1, 0.0)
    health.on_unreachable(B2, 0.0)
    health.on_answers(B2, [Outcome.NO_SUCH_ENTRY], 1.0)
    assert health.failing(1.0) == {B1: 0.0}
    assert health.failing(GRUDGE_SECONDS) == {}


@pytest.mark.parametrize(
    "outcome",
    [Outcome.OK, Outcome.NO_SUCH_LEDGER, Outcome.NO_SUCH_ENTRY, Outcome.FENCED, Outcome.READ_ONLY],
)
def test_answers_that_are_no_fault_of_the_bookie_do_not_count(outcome: Outcome) -> None:
    health = BookieHealth(QuarantineOptions(errors=1))
    health.on_answers(B1, [outcome] * 10, 0.0)
    assert health.quarantined(0.0) == frozenset()
    health.on_answers(B1, [outcome, Outcome.IO_ERROR], 0.0)
    assert health.quarantined(0.0) == {B1}


def test_timeouts_count() -> None:
    health = BookieHealth(QuarantineOptions(errors=2))
    health.on_timeouts(B1, 2, 0.0)
    assert health.quarantined(0.0) == {B1}
    assert health.failing(0.0) == {B1: 0.0}
