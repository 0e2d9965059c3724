"""Who is sent to quarantine, for how long, and the ways out of it."""

from __future__ import annotations

from ledger_client.core.quarantine import Quarantine, QuarantineOptions
from wire.types import BookieId

B1, B2 = BookieId("b1"), BookieId("b2")
OPTIONS = QuarantineOptions(errors=10, window_seconds=60.0, seconds=1800.0, good_answers=5)


def quarantined(now: float = 0.0) -> Quarantine:
    quarantine = Quarantine(OPTIONS)
    assert quarantine.on_errors(B1, 10, now)
    assert quarantine.members(now) == {B1}
    return quarantine


def test_errors_within_one_window_fill_the_measure() -> None:
    quarantine = Quarantine(OPTIONS)
    assert not quarantine.on_errors(B1, 9, 0.0)
    assert not quarantine.on_errors(B2, 9, 0.0)
    assert quarantine.members(1.0) == frozenset()
    assert quarantine.on_errors(B1, 1, 59.0)
    assert quarantine.members(59.0) == {B1}


def test_errors_of_an_older_window_are_forgotten() -> None:
    quarantine = Quarantine(OPTIONS)
    for now in range(0, 600, 60):
        assert not quarantine.on_errors(B1, 9, float(now))
    assert quarantine.members(600.0) == frozenset()


def test_sentence_ends() -> None:
    quarantine = quarantined()
    assert quarantine.members(1799.0) == {B1}
    assert quarantine.members(1800.0) == frozenset()
    assert not quarantine.on_errors(B1, 9, 1801.0), "it begins with a clean record"


def test_more_errors_renew_the_sentence_without_being_news() -> None:
    quarantine = quarantined()
    assert not quarantine.on_errors(B1, 10, 30.0)
    assert quarantine.members(1800.0) == {B1}
    assert quarantine.members(1830.0) == frozenset()


def test_good_answers_in_a_row_end_it_early() -> None:
    quarantine = quarantined()
    assert not quarantine.on_good(B1, 4)
    quarantine.on_errors(B1, 1, 100.0)  # the row is broken
    assert not quarantine.on_good(B1, 4)
    assert quarantine.members(100.0) == {B1}
    assert quarantine.on_good(B1, 1)
    assert quarantine.members(100.0) == frozenset()


def test_restart_ends_it_at_once() -> None:
    quarantine = quarantined()
    assert quarantine.on_restart(B1)
    assert quarantine.members(0.0) == frozenset()
    assert not quarantine.on_restart(B1)


def test_good_bookies_leave_no_record() -> None:
    quarantine = Quarantine(OPTIONS)
    assert not quarantine.on_good(B1, 1_000_000)
    assert not quarantine.on_restart(B1)
