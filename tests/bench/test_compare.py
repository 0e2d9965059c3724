"""Ratios, goals and falls: what the comparison makes of figures."""

from __future__ import annotations

import json
from pathlib import Path

from bench.compare import (
    APACHE,
    OURS,
    Comparison,
    Outcome,
    Results,
    Side,
    comparisons,
    judge,
    trials,
)
from bench.report import bars, table, write_curves, write_report

RATE = Comparison("add", "add", "rate", OURS, APACHE, 1.5)
TIME = Comparison("wait", "wait", "p50_ms", OURS, APACHE, 0.5, more_is_better=False)


def results() -> Results:
    found = Results()
    for ours, tuned, plain in ((300.0, 100.0, 110.0), (200.0, 200.0, 100.0), (260.0, 130.0, 90.0)):
        found.add("add", OURS, {"rate": ours})
        found.add("add", APACHE[0], {"rate": tuned})
        found.add("add", APACHE[2], {"rate": plain})
    for ours, theirs in ((1.0, 4.0), (2.0, 4.0), (3.0, 4.0)):
        found.add("wait", OURS, {"p50_ms": ours})
        found.add("wait", APACHE[0], {"p50_ms": theirs})
    return found


def one(comparison: Comparison, accepted: float | None = None) -> Outcome:
    known = {} if accepted is None else {comparison.name: accepted}
    [outcome] = judge(results(), [comparison], known)
    return outcome


def test_ratio_is_taken_round_by_round_against_the_best_side() -> None:
    outcome = one(RATE)
    assert outcome.against == APACHE[0]  # 130 against 100
    assert (outcome.low, outcome.ratio, outcome.high) == (1.0, 2.0, 3.0)
    assert outcome.is_met


def test_less_is_better_where_it_is() -> None:
    outcome = one(TIME)
    assert (outcome.low, outcome.ratio, outcome.high) == (0.25, 0.5, 0.75)
    assert outcome.is_met
    assert (
        one(Comparison("w", "wait", "p50_ms", OURS, APACHE, 0.4, more_is_better=False)).is_met
        is False
    )


def test_figure_without_others_is_compared_with_its_goal() -> None:
    outcome = one(Comparison("own", "add", "rate", OURS, (), 250.0))
    assert outcome.ratio == 260.0
    assert outcome.is_met


def test_fall_of_more_than_fifteen_percent_is_told() -> None:
    assert not one(RATE, accepted=2.3).has_fallen
    assert one(RATE, accepted=2.4).has_fallen
    assert not one(TIME, accepted=0.44).has_fallen
    assert one(TIME, accepted=0.43).has_fallen
    assert "FALLEN" in table([one(RATE, accepted=2.4)], {})
    assert "FALLEN" not in table([one(RATE, accepted=2.3)], {})


def test_comparison_without_figures_is_left_out() -> None:
    assert judge(results(), [Comparison("x", "never run", "rate", OURS, APACHE, 1.0)], {}) == []


def test_every_comparison_has_its_trial() -> None:
    sides = {trial.name: set(trial.sides) for trial in trials(ledgers=10)}
    for comparison in comparisons():
        if comparison.trial in ("memory", "start", "client memory"):
            continue
        assert comparison.side in sides[comparison.trial], comparison.name
        if comparison.others:
            assert sides[comparison.trial] & set(comparison.others), comparison.name


def test_report_is_written_whole(tmp_path: Path) -> None:
    outcomes = judge(results(), [RATE, TIME], {})
    page = write_report(tmp_path, {"commit": "abc"}, {"copy": 1.0}, results(), outcomes)
    text = page.read_text()
    assert "| add | 2.00 x | 1.00..3.00 | >= 1.5 met | 260 | 130 |" in text
    assert "![add-rate](add-rate.svg)" in text
    assert (tmp_path / "add-rate.svg").read_text().startswith("<svg")
    whole = json.loads((tmp_path / "comparison.json").read_text())
    assert whole["figures"]["add"][str(OURS)]["rate"] == [300.0, 200.0, 260.0]
    assert [ratio["met"] for ratio in whole["ratios"]] == [True, True]


def test_chart_names_every_side_and_survives_zeros() -> None:
    chart = bars("a & b", {OURS: [0.0], Side("java", "apache"): [0.0, 0.0]})
    assert "a &amp; b" in chart
    assert chart.count("<rect") == 2


def test_curves_are_drawn_behind_the_table(tmp_path: Path) -> None:
    page = write_report(tmp_path, {}, {}, results(), [])
    found = {"size": {OURS: {100: 900.0, 1024: 100.0}, APACHE[0]: {100: 90.0, 1024: 10.0}}}
    write_curves(tmp_path, {"size": "bytes"}, found)
    assert "| 1,024 | 100 | 10 |" in page.read_text()
    chart = (tmp_path / "growth-size.svg").read_text()
    assert chart.count("<polyline") == 2
    assert "1,024" in chart


def test_point_that_failed_is_left_out_of_its_curve(tmp_path: Path) -> None:
    page = write_report(tmp_path, {}, {}, results(), [])
    found = {"size": {OURS: {100: 900.0, 1024: 100.0}, APACHE[0]: {100: 90.0}, APACHE[1]: {}}}
    write_curves(tmp_path, {"size": "bytes"}, found)
    assert "| 1,024 | 100 | failed | failed |" in page.read_text()
    assert (tmp_path / "growth-size.svg").read_text().count("<polyline") == 2
