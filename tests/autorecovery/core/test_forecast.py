"""What is left, how fast it goes, when it will be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autorecovery.core.forecast import Forecast, Progress, Shortage, shortage_of
from metadata.model import LedgerMetadata
from tests.autorecovery.core.test_checks import NAMES, ledger
from wire.types import LedgerId


def with_length(
    length: int, *firsts: int, last: int = 9, size: int = 3, quorum: int = 3
) -> LedgerMetadata:
    return replace(ledger(size, quorum, *firsts, last=last), length=length)


def test_a_lost_bookie_of_an_unstriped_ledger_costs_its_whole_length() -> None:
    assert shortage_of(with_length(1000), {NAMES[0]}) == Shortage(1, 1000)
    assert shortage_of(with_length(1000), {NAMES[0], NAMES[2]}) == Shortage(1, 2000)


def test_striping_divides_the_loss() -> None:
    found = shortage_of(with_length(3000, last=29, size=3, quorum=1), {NAMES[0]})
    assert found == Shortage(1, 1000)


def test_only_fragments_that_name_the_bookie_count() -> None:
    metadata = with_length(1000, 0, 4)  # bookies 0-2 from entry 0, 1-3 from entry 4
    assert shortage_of(metadata, {NAMES[0]}) == Shortage(1, 400)
    assert shortage_of(metadata, {NAMES[3]}) == Shortage(1, 600)
    assert shortage_of(metadata, {NAMES[1]}) == Shortage(2, 1000)
    assert shortage_of(metadata, {NAMES[7]}) == Shortage(0, 0)


def test_an_empty_ledger_lacks_a_fragment_and_no_bytes() -> None:
    assert shortage_of(with_length(0, last=-1), {NAMES[0]}) == Shortage(1, 0)


def test_an_open_ledger_lacks_bytes_that_nobody_can_tell() -> None:
    assert shortage_of(ledger(3, 3, last=None), {NAMES[0]}) == Shortage(1, 0)


ONE, TWO, THREE = LedgerId(1), LedgerId(2), LedgerId(3)


def test_the_first_look_knows_no_rate() -> None:
    forecast = Progress().on_look({ONE: Shortage(2, 500)}, 0)
    assert (forecast.ledgers, forecast.fragments, forecast.bytes_left) == (1, 2, 500)
    assert forecast.bytes_per_second is None
    assert forecast.seconds_left is None


def test_what_vanished_between_two_looks_is_the_rate() -> None:
    progress = Progress()
    progress.on_look({ONE: Shortage(2, 500), TWO: Shortage(1, 1500)}, 0)
    forecast = progress.on_look({TWO: Shortage(1, 1000)}, 10)
    assert forecast.bytes_per_second == 100
    assert forecast.seconds_left == 10


def test_new_losses_do_not_slow_the_rate() -> None:
    progress = Progress()
    progress.on_look({ONE: Shortage(1, 500)}, 0)
    forecast = progress.on_look({TWO: Shortage(1, 5000)}, 5)
    assert forecast.bytes_per_second == 100


def test_small_ledgers_are_forecast_by_their_number() -> None:
    progress = Progress()
    progress.on_look({LedgerId(i): Shortage(1, 0) for i in range(100)}, 0)
    forecast = progress.on_look({LedgerId(i): Shortage(1, 0) for i in range(40)}, 10)
    assert forecast.ledgers_per_second == 6
    assert forecast.seconds_left == pytest.approx(40 / 6)


def test_nothing_that_moves_has_no_end() -> None:
    progress = Progress()
    progress.on_look({ONE: Shortage(1, 500)}, 0)
    assert progress.on_look({ONE: Shortage(1, 500)}, 60).seconds_left is None


def test_time_before_the_first_copy_does_not_slow_the_forecast() -> None:
    """Marks wait for workers; once these begin, their pace counts, and not the waiting."""
    progress = Progress()
    progress.on_look({ONE: Shortage(1, 500), TWO: Shortage(1, 500)}, 0)
    progress.on_look({ONE: Shortage(1, 500), TWO: Shortage(1, 500)}, 10)
    forecast = progress.on_look({TWO: Shortage(1, 500)}, 15)
    assert forecast.bytes_per_second == 100
    assert forecast.seconds_left == 5


def test_parked_ledgers_are_not_waited_for() -> None:
    progress = Progress()
    marks = {ONE: Shortage(1, 500), TWO: Shortage(1, 300), THREE: Shortage(1, 200)}
    progress.on_look(marks, 0)
    del marks[THREE]
    forecast = progress.on_look(marks, 2, parked={ONE, LedgerId(99)})
    assert (forecast.parked, forecast.parked_bytes) == (1, 500)
    assert forecast.seconds_left == 3


def test_only_parked_ledgers_left_means_done() -> None:
    assert Forecast(ledgers=2, parked=2, bytes_left=10, parked_bytes=10).seconds_left == 0


def test_an_empty_list_begins_another_story() -> None:
    progress = Progress()
    progress.on_look({ONE: Shortage(1, 500)}, 0)
    progress.on_look({}, 10)
    assert progress.on_look({ONE: Shortage(1, 900)}, 20).bytes_per_second == 0


def test_the_rate_follows_slowly() -> None:
    progress = Progress()
    progress.on_look({ONE: Shortage(1, 10_000)}, 0)
    progress.on_look({ONE: Shortage(1, 9_000)}, 10)
    forecast = progress.on_look({ONE: Shortage(1, 9_000)}, 22)
    assert forecast.bytes_per_second == pytest.approx(90)
