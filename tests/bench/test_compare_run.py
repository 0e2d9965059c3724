"""Rounds of a comparison, some of which fail."""

from __future__ import annotations

import pytest

from bench import compare_run
from bench.compare import APACHE, OURS, Figures, Results, Side, Trial
from bench.compare_run import QUICK, Bench
from bench.peers.load import LoadFailedError

TRIAL = Trial("add", "add", {}, (OURS, APACHE[0]))


class _Scripted(Bench):
    """Measures nothing: a call of a side in `failing` fails, by its number."""

    failing: dict[Side, set[int]]
    calls: list[Side]

    def measure(self, trial: Trial, side: Side, seconds: float) -> Figures:
        self.calls.append(side)
        count = self.calls.count(side)
        if count in self.failing.get(side, ()):
            raise LoadFailedError(f"{side} failed")
        return {"rate": float(count)}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_run, "pause", lambda error, then: None)
    monkeypatch.setattr(Bench, "_free_gib", lambda self: 1000)


def run(failing: dict[Side, set[int]]) -> Results:
    bench = _Scripted({}, {}, QUICK)
    bench.failing, bench.calls = failing, []
    results = Results()
    bench.run([TRIAL], results)
    return results


def test_every_side_has_a_figure_of_every_round() -> None:
    results = run({})
    assert results.of("add", OURS, "rate") == [1.0, 2.0, 3.0]
    assert results.of("add", APACHE[0], "rate") == [1.0, 2.0, 3.0]
    assert not results.failed


def test_side_that_fails_once_is_measured_again() -> None:
    results = run({APACHE[0]: {2}})
    assert results.of("add", APACHE[0], "rate") == [1.0, 3.0, 4.0]
    assert results.of("add", OURS, "rate") == [1.0, 2.0, 3.0]
    assert results.failed == [f"add, {APACHE[0]}"]
    assert not results.left_out


def test_round_that_a_side_fails_twice_counts_for_nobody_and_the_run_goes_on() -> None:
    """Figures stay in pairs: a ratio is taken within a round."""
    results = run({APACHE[0]: {1, 2}})
    assert results.of("add", APACHE[0], "rate") == [3.0, 4.0]
    assert results.of("add", OURS, "rate") == [2.0, 3.0]
    assert results.left_out == [f"add, round 1: {APACHE[0]}"]
