"""Messages between clients, bookies and the store: late, lost, twice, held up, cut off.

A request ends exactly once for whoever asked: with its answer, or with an outcome that the client
made up after its patience was over. The bookie may still act on it after that, which is where the
interesting schedules are.

A script may say what happens to single messages. Each has a name, `W add b2 7`: from, kind, to,
first entry; its answer is `b2 add W 7`, and what goes to the store is `W Close store -1`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from fnmatch import fnmatchcase
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


class Fate(Enum):
    PASS = auto()
    HOLD = auto()
    LOSE = auto()


class Rules:
    """What a script has said about messages. The rule said last decides."""

    def __init__(self) -> None:
        self.held: list[tuple[str, Callable[[], None]]] = []
        self.arrived: list[str] = []
        self._rules: list[tuple[str, Fate]] = []

    def say(self, pattern: str, fate: Fate) -> None:
        self._rules.insert(0, (pattern, fate))

    def forget(self, pattern: str) -> None:
        self._rules = [rule for rule in self._rules if rule[0] != pattern]

    def fate_of(self, name: str) -> Fate:
        return next((fate for pattern, fate in self._rules if matches(name, pattern)), Fate.PASS)

    def take(self, pattern: str) -> list[tuple[str, Callable[[], None]]]:
        """The held messages of such names, which are held no longer."""
        taken = [message for message in self.held if matches(message[0], pattern)]
        self.held = [message for message in self.held if not matches(message[0], pattern)]
        return taken


def matches(name: str, pattern: str) -> bool:
    """A pattern may leave out the entry."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern} *")


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self._agenda = world.agenda
        self._chance = world.chance
        self.loss = 0.0
        self.spikes = 0.0
        self.twice = 0.0  # share of the answers that come again
        self.cut: set[tuple[str, str]] = set()  # from whom to whom nothing gets through
        self.rules: Rules | None = None  # while a script speaks

    def ask(
        self,
        client: Client,
        bookie: ModelBookie,
        act: Callable[[Callable[..., None]], None],
        answered: Callable[..., None],
        *,
        kind: str,
        entry: int = -1,
        patience: float | None = None,
    ) -> None:
        """Have `act(reply)` done at the bookie; `answered(outcome, ...)` hears of it once."""
        is_over = False

        def end(*what: Any) -> None:
            nonlocal is_over
            if not is_over and not client.is_dead:
                is_over = True
                answered(*what)

        def answer(*what: Any) -> None:
            self._carry(bookie.name, kind, client.name, entry, lambda: end(*what))

        def reply(*what: Any) -> None:
            if bookie.is_up:  # whoever crashed meanwhile says nothing
                answer(*what)

        def arrive() -> None:
            if bookie.is_up:
                bookie.take(lambda: act(reply))
            elif self._chance.random() < 0.7:
                answer(Outcome.NOT_CONNECTED)

        if patience is None:
            patience = self._world.plan.patience
        self._agenda.after(patience, lambda: end(Outcome.TIMEOUT))
        self._carry(client.name, kind, bookie.name, entry, arrive)

    def ask_in_parts(
        self,
        client: Client,
        bookie: ModelBookie,
        act: Callable[[Callable[..., None]], None],
        answered: Callable[..., None],
        *,
        kind: str,
        entry: int,
    ) -> None:
        """As `ask`, for requests that are answered piece by piece; the shell times them out."""

        def end(life: int, *what: Any) -> None:
            # Whoever was told that a connection is lost hears nothing more from it. It matters
            # where entries are acknowledged from memory: a late "yes" may speak of what is gone.
            if self._world.plan.deferred_sync and life != bookie.life:
                what = (Outcome.NOT_CONNECTED,)
            if not client.is_dead:
                answered(*what)

        def reply(*what: Any) -> None:
            if bookie.is_up:
                life = bookie.life
                self._carry(bookie.name, kind, client.name, entry, lambda: end(life, *what))
                if self.twice and self._chance.random() < self.twice:
                    self._carry(bookie.name, kind, client.name, entry, lambda: end(life, *what))

        def arrive() -> None:
            if bookie.is_up:
                bookie.take(lambda: act(reply))

        self._carry(client.name, kind, bookie.name, entry, arrive)

    def _carry(
        self, source: str, kind: str, target: str, entry: int, arrive: Callable[[], None]
    ) -> None:
        chance = self._chance.random
        if (source, target) in self.cut or (self.loss and chance() < self.loss):
            return
        seconds = 0.001 + 0.006 * chance()
        if self.spikes and chance() < self.spikes:
            seconds += chance() * 4 * self._world.plan.tempo
        if self.rules is None:
            self._agenda.after(seconds, arrive)
        else:
            self._by_the_rules(self.rules, f"{source} {kind} {target} {entry}", seconds, arrive)

    def _by_the_rules(
        self, rules: Rules, name: str, seconds: float, arrive: Callable[[], None]
    ) -> None:
        def noted() -> None:
            rules.arrived.append(name)
            arrive()

        fate = rules.fate_of(name)
        if fate is Fate.HOLD:
            self._world.tell(f"({name}: held up)")
            rules.held.append((name, noted))
        elif fate is Fate.LOSE:
            self._world.tell(f"({name}: lost)")
        else:
            self._agenda.after(seconds, noted)

    # ------------------------------------------------------------------ the store

    def write(self, client: Client, kind: str, seconds: float, act: Callable[[], None]) -> None:
        """A write on its way to the store."""
        if self.rules is None:
            client.later(seconds, act)
        else:
            name = f"{client.name} {kind} store -1"
            self._by_the_rules(self.rules, name, seconds, lambda: None if client.is_dead else act())

    def loses_answer(self, client: Client, kind: str) -> bool:
        name = f"store {kind} {client.name} -1"
        return self.rules is not None and self.rules.fate_of(name) is Fate.LOSE
