"""What a comparison found, for people: a table, a Markdown page, charts; and JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Final

from bench.compare import Outcome, Results, Side

_GOAL: Final = {True: "met", False: "MISSED", None: ""}
_WIDTH: Final = 760
_LABEL_WIDTH: Final = 260
_BAR_HEIGHT: Final = 18
_COLOURS: Final = {"ours": "#2a6f97", "java": "#c9742b"}


def table(outcomes: Sequence[Outcome], machine: Mapping[str, float]) -> str:
    """For a terminal: ratios with their spread, goals, and the machine's own limits."""
    lines = [f"{name:<44} {value:>12,.1f}" for name, value in machine.items()]
    lines += ["", f"{'ratio to Apache':<44} {'median':>8}  {'spread':>15}  goal"]
    for outcome in outcomes:
        spread = f"{outcome.low:.2f}..{outcome.high:.2f}"
        lines.append(
            f"{outcome.comparison.name:<44} {_ratio(outcome):>8}  {spread:>15}  {_goal(outcome)}"
            f"{_fall(outcome)}"
        )
    return "\n".join(lines)


def _ratio(outcome: Outcome) -> str:
    unit = outcome.comparison.unit
    return f"{outcome.ratio:.2f} {unit}"


def _goal(outcome: Outcome) -> str:
    comparison = outcome.comparison
    if comparison.goal is None:
        return ""
    sign = ">=" if comparison.more_is_better else "<="
    return f"{sign} {comparison.goal:g} {_GOAL[outcome.is_met]}"


def _fall(outcome: Outcome) -> str:
    if not outcome.has_fallen:
        return ""
    return f"  FALLEN by more than 15 %: {outcome.accepted:.2f} was accepted"


# ---------------------------------------------------------------------- files


