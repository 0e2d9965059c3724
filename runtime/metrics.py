"""Metrics as BookKeeper names them, in Prometheus' text format.

Cores and shells count in plain fields and hand out `statistics()`; a source turns such a snapshot
into samples when somebody scrapes. Only distributions (latencies, sizes) are recorded as things
happen, once per batch, into buckets on a logarithmic scale: bounded memory, quantiles computed
on scrape, no lock. One thread records into a distribution; any thread may read it.

The text is written here because prometheus-client cannot: it renames every counter that does not
end in `_total` and its summaries have no quantiles, while dashboards want BookKeeper's names. It
still supplies the metrics of the process, and its parser judges ours in the tests.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import trio

from wire.errors import LedgerError

Kind = Literal["gauge", "counter", "summary"]
Labels = tuple[tuple[str, str], ...]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
QUANTILES: Final = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0")
_SHARES: Final = tuple(map(float, QUANTILES))
#: Quantiles look back over this many slices of time; the oldest is dropped as a new one begins.
SLICES: Final = 6

_STEPS: Final = 32  # buckets per doubling: a quantile is at most 1/32 above the true value
_SMALLEST: Final = 2.0**-20  # a nanosecond when the unit is a millisecond
_LARGEST: Final = 2.0**50
_ZERO_BUCKET: Final = -1_000_000
_LAST_BUCKET: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class DistributionSnapshot:
    count: int  # since the start
    total: float  # sum since the start
    maximum: float  # of the window; NaN when it is empty
    buckets: Mapping[int, int]  # of the window

    def quantile(self, share: float) -> float:
        """The value that `share` of the window's values do not exceed; NaN when it is empty."""
        return self.quantiles((share,))[0]

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Several of them, ascending, in one pass: a scrape asks for a thousand."""
        found: list[float] = []
        wanted = [math.ceil(share * sum(self.buckets.values())) for share in shares]
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            while len(found) < len(wanted) and seen >= wanted[len(found)]:
                found.append(min(_upper_bound(bucket), self.maximum))
        return found or [math.nan] * len(shares)


class Distribution:
    """Values of one kind, counted in buckets. Latencies are milliseconds, as in BookKeeper."""

    __slots__ = ("_count", "_slices", "_total")

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._slices: deque[_Slice] = deque([_Slice()], maxlen=SLICES)

    def record(self, value: float, count: int = 1) -> None:
        """Count a value; `count` times when a batch shared it."""
        self._count += count
        self._total += value * count
        current = self._slices[-1]
        bucket = _bucket(value)
        current.buckets[bucket] = current.buckets.get(bucket, 0) + count
        if value > current.maximum:
            current.maximum = value

    def rotate(self) -> None:
        """Begin a new slice of time."""
        self._slices.append(_Slice())

    def snapshot(self) -> DistributionSnapshot:
        buckets: dict[int, int] = {}
        maximum = -math.inf
        for part in tuple(self._slices):
            # The copy is one step for the interpreter; walking the living dict would not be.
            for bucket, count in part.buckets.copy().items():
                buckets[bucket] = buckets.get(bucket, 0) + count
            maximum = max(maximum, part.maximum)
        return DistributionSnapshot(
            self._count, self._total, maximum if buckets else math.nan, buckets
        )


class _Slice:
    __slots__ = ("buckets", "maximum")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.maximum = -math.inf


@dataclass(frozen=True, slots=True)
class Summary:
    """An operation that succeeds or fails; BookKeeper keeps the two apart."""

    name: str
    help: str
    labels: Labels
    success: Distribution
    failure: Distribution


class Sample(NamedTuple):
    """One series of a gauge or a counter, as of now."""

    name: str
    kind: Kind
    value: float
    labels: Labels = ()
    help: str = ""


def gauge(name: str, value: float, *, help: str = "", **labels: str) -> Sample:
    return Sample(name, "gauge", value, tuple(labels.items()), help)


def counter(name: str, value: float, *, help: str = "", **labels: str) -> Sample:
    """Something that only grows. The name is used as it is: BookKeeper's have no `_total`."""
    return Sample(name, "counter", value, tuple(labels.items()), help)


