"""Messages between clients and bookies: late, lost, held up, cut off.

A request ends exactly once for whoever asked: with its answer, or with an outcome that the client
made up after its patience was over. The bookie may still act on it after that, which is where the
interesting schedules are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ledger_client.core.commands import Outcome

if TYPE_CHECKING:
    from tests.simulation.inner.bookie import ModelBookie
    from tests.simulation.inner.world import World


class Client:
    """Somebody who asks. Dead, it neither hears nor says anything."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.skew = 0.0  # of its clock
        self.version = 0  # of the record, as far as it knows

    @property
    def now(self) -> float:
        return self.world.agenda.now + self.skew

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self.world.agenda.after(seconds, lambda: None if self.is_dead else act())


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self._agenda = world.agenda
        self._chance = world.chance
        self.loss = world.plan.loss
        self.spikes = world.plan.spikes
        self.cut: set[tuple[str, str]] = set()  # from whom to whom nothing gets through

    def ask(
        self,
        client: Client,
        bookie: ModelBookie,
        act: Callable[[Callable[..., None]], None],
        answered: Callable[..., None],
        patience: float | None = None,
    ) -> None:
        """Have `act(reply)` done at the bookie; `answered(outcome, ...)` hears of it once."""
        is_over = False

        def end(*what: Any) -> None:
            nonlocal is_over
            if not is_over and not client.is_dead:
                is_over = True
                answered(*what)

        def reply(*what: Any) -> None:
            if bookie.is_up:  # whoever crashed meanwhile says nothing
                self._carry(bookie.name, client.name, lambda: end(*what))

        def arrive() -> None:
            if bookie.is_up:
                bookie.take(lambda: act(reply))
            elif self._chance.random() < 0.7:
                self._carry(bookie.name, client.name, lambda: end(Outcome.NOT_CONNECTED))

        if patience is None:
            patience = self._world.plan.patience
        self._agenda.after(patience, lambda: end(Outcome.TIMEOUT))
        self._carry(client.name, bookie.name, arrive)

    def ask_in_parts(
        self,
        client: Client,
        bookie: ModelBookie,
        act: Callable[[Callable[..., None]], None],
        answered: Callable[..., None],
    ) -> None:
        """As `ask`, for requests that are answered piece by piece; the shell times them out."""

        def reply(*what: Any) -> None:
            if bookie.is_up:
                self._carry(
                    bookie.name, client.name, lambda: None if client.is_dead else answered(*what)
                )

        def arrive() -> None:
            if bookie.is_up:
                bookie.take(lambda: act(reply))

        self._carry(client.name, bookie.name, arrive)

    def _carry(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        chance = self._chance.random
        if (source, target) in self.cut or (self.loss and chance() < self.loss):
            return
        seconds = 0.001 + 0.006 * chance()
        if self.spikes and chance() < self.spikes:
            seconds += chance() * 4 * self._world.plan.tempo
        self._agenda.after(seconds, arrive)
