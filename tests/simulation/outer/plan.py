"""One seed, one plan of the outer ring: the cluster, who takes part, and which faults exist."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Final

from tests.simulation.plan import SHAPES

#: How long faults go on, in virtual seconds: longer than a client waits for an answer.
FAULT_SECONDS: Final = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterPlan:
    seed: int
    shape: tuple[int, int, int] = (3, 3, 2)
    spares: int = 2
    appends: int = 8  # calls of the writer's caller
    batch_max: int = 3  # entries of one call
    payload_bytes: int = 40
    recoverers: int = 1
    readers: int = 1
    crowd: int = 0  # other ledgers, that somebody else writes
    deferred_sync: bool = False
    pace: float = 0.0  # seconds that the writer's caller may take between two calls
    late: bool = False  # the writer comes back with one more entry after a while
    closes: bool = True  # the writer, at its end
    #: Share of the bookies that do not take batches of adds.
    v2_share: float = 0.0
    #: Seconds within which most of the work and of the faults fall together.
    tempo: float = 0.5
    #: Bytes that may wait for the journal before adds are parked.
    pending_bytes: int = 1 << 20
    flush_seconds: float = 10.0
    # faults
    crashes: int = 0
    crashes_at_fence: int = 0  # bookies that lose their power as soon as they have answered one
    power: bool = False  # crashes are losses of power, not of processes
    silent: bool = False  # nobody is told: the other ends stay half open
    cuts: int = 0
    partitions: int = 0
    spikes: float = 0.0  # share of what is sent that is held up for long
    slow_disks: int = 0
    stalls: int = 0
    stalls_at_open: bool = False  # a disk hangs when somebody opens the ledger
    sleeps: int = 0  # times that nothing gets through between the writer and all bookies
    full_disks: int = 0
    disk_errors: int = 0
    rot: int = 0
    deaths: int = 0  # of clients
    store_faults: float = 0.0  # share of the requests that lose their answer, or never arrive
    store_delays: float = 0.0
    store_away: int = 0
    stale_reads: float = 0.0
    expiries: int = 0  # sessions that end
    late_watches: float = 0.0

    given_ids: bool = False  # the writer's caller chooses them
    conflicts: float = 0.0  # share of the changes of nodes before which somebody else writes there
    clock_jumps: int = 0
    autorecovery: int = 0  # processes of it
    worker_deaths: int = 0  # of these; they are started again
    grace: float = 2.0  # seconds that a writer gets before autorecovery fences it
    loss_delay: int = 0  # seconds that a bookie may be away
    lists: bool = False  # the auditor asks for lists of entries, too
    losses: int = 0  # bookies that are gone for good
    wipes: int = 0  # bookies that lose their disk, or a part of it

    @classmethod
    def of(cls, seed: int) -> OuterPlan:
        chance = Random(f"outer plan {seed}")

        def sometimes(share: float = 0.3) -> bool:
            return chance.random() < share

        plan = cls(
            seed=seed,
            shape=chance.choice(SHAPES[:7]),
            spares=chance.randrange(3),
            appends=chance.randrange(1, 12),
            batch_max=chance.choice((1, 3, 8)),
            payload_bytes=chance.choice((10, 100, 1000)),
            recoverers=chance.choice((0, 1, 1, 2)),
            readers=chance.choice((0, 1, 1, 2)),
            crowd=chance.choice((0, 0, 0, 8)),
            deferred_sync=sometimes(0.1),
            late=sometimes(0.4),
            closes=sometimes(0.4),
            v2_share=chance.choice((0.0, 0.0, 0.5, 1.0)),
            tempo=chance.choice((0.02, 0.1, 0.5, 3.0)),
            pending_bytes=chance.choice((1 << 20, 1 << 20, 500)),
            flush_seconds=chance.choice((0.5, 2.0, 10.0)),
            crashes=chance.randrange(1, 4) if sometimes(0.4) else 0,
            crashes_at_fence=chance.randrange(1, 3) if sometimes(0.25) else 0,
            power=sometimes(0.6),
            silent=sometimes(0.3),
            cuts=chance.randrange(1, 4) if sometimes() else 0,
            partitions=chance.randrange(1, 3) if sometimes() else 0,
            spikes=chance.choice((0.02, 0.1)) if sometimes(0.4) else 0.0,
            slow_disks=chance.randrange(1, 3) if sometimes(0.25) else 0,
            stalls=chance.randrange(1, 3) if sometimes(0.25) else 0,
            stalls_at_open=sometimes(0.2),
            sleeps=1 if sometimes(0.2) else 0,
            full_disks=1 if sometimes(0.15) else 0,
            disk_errors=1 if sometimes(0.15) else 0,
            rot=1 if sometimes(0.15) else 0,
            deaths=1 if sometimes(0.25) else 0,
            store_faults=chance.choice((0.05, 0.2)) if sometimes() else 0.0,
            store_delays=0.2 if sometimes() else 0.0,
            store_away=1 if sometimes(0.15) else 0,
            stale_reads=0.1 if sometimes(0.2) else 0.0,
            expiries=1 if sometimes(0.2) else 0,
            late_watches=0.3 if sometimes(0.2) else 0.0,
            conflicts=0.3 if sometimes(0.2) else 0.0,
            clock_jumps=chance.randrange(1, 4) if sometimes(0.2) else 0,
            wipes=1 if sometimes(0.15) else 0,
        )  # fmt: skip
        if sometimes(0.1) and not plan.deferred_sync:
            plan = replace(plan, given_ids=True)
        if not sometimes(0.3):
            return plan
        losses = chance.choice((0, 1, 1, 2))
        return replace(
            plan,
            autorecovery=chance.choice((1, 2)),
            worker_deaths=chance.randrange(1, 3) if sometimes() else 0,
            grace=chance.choice((0.5, 2.0, 5.0)),
            loss_delay=chance.choice((0, 0, 3)),
            lists=sometimes(),
            losses=losses,
            spares=max(plan.spares, losses),
            pace=chance.choice((0.0, 0.5, 2.0)),
        )

    @property
    def losses_allowed(self) -> int:
        """Bookies that may lose data without anything confirmed being gone."""
        return self.shape[2] - 1

    def told(self) -> str:
        """The plan in one line: the shape, and whatever is not as it usually is."""
        words = [f"shape {self.shape}"]
        words += (
            f"{field.name.replace('_', ' ')} {getattr(self, field.name)}"
            for field in fields(self)
            if field.name not in ("seed", "shape") and getattr(self, field.name) != field.default
        )
        return ", ".join(words)

    def smaller(self) -> list[OuterPlan]:
        """Plans with one thing less each, for finding the least that still goes wrong."""
        found = []
        for field in fields(self):
            value, plain = getattr(self, field.name), field.default
            if field.name in _FIXED or value == plain:
                continue
            if isinstance(value, bool | float) or value in (0, 1):
                less: Any = plain
            elif value > 1 and field.name in _COUNTS:
                less = value // 2 if value > 3 else value - 1  # a run takes its time
            else:
                less = plain
            found.append(replace(self, **{field.name: less}))
        return found


_FIXED: Final = frozenset({"seed", "shape", "tempo"})
_COUNTS: Final = frozenset(
    {"appends", "batch_max", "recoverers", "readers", "crashes", "cuts", "partitions",
     "slow_disks", "stalls", "spares", "crowd", "clock_jumps", "autorecovery", "worker_deaths",
     "losses"}
)  # fmt: skip
