"""What the console knows of the cluster at one moment, in the form in which the page gets it.

Bookies come from the registrations, whom somebody follows anyway, and from their cookies; their
figures from the metrics page that each of them announces. A bookie without one says at least how
full its disks are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import trio

from autorecovery import operators
from autorecovery.context import RecoveryContext
from autorecovery.core.forecast import Progress
from ledger_client.bookie_info import ask_bookie_info
from ledger_client.core.topology import DEFAULT_RACK
from ledger_client.topology import Topology
from metadata.service_info import BookieServiceInfo
from quire.console.faults import FaultPanel, ProcessState
from quire.console.metrics_text import Scrape, parse_metrics
from quire.console.page_fetch import PageError, fetch_page
from quire.console.rates import RateMeter, Rates, total
from quire.forecast import forecast_object
from wire.errors import LedgerError
from wire.types import BookieId

#: A bookie that takes longer counts as silent in this look.
_ASK_SECONDS: Final = 0.9
_STORE_SECONDS: Final = 2.0
_ASKED_AT_ONCE: Final = 16
#: Marked ledgers that the page lists; of more it says how many.
MARKS_SHOWN: Final = 50

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What one bookie answered."""

    scrape: Scrape = field(default_factory=Scrape)
    rates: Rates = field(default_factory=Rates)
    free_bytes: int | None = None
    total_bytes: int | None = None
    has_metrics: bool = False
    problem: str | None = None


@dataclass(slots=True, eq=False)
class ClusterView:
    context: RecoveryContext
    panel: FaultPanel | None = None
    topology: Topology | None = None
    _meters: dict[BookieId, RateMeter] = field(default_factory=dict)
    _known: tuple[BookieId, ...] = ()
    _progress: Progress = field(default_factory=Progress)

    # ------------------------------------------------------------------ bookies

    async def look(self) -> Json:
        """One sample. Never fails: what could not be learned is in `lost`."""
        lost: list[str] = []
        registered = self.context.watcher.bookies
        looks: dict[BookieId, _Look] = {}
        limiter = trio.CapacityLimiter(_ASKED_AT_ONCE)

        async def one(bookie_id: BookieId) -> None:
            async with limiter:
                looks[bookie_id] = await self._ask(bookie_id, registered.info.get(bookie_id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_cookies, lost)
            for bookie_id in registered.all:
                nursery.start_soon(one, bookie_id)
        processes = self.panel.states() if self.panel is not None else {}
        everybody = sorted({*self._known, *registered.all, *processes})
        for gone in self._meters.keys() - registered.all:
            del self._meters[gone]
        rows = []
        for bookie_id in everybody:
            state = "absent"
            if bookie_id in registered.all:
                state = "writable" if bookie_id in registered.writable else "read-only"
            look = looks.get(bookie_id, _Look())
            rows.append(self._row(bookie_id, state, look, processes.get(bookie_id)))
        return {
            "bookies": rows,
            "totals": _totals(looks),
            "lost": lost,
        }

    async def _read_cookies(self, lost: list[str]) -> None:
        try:
            with trio.fail_after(_STORE_SECONDS):
                self._known = tuple(await self.context.cookies.bookies())
        except trio.TooSlowError:
            lost.append("ZooKeeper does not answer; bookies and ledgers are as last seen")
        except LedgerError as error:
            lost.append(f"ZooKeeper: {error}; bookies and ledgers are as last seen")

    async def _ask(self, bookie_id: BookieId, info: BookieServiceInfo | None) -> _Look:
        url = None if info is None else info.http_url
        # Its certificate, if it has one, is made out for others: see fetch_page.
        if url is not None and url.startswith("http:"):
            try:
                text = await fetch_page(f"{url}/metrics", timeout_seconds=_ASK_SECONDS)
            except PageError as error:
                return _Look(has_metrics=True, problem=f"metrics: {error}")
            scrape = parse_metrics(text)
            meter = self._meters.setdefault(bookie_id, RateMeter())
            rates = meter.on_look(scrape, trio.current_time())
            if scrape.disk_used is not None:
                return _Look(scrape=scrape, rates=rates, has_metrics=True)
        with trio.move_on_after(_ASK_SECONDS):
            try:
                space = await ask_bookie_info(self.context.client, bookie_id)
            except LedgerError as error:
                return _Look(problem=str(error))
            used = 1 - space.free_bytes / space.total_bytes if space.total_bytes else None
            return _Look(
                scrape=Scrape(disk_used=used),
                free_bytes=space.free_bytes,
                total_bytes=space.total_bytes,
            )
        return _Look(problem=f"no answer within {_ASK_SECONDS:g} s")

    def _row(
        self, bookie_id: BookieId, state: str, look: _Look, process: ProcessState | None
    ) -> Json:
        scrape = look.scrape
        return {
            "id": bookie_id,
            "state": state,
            "rack": self._rack(bookie_id),
            "disk": {
                "used": scrape.disk_used, "free": look.free_bytes, "total": look.total_bytes,
            },
            "rates": asdict(look.rates),
            "add": asdict(scrape.add_latency),
            "read": asdict(scrape.read_latency),
            "lag": scrape.loop_lag_p99_ms,
            "hasMetrics": look.has_metrics,
            "problem": look.problem,
            "process": None if process is None else _process(process),
        }  # fmt: skip

    def _rack(self, bookie_id: BookieId) -> str:
        place = DEFAULT_RACK if self.topology is None else self.topology.locations.of(bookie_id)
        return "/" + "/".join(place)

    # ------------------------------------------------------------------ re-replication

    async def look_at_recovery(self) -> Json:
        """Who audits, what is marked, how long it will take. LedgerError if it cannot be read."""
        status = await operators.status(self.context, self._progress)
        marks: list[Json] = []
        async for mark in operators.under_replicated(self.context):
            marks.append(
                {
                    "ledgerId": str(mark.ledger_id),
                    "missing": list(mark.missing),
                    "holder": mark.holder,
                    "reason": mark.reason,
                    "markedMs": mark.marked_ms,
                }
            )
            if len(marks) == MARKS_SHOWN:
                break
        return {
            "enabled": status.is_enabled,
            "auditor": status.auditor,
            "delaySeconds": status.delay_seconds,
            "lastChecks": {check.value: ms for check, ms in status.last_checks_ms.items()},
            "forecast": forecast_object(status.forecast),
            "marks": marks,
        }


def _process(process: ProcessState) -> Json:
    return {
        "state": process.state,
        "pid": process.pid,
        "buttons": {fault.value: why for fault, why in process.buttons.items()},
    }


def _totals(looks: Mapping[BookieId, _Look]) -> Json:
    """Sums of rates; of latencies the worst, since a quorum waits for its slower half."""
    scrapes = [look.scrape for look in looks.values()]

    def worst(pick: Callable[[Scrape], float | None]) -> float | None:
        return max((v for scrape in scrapes if (v := pick(scrape)) is not None), default=None)

    return {
        **asdict(total(look.rates for look in looks.values())),
        "addP50": worst(lambda scrape: scrape.add_latency.p50),
        "addP99": worst(lambda scrape: scrape.add_latency.p99),
        "readP50": worst(lambda scrape: scrape.read_latency.p50),
        "readP99": worst(lambda scrape: scrape.read_latency.p99),
        "lag": worst(lambda scrape: scrape.loop_lag_p99_ms),
    }
