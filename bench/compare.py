"""Two systems side by side: what is run, on which side, and which ratio is wanted.

A trial is one command of a load generator. A side is a client on a cluster. Sides take turns, round
after round, so that a busy moment of the machine meets them all; a ratio is taken within each
round, and the median over the rounds counts. Apache's figure is that of its best side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

Given = Mapping[str, object]
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Side:
    """Whose client, on whose bookies, over which protocol."""

    client: str  # "ours" or "java"
    cluster: str  # "ours", "apache" (group wait 0) or "apache-default"
    wire: str = "v2"

    def __str__(self) -> str:
        client = "our client" if self.client == "ours" else f"Java {self.wire}"
        return f"{client} on {CLUSTERS[self.cluster]}"


CLUSTERS: Final = {
    "ours": "ours",
    "apache": "Apache's, group wait 0",
    "apache-default": "Apache's",
}

OURS: Final = Side("ours", "ours")
OURS_ON_APACHE: Final = Side("ours", "apache")
JAVA_ON_OURS: Final = Side("java", "ours", "v3")
APACHE: Final = tuple(
    Side("java", cluster, wire) for cluster in ("apache", "apache-default") for wire in ("v2", "v3")
)
APACHE_V3: Final = tuple(side for side in APACHE if side.wire == "v3")
APACHE_V2: Final = tuple(side for side in APACHE if side.wire == "v2")


@dataclass(frozen=True, slots=True)
class Trial:
    name: str
    command: str
    given: Given
    sides: tuple[Side, ...]
    #: Of what the generator is asked to read: entries of this size are written first.
    reads_size: int | None = None


def _add(name: str, size: int, sides: tuple[Side, ...], **more: object) -> Trial:
    return Trial(name, "add", {"size": size, "outstanding": 2000} | more, sides)


def trials(*, ledgers: int) -> list[Trial]:
    everyone = (OURS, OURS_ON_APACHE, JAVA_ON_OURS, *APACHE)
    return [
        _add("add 1 KiB", 1024, everyone),
        _add("add 100 B", 100, everyone),
        _add("add, many ledgers", 1024, (OURS, Side("java", "apache")), ledgers=ledgers),
        Trial("1 outstanding", "add_singly", {"size": 1024}, (OURS, OURS_ON_APACHE, *APACHE)),
        *(
            Trial(
                f"read {name}",
                "read",
                {"mode": "batch"},
                (OURS, OURS_ON_APACHE, JAVA_ON_OURS, *APACHE[:2]),
                reads_size=size,
            )
            for name, size in (("1 KiB", 1024), ("100 B", 100))
        ),
        Trial(
            "recovery, 50 entries",
            "recover",
            {"size": 1024, "entries": 50, "ledgers": 5},
            (OURS, OURS_ON_APACHE, *APACHE[:2]),
        ),
        Trial(
            "tail",
            "tail",
            {"size": 100, "entries": 30, "pause_ms": 20, "lac_ms": 10},
            (OURS, OURS_ON_APACHE, *APACHE_V3),
        ),
        # Last, since it fills the disk: where that is full, no other trial goes without.
        _add("add 16 KiB", 16 * 1024, (OURS, OURS_ON_APACHE, *APACHE_V2)),
    ]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of one side over the best of others; or, without others, the figure itself."""

    name: str
    trial: str
    figure: str
    side: Side
    others: tuple[Side, ...]
    goal: float | None
    more_is_better: bool = True
    unit: str = "x"


def _less(name: str, trial: str, figure: str, goal: float | None, side: Side = OURS) -> Comparison:
    others = (*APACHE,)
    return Comparison(name, trial, figure, side, others, goal, more_is_better=False)


