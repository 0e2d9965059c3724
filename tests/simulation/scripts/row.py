"""One row of the fault table: the script of its beginning, and the plans that it fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.simulation.inner.world import World
from tests.simulation.plan import Plan
from tests.simulation.scripts.stage import OffScriptError, Stage


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    holds: str  # what must hold
    act: Callable[[Stage], None]
    shapes: tuple[tuple[int, int, int], ...]
    spares: int
    sets: dict[str, Any]

    def prefix(self, world: World) -> None:
        stage = Stage(world)
        try:
            self.act(stage)
        except OffScriptError as error:
            world.off_script = str(error)
        stage.curtain()

    def plan(self, seed: int) -> Plan:
        """Everything that the script does not fix is as the seed has it."""
        chance = Random(f"{self.name} {seed}")
        plain = {
            "patience": 0.4, "deferred_sync": False, "given_ids": False, "delayed_change": False,
            "no_change": False, "quorum_timeout": False, "ask_all": True, "idle_lac": False,
            "sticky_reads": False, "short_queue": False, "short_storms": False,
        }  # fmt: skip
        return replace(
            Plan.of(seed),
            script=self.name,
            shape=chance.choice(self.shapes),
            spares=self.spares,
            **{**plain, **self.sets},
        )


ROWS: dict[str, Row] = {}


def row(
    name: str,
    holds: str,
    *,
    shapes: tuple[tuple[int, int, int], ...] = ((3, 3, 2),),
    spares: int = 2,
    **sets: Any,
) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Enter a script into the table; `sets` are fields of the plan that it depends on."""

    def enter(act: Callable[[Stage], None]) -> Callable[[Stage], None]:
        assert name not in ROWS
        ROWS[name] = Row(name, holds, act, shapes, spares, sets)
        return act

    return enter
