"""When the auditor acts on bookies that are away, and when it waits for them."""

from __future__ import annotations

from math import inf

from autorecovery.core.audit import SETTLING_SECONDS, LossWatch
from wire.types import BookieId

A, B, C, D = (BookieId(f"bk{number}:3181") for number in range(4))
ALL = frozenset({A, B, C, D})


def watch(delay: float = 0, *, known: frozenset[BookieId] = ALL) -> LossWatch:
    made = LossWatch(known=known, delay_seconds=delay)
    made.on_bookies(known, 0)
    return made


def test_nothing_is_due_while_everybody_is_there() -> None:
    losses = watch()
    assert losses.due is None
    assert not losses.is_waiting(0)


def test_a_lost_bookie_is_due_at_once_without_a_delay() -> None:
    losses = watch()
    losses.on_bookies(ALL - {A}, 10)
    assert losses.due == 10
    assert losses.lost == {A}


def test_a_lost_bookie_is_waited_for_with_a_delay() -> None:
    """F44, one bookie of a rolling restart."""
    losses = watch(300)
    losses.on_bookies(ALL - {A}, 10)
    assert losses.due == 310
    assert losses.is_waiting(309)
    assert not losses.is_waiting(310)
    assert losses.counts.delayed == 1


def test_a_bookie_that_returns_in_time_cancels_the_audit() -> None:
    """F44."""
    losses = watch(300)
    losses.on_bookies(ALL - {A}, 10)
    losses.on_bookies(ALL, 200)
    assert losses.due is None
    assert losses.counts.cancelled == 1


def test_each_absence_is_counted_from_its_own_beginning() -> None:
    losses = watch(300)
    losses.on_bookies(ALL - {A}, 10)
    losses.on_bookies(ALL, 200)
    losses.on_bookies(ALL - {A}, 250)
    assert losses.due == 550
    losses.on_bookies(ALL - {A}, 400)
    assert losses.due == 550


def test_two_lost_bookies_are_not_waited_for() -> None:
    """F44, two bookies down."""
    losses = watch(300)
    losses.on_bookies(ALL - {A}, 10)
    losses.on_bookies(ALL - {A, B}, 20)
    assert losses.due is not None
    assert losses.due <= 20
    assert losses.lost == {A, B}


def test_one_of_two_lost_bookies_that_returns_leaves_the_other_its_delay() -> None:
    losses = watch(300)
    losses.on_bookies(ALL - {A, B}, 10)
    losses.on_bookies(ALL - {B}, 11)
    assert losses.due == 310


def test_an_absence_is_acted_upon_once() -> None:
    losses = watch()
    losses.on_bookies(ALL - {A}, 10)
    losses.on_audited(losses.begin_audit(), 12)
    assert losses.due is None
    losses.on_bookies(ALL - {A}, 20)
    assert losses.due is None


def test_a_bookie_acted_upon_does_not_shorten_the_delay_of_the_next() -> None:
    losses = watch(300)
    losses.on_bookies(ALL - {A}, 0)
    losses.on_audited(losses.begin_audit(), 301)
    losses.on_bookies(ALL - {A, B}, 1000)
    assert losses.due == 1300


def test_a_bookie_that_is_lost_again_is_acted_upon_again() -> None:
    losses = watch()
    losses.on_bookies(ALL - {A}, 10)
    losses.on_audited(losses.begin_audit(), 12)
    losses.on_bookies(ALL, 20)
    losses.on_bookies(ALL - {A}, 30)
    assert losses.due == 30


def test_a_bookie_that_came_and_went_during_the_audit_is_still_due() -> None:
    """The audit passed over its ledgers while it was there."""
    losses = watch()
    losses.on_bookies(ALL - {A}, 10)
    absences = losses.begin_audit()
    losses.on_bookies(ALL, 11)
    losses.on_bookies(ALL - {A}, 12)
    losses.on_audited(absences, 13)
    assert losses.due == 12


def test_a_bookie_that_came_back_during_the_audit_is_due_when_it_goes_again() -> None:
    losses = watch()
    losses.on_bookies(ALL - {A}, 10)
    absences = losses.begin_audit()
    losses.on_bookies(ALL, 11)
    losses.on_audited(absences, 13)
    assert losses.due is None
    losses.on_bookies(ALL - {A}, 14)
    assert losses.due == 14


def test_a_second_loss_during_the_audit_is_due_after_it() -> None:
    losses = watch()
    losses.on_bookies(ALL - {A}, 10)
    absences = losses.begin_audit()
    losses.on_bookies(ALL - {A, B}, 11)
    losses.on_audited(absences, 13)
    assert losses.due == 11
    assert losses.lost == {B}


def test_bookies_dead_before_the_start_are_lost_like_any_other() -> None:
    """F43: the cookie is all that is left of it."""
    losses = LossWatch(known=ALL, delay_seconds=0)
    losses.on_bookies(ALL - {D}, 5)
    assert losses.due == 5


def test_a_new_auditor_waits_like_the_old_one() -> None:
    """A rolling restart takes the auditor's host, too: its successor must not spoil the delay."""
    losses = LossWatch(known=ALL, delay_seconds=300)
    losses.on_bookies(ALL - {D}, 5)
    assert losses.due == 305


def test_a_new_delay_counts_from_the_loss() -> None:
    losses = watch(300)
    losses.on_bookies(ALL - {A}, 10)
    losses.on_delay(60, 40)
    assert losses.due == 70
    losses.on_delay(0, 41)
    assert losses.due == 10


def test_newcomers_are_known_from_then_on() -> None:
    losses = watch(known=frozenset({A, B}))
    losses.on_bookies(frozenset({A, B, C}), 1)
    losses.on_bookies(frozenset({A, B}), 2)
    assert losses.lost == {C}


def test_nobody_is_judged_while_all_are_away() -> None:
    """With no bookie in sight it is most likely the store that was away."""
    losses = watch()
    losses.on_bookies(frozenset(), 10)
    assert losses.due == inf


def test_bookies_get_time_to_register_after_all_were_away() -> None:
    losses = watch()
    losses.on_bookies(frozenset(), 10)
    losses.on_bookies(frozenset({A}), 20)
    assert losses.due == 20 + SETTLING_SECONDS
    losses.on_bookies(ALL, 21)
    assert losses.due is None


def test_whoever_stays_away_after_the_settling_is_lost() -> None:
    losses = watch()
    losses.on_bookies(frozenset(), 10)
    losses.on_bookies(ALL - {A}, 20)
    due = losses.due
    assert due == 20 + SETTLING_SECONDS
    losses.on_audited(losses.begin_audit(), due)
    losses.on_bookies(ALL - {A, B}, 100)
    assert losses.due == 100
