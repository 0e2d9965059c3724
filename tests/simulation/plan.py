"""One seed, one plan: the shape of the ledger, who takes part, and which faults exist at all.

Every fault is on in some plans and off in others (a swarm): with all of them on in each plan, the
loud ones would hide what the quiet ones do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Final

SHAPES: Final = (
    (3, 3, 2),
    (3, 2, 2),
    (4, 3, 2),
    (5, 3, 2),
    (2, 2, 1),
    (4, 4, 3),
    (6, 3, 3),
    (1, 1, 1),
)

#: How long faults go on. Then everything is healed, and what was begun must come to its end.
FAULT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    #: The row of the fault table whose prefix is played first; empty: chance alone.
    script: str = ""
    shape: tuple[int, int, int] = (3, 3, 2)
    spares: int = 2
    appends: int = 8  # calls of the writer's caller
    batch_max: int = 3  # entries of one call
    recoverers: int = 1
    readers: int = 1
    window: int = 16  # of recovery
    ask_all: bool = True
    idle_lac: bool = True
    delayed_change: bool = False
    no_change: bool = False  # failed bookies are asked again instead
    quorum_timeout: bool = False
    grouped: bool = False  # the writer hears several answers at once
    parallel_reads: bool = False
    sticky_reads: bool = False
    short_queue: bool = False  # the writer's caller has to wait now and then
    short_storms: bool = False  # few ensemble changes are put up with
    intruders: int = 0  # clients with another password
    leaves: bool = False  # the writer's client is closed under it
    drops: bool = False  # bookies that a closed ledger has left delete it
    generous: bool = False  # bookies answer a read of many with more than was asked for
    deferred_sync: bool = False
    given_ids: bool = False
    batch_share: float = 1.0  # of the bookies that answer a batch once
    closes: bool = True  # the writer, at its end
    #: Seconds within which most of the work and of the faults fall together.
    tempo: float = 0.2
    patience: float = 0.4  # of a client with one request
    # faults
    loss: float = 0.0
    spikes: float = 0.0  # share of messages that are held up for long
    twice: float = 0.0  # share of answers to adds that come twice
    crashes: int = 0
    torn: bool = False  # a crash may keep some of what was not synced
    stalls: int = 0  # disks that sync nothing for a while
    pauses: int = 0
    partitions: int = 0
    read_only: int = 0
    lost_answers: float = 0.0  # of the metadata store
    stale_reads: float = 0.0
    store_away: int = 0  # times
    deaths: int = 0  # of clients
    rot: int = 0  # entries that one bookie's disk damages
    wipes: int = 0  # bookies that lose everything and come back in limbo
    clock_jumps: int = 0
    repairs: int = 0  # bookies whose copies are moved elsewhere meanwhile

    @classmethod
    def of(cls, seed: int) -> Plan:
        chance = Random(f"plan {seed}")

        def sometimes(share: float = 0.35) -> bool:
            return chance.random() < share

        deferred = sometimes(0.08)
        return cls(
            seed=seed,
            shape=chance.choice(SHAPES),
            spares=chance.randrange(4),
            appends=chance.randrange(1, 10),
            batch_max=chance.choice((1, 3, 6)),
            recoverers=chance.choice((0, 1, 1, 2, 3)),
            readers=chance.choice((0, 1, 1, 2)),
            window=chance.choice((1, 2, 16)),
            ask_all=sometimes(0.5),
            idle_lac=sometimes(0.5),
            delayed_change=sometimes(0.25),
            deferred_sync=deferred,
            given_ids=not deferred and sometimes(0.1),
            batch_share=chance.choice((0.0, 0.5, 1.0)),
            closes=sometimes(0.4),
            tempo=chance.choice((0.03, 0.1, 0.5)),
            patience=chance.choice((0.03, 0.1, 0.4)),
            loss=chance.choice((0.02, 0.1, 0.2)) if sometimes() else 0.0,
            spikes=chance.choice((0.02, 0.1)) if sometimes(0.5) else 0.0,
            crashes=chance.randrange(1, 4) if sometimes() else 0,
            torn=sometimes(0.5),
            pauses=chance.randrange(1, 3) if sometimes() else 0,
            partitions=chance.randrange(1, 4) if sometimes() else 0,
            read_only=1 if sometimes(0.2) else 0,
            lost_answers=0.2 if sometimes() else 0.0,
            stale_reads=0.3 if sometimes() else 0.0,
            store_away=chance.randrange(1, 3) if sometimes(0.2) else 0,
            deaths=chance.randrange(1, 3) if sometimes(0.3) else 0,
            rot=1 if sometimes(0.15) else 0,
            wipes=1 if sometimes(0.15) else 0,
            clock_jumps=1 if sometimes(0.15) else 0,
            repairs=1 if sometimes(0.2) else 0,
            no_change=sometimes(0.08),
            quorum_timeout=sometimes(0.1),
            grouped=sometimes(0.3),
            parallel_reads=sometimes(0.2),
            generous=sometimes(0.3),
            twice=0.2 if sometimes(0.2) else 0.0,
            stalls=chance.randrange(1, 3) if sometimes(0.2) else 0,
            sticky_reads=sometimes(0.3),
            short_queue=sometimes(0.2),
            short_storms=sometimes(0.15),
            intruders=1 if sometimes(0.1) else 0,
            leaves=sometimes(0.05),
            drops=sometimes(0.2),
        )  # fmt: skip

    @property
    def losses_allowed(self) -> int:
        """Bookies that may lose data without anything confirmed being gone."""
        return self.shape[2] - 1

    def told(self) -> str:
        """The plan in one line: the shape, and whatever is not as it usually is."""
        words = [f"script {self.script}"] if self.script else []
        words.append(f"shape {self.shape}")
        words += (
            f"{field.name.replace('_', ' ')} {getattr(self, field.name)}"
            for field in fields(self)
            if field.name not in ("seed", "script", "shape")
            and getattr(self, field.name) != field.default
        )
        return ", ".join(words)

    def smaller(self) -> list[Plan]:
        """Plans with one thing less each, for finding the least that still goes wrong."""
        found = []
        for field in fields(self):
            value, plain = getattr(self, field.name), field.default
            if field.name in ("seed", "script", "shape") or value == plain:
                continue
            if field.name in ("tempo", "patience"):
                continue
            if isinstance(value, bool | float) or value in (0, 1):
                less: Any = plain
            elif value > 1 and field.name in _COUNTS:
                less = value - 1
            else:
                continue
            found.append(replace(self, **{field.name: less}))
        return found


_COUNTS: Final = frozenset(
    {"appends", "batch_max", "recoverers", "readers", "crashes", "pauses", "partitions", "stalls",
     "store_away", "deaths"}
)  # fmt: skip
