"""What writers felt, and which of it was the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.disk_stalls import Look, Stall, stalls, watched
from bench.recovery_live import Took, Turns, as_text, figures_of, unstalled


def looks(*seen: tuple[float, int, int]) -> list[Look]:
    return [Look(*look) for look in seen]


def test_a_disk_that_has_work_and_finishes_nothing_stands_still() -> None:
    found = stalls(looks((0.0, 5, 1), (0.01, 5, 2), (0.02, 5, 2), (0.05, 5, 1), (0.06, 6, 1)))
    assert list(found) == [Stall(0.0, 0.06)]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param([(0.0, 5, 1), (0.01, 5, 1), (0.02, 6, 1)], id="a short pause"),
        pytest.param([(0.0, 5, 0), (0.05, 5, 0), (0.1, 6, 1)], id="no work"),
        pytest.param([(0.0, 5, 1), (0.05, 6, 1), (0.1, 7, 1)], id="looked at too seldom"),
        pytest.param([(0.0, 5, 1), (0.05, 5, 1)], id="not over yet"),
    ],
)
def test_anything_else_is_no_stall(seen: list[tuple[float, int, int]]) -> None:
    assert list(stalls(looks(*seen))) == []


def test_batches_that_met_a_stall_or_its_pile_are_left_out() -> None:
    before, over, inside = Took(0.0, 0.9), Took(0.5, 1.0), Took(1.1, 0.05)
    behind, later = Took(1.3, 0.01), Took(1.4, 0.01)
    took = [before, over, inside, behind, later]
    assert unstalled(took, [Stall(1.0, 1.2)]) == [before, later]
    assert unstalled(took, []) == took


def test_figures_tell_the_stalls_of_the_disk_from_the_rest() -> None:
    quiet = [Took(10 + number / 100, 0.005) for number in range(1000)]
    stalled = [Took(due, 0.2 if 12 <= due < 12.2 else 0.005) for due, _ in quiet]
    figures = figures_of(Turns([quiet]), Turns([stalled], [Stall(12.0, 12.2)]))
    assert figures["p99, ratio"] == pytest.approx(40)
    assert figures["p99 apart from stalls of the disk, ratio"] == pytest.approx(1)
    assert figures["p99 of a typical second, ratio"] == pytest.approx(1)
    assert figures["the disk stood still with, ms"] == pytest.approx(200)


def test_stalls_of_a_disk_that_nobody_counts_for_are_unknown() -> None:
    turn = [Took(10 + number / 100, 0.005) for number in range(1000)]
    without, during = Turns(), Turns()
    without.add(turn, [])
    during.add(turn, [Stall(12.0, 12.2)])
    during.add(turn, None)
    figures = figures_of(without, during)
    assert figures["the disk stood still without, ms"] == 0
    assert figures["the disk stood still with, ms"] is None
    assert figures["p99 apart from stalls of the disk, ratio"] is None
    assert figures["p99, ratio"] == pytest.approx(1)
    said = as_text(figures)
    assert "the disk stood still without, ms 0.0" in said
    assert "the disk stood still with, ms unknown" in said


def test_a_turn_has_the_stalls_of_its_own_time() -> None:
    turns = Turns()
    own, over = Stall(9.9, 10.1), Stall(10.4, 11.0)
    turns.add([Took(10.0, 0.1), Took(10.2, 0.3)], [Stall(9.0, 9.9), own, over, Stall(10.6, 11.0)])
    assert turns.stalls == [own, over]


def test_disk_of_a_folder_is_watched_until_the_block_ends(tmp_path: Path) -> None:
    with watched(tmp_path) as found:
        assert found is None or found == []