def name_part(text: str) -> str:
    """A text such as a path in a form that may stand within a metric's name."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


Source = Callable[[], Iterable[Sample]]


class Registry:
    """Everything one process exports."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._summaries: list[Summary] = []
        self._aliases: list[Summary] = []  # which share the distributions of others
        self._names: dict[tuple[str, Labels], list[list[str]]] = {}

    def add_source(self, source: Source) -> None:
        """Ask `source` for samples at every scrape."""
        self._sources.append(source)

    def summary(self, name: str, *, help: str = "", **labels: str) -> Summary:
        """A summary that is exported from now on, also before anything was recorded."""
        made = Summary(name, help, tuple(labels.items()), Distribution(), Distribution())
        self._summaries.append(made)
        return made

    def alias(self, name: str, summary: Summary, *, help: str = "") -> None:
        """Export a summary under a second name, too: BookKeeper has names for what is one here."""
        same = Summary(name, help, summary.labels, summary.success, summary.failure)
        self._aliases.append(same)

    async def rotate_forever(self, window_seconds: float) -> None:
        """Let the quantiles look back over `window_seconds`. To be started as a task."""
        while True:
            await trio.sleep(window_seconds / SLICES)
            self.rotate()

    def rotate(self) -> None:
        for summary in self._summaries:
            summary.success.rotate()
            summary.failure.rotate()

    def render(self) -> str:
        """All families in order of their names, the series of each together."""
        families: dict[str, _Family] = {}
        for name, kind, help, series in self._series():
            family = families.setdefault(name, _Family(kind, help, {}))
            assert family.kind == kind, f"{name} is a {family.kind} and a {kind}"
            for line, value in series:
                assert line not in family.series, f"{line} is exported twice"
                family.series[line] = value
        lines: list[str] = []
        for name, family in sorted(families.items()):
            if family.help:
                text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
                lines.append(f"# HELP {name} {text}")
            lines.append(f"# TYPE {name} {family.kind}")
            lines += [f"{line} {_number(value)}" for line, value in family.series.items()]
        return "".join(f"{line}\n" for line in lines)

    def _series(self) -> Iterator[tuple[str, Kind, str, list[tuple[str, float]]]]:
        for source in self._sources:
            for name, kind, value, labels, help in source():
                yield name, kind, help, [(_series_name(name, labels), value)]
        values: dict[int, list[float]] = {}  # by distribution: aliases share them
        for summary in (*self._summaries, *self._aliases):
            series: list[tuple[str, float]] = []
            sides = (("false", summary.failure), ("true", summary.success))
            for (_, distribution), lines in zip(sides, self._lines(summary), strict=True):
                found = values.get(id(distribution))
                if found is None:
                    snapshot = distribution.snapshot()
                    found = snapshot.quantiles(_SHARES)
                    values[id(distribution)] = found = [*found, snapshot.count, snapshot.total]
                series += zip(lines, found, strict=True)
            yield summary.name, "summary", summary.help, series

    def _lines(self, summary: Summary) -> list[list[str]]:
        """The names of its series, failures first; they never change."""
        key = summary.name, summary.labels
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = []
            for success in ("false", "true"):
                labels = (("success", success), *summary.labels)
                lines = [
                    _series_name(summary.name, (*labels, ("quantile", share)))
                    for share in QUANTILES
                ]
                ends = [_series_name(f"{summary.name}{end}", labels) for end in ("_count", "_sum")]
                found.append(lines + ends)
        return found


class _Family(NamedTuple):
    kind: Kind
    help: str
    series: dict[str, float]


def page(registry: Registry) -> bytes:
    """What `/metrics` answers: the registry, then the process itself."""
    try:
        from prometheus_client import ProcessCollector, generate_latest
    except ImportError:
        raise LedgerError(
            "metrics need the package prometheus-client; install quire[bookie], "
            "or leave statsProviderClass unset"
        ) from None
    return registry.render().encode() + generate_latest(ProcessCollector(registry=None))


def _bucket(value: float) -> int:
    if value < _SMALLEST:
        return _ZERO_BUCKET
    if value >= _LARGEST:
        return _LAST_BUCKET
    mantissa, exponent = math.frexp(value)  # mantissa from 0.5 up to, but not, 1
    return exponent * _STEPS + int((mantissa - 0.5) * (2 * _STEPS))


def _upper_bound(bucket: int) -> float:
    if bucket == _ZERO_BUCKET:
        return _SMALLEST
    if bucket == _LAST_BUCKET:
        return math.inf
    exponent, step = divmod(bucket, _STEPS)
    return math.ldexp(0.5 + (step + 1) / (2 * _STEPS), exponent)


def _series_name(name: str, labels: Labels) -> str:
    assert _NAME.fullmatch(name), f"{name!r} is no name of a metric"
    if not labels:
        return name
    inner = ",".join(f'{key}="{value.translate(_LABEL_ESCAPES)}"' for key, value in labels)
    return f"{name}{{{inner}}}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # a bool is a number, too
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
