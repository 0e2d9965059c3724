"""What every checker has: the world it sees all of, and a way to say what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from ledger_client.core.distribution import Distribution
from tests.simulation.history import ViolationError

if TYPE_CHECKING:
    from tests.simulation.inner.world import World


class Checker:
    name: str

    def __init__(self, world: World) -> None:
        self.world = world
        self.distribution = Distribution.of(world.store.metadata)

    def write_set(self, entry_id: int) -> Sequence[int]:
        return self.distribution.write_set(entry_id)

    def fail(self, what: str) -> NoReturn:
        raise ViolationError(self.name, what)