def comparisons() -> list[Comparison]:
    rate, here = "rate", OURS_ON_APACHE
    return [
        Comparison("add 1 KiB", "add 1 KiB", rate, OURS, APACHE, 1.5),
        Comparison("add 1 KiB, ours on Apache's", "add 1 KiB", rate, here, APACHE, 1.0),
        Comparison("add 1 KiB, Java on ours", "add 1 KiB", rate, JAVA_ON_OURS, APACHE_V3, 1.0),
        Comparison("add 100 B", "add 100 B", rate, OURS, APACHE, 4.0),
        Comparison("add 100 B, ours on Apache's", "add 100 B", rate, here, APACHE, None),
        Comparison("add 100 B, Java on ours", "add 100 B", rate, JAVA_ON_OURS, APACHE_V3, 1.0),
        Comparison("add 16 KiB", "add 16 KiB", rate, OURS, APACHE, 1.0),
        Comparison("add, many ledgers", "add, many ledgers", rate, OURS, APACHE, 1.5),
        _less("1 outstanding, p50", "1 outstanding", "p50_ms", 1.0),
        _less("1 outstanding, p99", "1 outstanding", "p99_ms", 1.0),
        _less("1 outstanding, p50, on Apache's", "1 outstanding", "p50_ms", None, here),
        Comparison("read 1 KiB", "read 1 KiB", rate, OURS, APACHE, 1.5),
        Comparison("read 1 KiB, ours on Apache's", "read 1 KiB", rate, here, APACHE, None),
        Comparison("read 1 KiB, Java on ours", "read 1 KiB", rate, JAVA_ON_OURS, APACHE_V3, 1.0),
        Comparison("read 100 B", "read 100 B", rate, OURS, APACHE, 2.0),
        _less("recovery, p50", "recovery, 50 entries", "p50_ms", 0.5),
        _less("recovery, p50, on Apache's", "recovery, 50 entries", "p50_ms", None, here),
        _less("tail, p50", "tail", "p50_ms", 0.5),
        _less("bookie CPU per add of 1 KiB", "add 1 KiB", "bookie_us", 0.5),
        _less("bookie memory", "memory", "mib", 0.25),
        _less("start to ready", "start", "seconds", 0.5),
        Comparison(
            "client CPU per add of 1 KiB, batch frames", "add 1 KiB", "client_us", OURS, (), 4.0,
            more_is_better=False, unit="us",
        ),
        Comparison(
            "client CPU per add of 1 KiB, v2", "add 1 KiB", "client_us", OURS_ON_APACHE, (), 8.0,
            more_is_better=False, unit="us",
        ),
        Comparison(
            "client memory", "client memory", "mib", OURS, (), 100.0,
            more_is_better=False, unit="MiB",
        ),
    ]  # fmt: skip


@dataclass(slots=True)
class Results:
    """Every figure of every round: trial, side, figure, one value per round."""

    values: dict[str, dict[Side, dict[str, list[float]]]] = field(default_factory=dict)
    #: What failed and was repeated, and rounds that a side failed twice.
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, trial: str, side: Side, figures: Figures) -> None:
        into = self.values.setdefault(trial, {}).setdefault(side, {})
        for name, value in figures.items():
            into.setdefault(name, []).append(value)

    def of(self, trial: str, side: Side, figure: str) -> list[float]:
        return self.values.get(trial, {}).get(side, {}).get(figure, [])

    def best(
        self, trial: str, sides: Iterable[Side], figure: str, *, more_is_better: bool
    ) -> Side | None:
        found = [side for side in sides if self.of(trial, side, figure)]
        choose = max if more_is_better else min
        return choose(found, key=lambda side: median(self.of(trial, side, figure)), default=None)


@dataclass(frozen=True, slots=True)
class Outcome:
    comparison: Comparison
    ratio: float
    low: float
    high: float
    value: float  # the side's own figure
    against: Side | None
    other: float | None
    accepted: float | None  # what an earlier run reached

    @property
    def is_met(self) -> bool | None:
        goal = self.comparison.goal
        if goal is None:
            return None
        return self.ratio >= goal if self.comparison.more_is_better else self.ratio <= goal

    @property
    def has_fallen(self) -> bool:
        """Whether it is more than 15 % worse than what was accepted."""
        if self.accepted is None:
            return False
        if self.comparison.more_is_better:
            return self.ratio < self.accepted * (1 - FALL)
        return self.ratio > self.accepted * (1 + FALL)


FALL: Final = 0.15


def judge(
    results: Results, wanted: Sequence[Comparison], accepted: Mapping[str, float]
) -> list[Outcome]:
    """Ratios, for all comparisons whose figures are there."""
    outcomes = []
    for comparison in wanted:
        values = results.of(comparison.trial, comparison.side, comparison.figure)
        if not values:
            continue
        against, ratios = None, values
        if comparison.others:
            against = results.best(
                comparison.trial,
                comparison.others,
                comparison.figure,
                more_is_better=comparison.more_is_better,
            )
            if against is None:
                continue
            theirs = results.of(comparison.trial, against, comparison.figure)
            ratios = [mine / other for mine, other in zip(values, theirs, strict=False)]
        other = None
        if against is not None:
            other = median(results.of(comparison.trial, against, comparison.figure))
        outcomes.append(
            Outcome(
                comparison=comparison,
                ratio=median(ratios),
                low=min(ratios),
                high=max(ratios),
                value=median(values),
                against=against,
                other=other,
                accepted=accepted.get(comparison.name),
            )
        )
    return outcomes
