"""Curves: how the rate of adds moves with the size of entries, the ledgers and the writers.

Each point is one run on each side, ours and Apache's with its group wait at 0, in turn.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.compare import OURS, Side
from bench.compare_run import Bench, tell, twice
from bench.peers.load import JavaLoad, LoadProcess, OurLoad

SIDES: Final = (OURS, Side("java", "apache"))

Points = dict[int, float]  # where along the curve, and entries per second


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    axis: str
    points: tuple[int, ...]


def curves(*, ledgers_max: int) -> list[Curve]:
    ledgers = tuple(count for count in (1, 10, 100, 1000, 10_000) if count <= ledgers_max)
    return [
        Curve("size", "bytes per entry", (100, 1024, 16 << 10, 128 << 10, 1 << 20)),
        Curve("ledgers", "ledgers, entries of 1 KiB in turn", ledgers),
        Curve("writers", "writers, each a process, entries of 1 KiB", (1, 2, 4, 8)),
    ]


def run(bench: Bench, folder: Path, chosen: list[Curve]) -> dict[str, dict[Side, Points]]:
    found: dict[str, dict[Side, Points]] = {}
    for curve in chosen:
        into = found[curve.name] = {side: {} for side in SIDES}
        for point in curve.points:
            for side in SIDES:
                tell(f"growth, {point} {curve.axis}: {side}")
                rate = _rate_if_any(bench, folder, curve, point, side)
                if rate is not None:
                    into[side][point] = rate
    return found


def _rate_if_any(bench: Bench, folder: Path, curve: Curve, point: int, side: Side) -> float | None:
    """A point that fails twice is left out."""

    def measure(attempt: int) -> float:
        return _rate(bench, folder / f"{curve.name}-{point}-{attempt}", curve, point, side)

    return twice(measure, "going on without it")[0]


def _rate(bench: Bench, folder: Path, curve: Curve, point: int, side: Side) -> float:
    given: dict[str, object] = {
        "uri": bench.clusters[side.cluster].uri,
        "wire": side.wire,
        "seconds": bench.pace.seconds,
        "size": point if curve.name == "size" else 1024,
        # The bytes on their way stay within what either client holds.
        "outstanding": min(2000, (32 << 20) // point) if curve.name == "size" else 2000,
    }
    if curve.name == "ledgers":
        given["ledgers"] = point
    if curve.name != "writers":
        return _entries_per_second(bench.loads[side.client], given)
    make: type[LoadProcess] = OurLoad if side.client == "ours" else JavaLoad
    with ExitStack() as stack:
        loads = []
        for number in range(point):
            place = folder / f"{side.client}-{number}"
            place.mkdir(parents=True)
            loads.append(stack.enter_context(make(place)))
        with ThreadPoolExecutor(point) as pool:
            warm = given | {"seconds": bench.pace.warm_seconds}
            list(pool.map(lambda load: _entries_per_second(load, warm), loads))
            return sum(pool.map(lambda load: _entries_per_second(load, given), loads))


def _entries_per_second(load: LoadProcess, given: dict[str, object]) -> float:
    found = load.run("add", **given)
    return found["entries"] / found["seconds"]
