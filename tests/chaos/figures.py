"""What a run amounts to, as a table for people and JSON for machines."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from tests.chaos.checker import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fault that was injected. Times are CLOCK_MONOTONIC, as in histories."""

    kind: str
    targets: tuple[str, ...]
    told: str
    begun: float
    lifted: float
    heal_seconds: float | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFigures:
    """All faults of one kind."""

    kind: str
    injected: int
    #: The longest time within which no writer of the whole workload got anything confirmed.
    silent_seconds: float
    #: The longest that one client, of several, got nothing confirmed.
    client_silent_seconds: float
    #: From the end of the fault until every copy was back; only for what destroys copies.
    heal_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    seed: int
    network: str
    seconds: float
    ledgers: int
    confirmed: int
    acked_deferred: int
    lost: int
    read: int
    deleted: int
    ends_seen: int
    fenced: int
    errors: dict[str, int]
    kinds: list[KindFigures]
    last_heal_seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def table(self) -> str:
        rows = [("fault", "injected", "all silent", "one client silent", "healed after")]
        for kind in self.kinds:
            healed = "-" if kind.heal_seconds is None else f"{kind.heal_seconds:.1f} s"
            silent = f"{kind.silent_seconds:.1f} s", f"{kind.client_silent_seconds:.1f} s"
            rows.append((kind.kind, str(kind.injected), *silent, healed))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        injected = sum(kind.injected for kind in self.kinds)
        return "\n".join(
            [
                *lines,
                "",
                f"seed {self.seed}, {self.network}, {self.seconds / 60:.1f} minutes of faults",
                f"faults injected    {injected}",
                f"ledgers            {self.ledgers} ({self.deleted} deleted, "
                f"{self.fenced} writers fenced)",
                f"entries confirmed  {self.confirmed}",
                f"entries read       {self.read}",
                f"entries lost       {self.lost}",
                f"whole at the end   after {self.last_heal_seconds:.1f} s",
            ]
        )


def figures_of(
    *,
    seed: int,
    network: str,
    seconds: float,
    events: list[Event],
    lines: Iterable[dict[str, Any]],
    counts: Counts,
    last_heal_seconds: float,
) -> Figures:
    acks: dict[str, list[float]] = {}
    for line in lines:
        if line["k"] in ("acked", "forced"):
            acks.setdefault(line["who"].partition("-")[0], []).append(line["t"])
    for times in acks.values():
        times.sort()
    everybody = sorted(time for times in acks.values() for time in times)
    kinds = []
    for kind in sorted(Counter(event.kind for event in events)):
        of_kind = [event for event in events if event.kind == kind]
        heals = [event.heal_seconds for event in of_kind if event.heal_seconds is not None]
        kinds.append(
            KindFigures(
                kind=kind,
                injected=len(of_kind),
                silent_seconds=max(_silence(everybody, event) for event in of_kind),
                client_silent_seconds=max(
                    (_silence(times, event) for event in of_kind for times in acks.values()),
                    default=0.0,
                ),
                heal_seconds=max(heals, default=None),
            )
        )
    return Figures(
        seed=seed,
        network=network,
        seconds=seconds,
        ledgers=counts.ledgers,
        confirmed=counts.confirmed,
        acked_deferred=counts.acked_deferred,
        lost=counts.lost,
        read=counts.read,
        deleted=counts.deleted,
        ends_seen=counts.recovered,
        fenced=counts.fenced,
        errors=dict(counts.errors.most_common()),
        kinds=kinds,
        last_heal_seconds=last_heal_seconds,
    )


def _silence(times: list[float], event: Event) -> float:
    """The longest pause between two confirmations that has something to do with the fault.

    It may begin just before the fault and end long after it.
    """
    start = max(0, bisect_left(times, event.begun) - 1)
    end = min(len(times), bisect_left(times, event.lifted) + 1)
    around = times[start:end]
    if end == len(times):  # nothing was confirmed any more
        around = [*around, event.lifted]
    pauses = (b - a for a, b in pairwise(around))
    return max(pauses, default=0.0)
