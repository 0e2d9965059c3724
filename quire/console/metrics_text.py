"""What the console reads from a bookie's `/metrics`: a few series of Prometheus' text.

A page is whatever a peer sent, so nothing in it is believed: lines that are no samples are passed
over, and what is missing is None. Apache's bookies have the same names, apart from those of ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^}]*)\})?\s+(\S+)")
_LABEL: Final = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ADD: Final = "bookkeeper_server_ADD_ENTRY_REQUEST"
_READ: Final = "bookkeeper_server_READ_ENTRY_REQUEST"
#: Counts entries however they were asked for; the request's own counter knows no batches.
_READ_ENTRIES: Final = "bookie_BOOKIE_READ_ENTRY_BYTES_count"
_DISK: Final = re.compile(r"bookie_ledger_dir_.*_usage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds, over the window of the bookie. None: nothing happened in it."""

    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One look at one bookie. Counters grow from its start on."""

    adds: float | None = None
    reads: float | None = None
    added_bytes: float | None = None
    read_bytes: float | None = None
    add_latency: Latency = Latency()
    read_latency: Latency = Latency()
    loop_lag_p99_ms: float | None = None
    #: Share of the fullest ledger directory's disk.
    disk_used: float | None = None
    is_writable: bool | None = None


def parse_metrics(text: str) -> Scrape:
    found: dict[tuple[str, str | None], float] = {}
    disks: list[float] = []
    for name, labels, value in samples(text):
        if labels.get("success", "true") != "true":
            continue
        found[name, labels.get("quantile")] = value
        if _DISK.fullmatch(name):
            disks.append(value)

    def one(name: str, quantile: str | None = None) -> float | None:
        value = found.get((name, quantile))
        return value if value is not None and math.isfinite(value) else None

    status = one("bookie_SERVER_STATUS")
    used = max((disk for disk in disks if math.isfinite(disk)), default=None)
    return Scrape(
        adds=one(f"{_ADD}_count"),
        reads=one(_READ_ENTRIES),
        added_bytes=one("bookie_WRITE_BYTES"),
        read_bytes=one("bookie_READ_BYTES"),
        add_latency=Latency(p50=one(_ADD, "0.5"), p99=one(_ADD, "0.99")),
        read_latency=Latency(p50=one(_READ, "0.5"), p99=one(_READ, "0.99")),
        loop_lag_p99_ms=one("quire_loop_lag_ms", "0.99"),
        # Gauges of disks are per cent.
        disk_used=None if used is None else min(1.0, max(0.0, used / 100)),
        is_writable=None if status is None else status == 1,
    )


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        yield match[1], dict(_LABEL.findall(match[2] or "")), value