def write_report(
    folder: Path,
    about: Mapping[str, str],
    machine: Mapping[str, float],
    results: Results,
    outcomes: Sequence[Outcome],
) -> Path:
    """`comparison.json`, `comparison.md` and a chart per figure; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(_json(about, machine, results, outcomes))
    charts = []
    for trial, sides in results.values.items():
        for figure, unit in _CHARTED.items():
            values = {side: found[figure] for side, found in sides.items() if figure in found}
            if len(values) < 2:
                continue
            name = f"{trial}-{figure}.svg".replace(" ", "-").replace(",", "")
            (folder / name).write_text(bars(f"{trial}: {unit}", values))
            charts.append(name)
    page = folder / "comparison.md"
    page.write_text(_page(about, machine, outcomes, charts))
    return page


#: The figures that are drawn, with their units.
_CHARTED: Final = {
    "rate": "entries/s",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "bookie_us": "CPU per entry of a bookie, us",
    "client_us": "CPU per entry of the client, us",
    "mib": "resident at most, MiB",
    "seconds": "s",
}


def _json(
    about: Mapping[str, str],
    machine: Mapping[str, float],
    results: Results,
    outcomes: Sequence[Outcome],
) -> str:
    figures = {
        trial: {str(side): found for side, found in sides.items()}
        for trial, sides in results.values.items()
    }
    ratios = [
        {
            "name": outcome.comparison.name,
            "ratio": outcome.ratio,
            "low": outcome.low,
            "high": outcome.high,
            "goal": outcome.comparison.goal,
            "more_is_better": outcome.comparison.more_is_better,
            "met": outcome.is_met,
            "against": str(outcome.against) if outcome.against else None,
        }
        for outcome in outcomes
    ]
    whole = {"about": about, "machine": machine, "ratios": ratios, "figures": figures}
    return json.dumps(whole, indent=1) + "\n"


def _page(
    about: Mapping[str, str],
    machine: Mapping[str, float],
    outcomes: Sequence[Outcome],
    charts: Sequence[str],
) -> str:
    lines = ["# Beside Apache BookKeeper", ""]
    lines += ["Written by `make bench`. A ratio is our figure over that of Apache's client on"]
    lines += ["Apache's bookies at their best, round by round.", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    lines += [f"- {key}: {value:,.1f}" for key, value in machine.items()]
    lines += ["", "| comparison | ratio | spread | goal | ours | Apache's | Apache's best |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for outcome in outcomes:
        other = "" if outcome.other is None else _number(outcome.other)
        cells = [
            outcome.comparison.name, _ratio(outcome), f"{outcome.low:.2f}..{outcome.high:.2f}",
            _goal(outcome) + _fall(outcome), _number(outcome.value), other,
            str(outcome.against or ""),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"![{name.removesuffix('.svg')}]({name})" for name in charts)]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_curves(
    folder: Path, axes: Mapping[str, str], found: Mapping[str, Mapping[Side, Mapping[int, float]]]
) -> None:
    """A chart per curve, and a section of the page with all points."""
    lines = ["", "## Growth, entries per second", ""]
    for name, series in found.items():
        (folder / f"growth-{name}.svg").write_text(curve(f"adds by {axes[name]}", series))
        points = sorted({point for values in series.values() for point in values})
        lines += [f"| {axes[name]} | {' | '.join(map(str, series))} |"]
        lines += ["|---" * (len(series) + 1) + "|"]
        lines += [
            f"| {point:,} | {' | '.join(_at(point, values) for values in series.values())} |"
            for point in points
        ]
        lines += ["", f"![growth-{name}](growth-{name}.svg)", ""]
    page = folder / "comparison.md"
    page.write_text(page.read_text() + "\n".join(lines))


def _at(point: int, values: Mapping[int, float]) -> str:
    return _number(values[point]) if point in values else "failed"


# ---------------------------------------------------------------------- charts


def bars(title: str, values: Mapping[Side, Sequence[float]]) -> str:
    """One bar per side: the median, with a line from the least to the most."""
    most = max((max(found) for found in values.values()), default=0.0) or 1.0
    scale = (_WIDTH - _LABEL_WIDTH - 90) / most
    height = 34 + len(values) * (_BAR_HEIGHT + 8)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="8" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (side, found) in enumerate(values.items()):
        top = 30 + number * (_BAR_HEIGHT + 8)
        middle, text = top + _BAR_HEIGHT / 2, top + _BAR_HEIGHT - 5
        low, mid, high = (
            _LABEL_WIDTH + scale * value for value in (min(found), median(found), max(found))
        )
        colour = _COLOURS[side.client]
        parts += [
            f'<text x="8" y="{text}">{escape(str(side))}</text>',
            f'<rect x="{_LABEL_WIDTH}" y="{top}" width="{mid - _LABEL_WIDTH:.1f}" '
            f'height="{_BAR_HEIGHT}" fill="{colour}"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="#222"/>',
            f'<text x="{high + 6:.1f}" y="{text}">{_number(median(found))}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def curve(title: str, series: Mapping[Side, Mapping[int, float]]) -> str:
    """Lines over a logarithmic axis in both directions: growth by factors is a straight line."""
    width, height, left, bottom = _WIDTH, 320, 70, 40
    points = sorted({point for values in series.values() for point in values})
    rates = [rate for values in series.values() for rate in values.values()]
    x_low, x_high = math.log10(points[0]), math.log10(max(points[-1], points[0] + 1))
    y_low, y_high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)) + 1e-9)

    def place(point: float, rate: float) -> str:
        x = left + (math.log10(point) - x_low) / (x_high - x_low) * (width - left - 200)
        y = 30 + (y_high - math.log10(rate)) / max(1, y_high - y_low) * (height - 30 - bottom)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="8" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    for power in range(y_low, y_high + 1):
        y = place(points[0], 10**power).split(",")[1]
        parts.append(f'<text x="8" y="{y}">{10**power:,}</text>')
        parts.append(f'<line x1="{left}" x2="{width - 200}" y1="{y}" y2="{y}" stroke="#ddd"/>')
    for point in points:
        x = place(point, 10**y_low).split(",")[0]
        parts.append(f'<text x="{x}" y="{height - 16}" text-anchor="middle">{point:,}</text>')
    for side, values in series.items():
        if not values:
            continue
        path = " ".join(place(point, rate) for point, rate in sorted(values.items()))
        x, y = place(*max(values.items())).split(",")
        colour = _COLOURS[side.client]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{float(x) + 6}" y="{y}" fill="{colour}">{escape(str(side))}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
