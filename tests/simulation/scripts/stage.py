"""How a script speaks: who does what, which messages arrive, and what it waits for.

A script plays the prefix of one row of the fault table, on a network that does exactly as told.
Then the curtain falls: whatever is still held up is let go in any order, and chance takes over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.history import ViolationError
from tests.simulation.inner.network import Fate, Rules, matches
from tests.simulation.inner.recoverer import RecoveringClient
from tests.simulation.inner.world import World
from wire.types import BookieId

#: In virtual time; far longer than any step of a script takes.
STEP_SECONDS: Final = 20.0


class OffScriptError(Exception):
    """Something that the script waits for never happens."""


class Stage:
    def __init__(self, world: World) -> None:
        self.world = world
        self.writer = world.writer
        self.store = world.store
        self.chance = world.chance
        self._rules = Rules()
        world.network.rules = self._rules

    def curtain(self) -> None:
        """End the prefix: what is held is let go, in any order, soon or late."""
        self.world.network.rules = None
        held = self._rules.take("*")
        self.chance.shuffle(held)
        for _, arrive in held:
            self.world.agenda.after(self.world.plan.tempo * self.chance.random(), arrive)

    # ------------------------------------------------------------------ messages

    def lose(self, *patterns: str) -> None:
        for pattern in patterns:
            self._rules.say(pattern, Fate.LOSE)

    def hold(self, *patterns: str) -> None:
        for pattern in patterns:
            self._rules.say(pattern, Fate.HOLD)

    def allow(self, *patterns: str) -> None:
        """No rule of exactly this pattern any more; what it held stays held."""
        for pattern in patterns:
            self._rules.forget(pattern)

    def release(self, *patterns: str) -> None:
        """Let go what is held, in the order of the patterns, and hold no more of it."""
        for pattern in patterns:
            self._rules.forget(pattern)
            for _, arrive in self._rules.take(pattern):
                self.world.agenda.after(0.0, arrive)

    def discard(self, *patterns: str) -> None:
        """What is held is lost after all."""
        for pattern in patterns:
            self._rules.forget(pattern)
            self._rules.take(pattern)

    def arrived(self, *patterns: str) -> None:
        """Go on until such messages have arrived."""
        for pattern in patterns:
            self.until(pattern, lambda p=pattern: self._has_arrived(p))  # type: ignore[misc]

    def _has_arrived(self, pattern: str) -> bool:
        return any(matches(name, pattern) for name in self._rules.arrived)

    def held(self, *patterns: str) -> None:
        """Go on until such messages are held up."""
        for pattern in patterns:
            self.until(
                f"{pattern} held",
                lambda p=pattern: any(matches(name, p) for name, _ in self._rules.held),  # type: ignore[misc]
            )

    # ------------------------------------------------------------------ time

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        agenda = self.world.agenda
        end = agenda.now + STEP_SECONDS
        while not condition():
            if not agenda.step(end):
                raise OffScriptError(what)

    def pause(self, seconds: float = 0.1) -> None:
        """Let everything that is on its way happen."""
        self.world.agenda.run(self.world.agenda.now + seconds)

    # ------------------------------------------------------------------ who does what

    def bookie(self, number: int) -> BookieId:
        return BookieId(f"b{number}")

    def append(self, count: int = 1) -> None:
        self.writer.append(count)

    def written(self, count: int) -> None:
        """So many entries more, one by one, each confirmed before the next."""
        for _ in range(count):
            self.append()
            self.confirmed(self.writer.core.last_pushed)

    def confirmed(self, through: int) -> None:
        self.until(f"entry {through} confirmed", lambda: self.writer.confirmed >= through)

    def changed(self, fragments: int) -> None:
        self.until("a new fragment", lambda: len(self.store.metadata.fragments) >= fragments)

    def failed(self) -> None:
        self.until("the writer fails", lambda: self.writer.has_failed)

    def closed(self) -> None:
        self.until("the ledger closed", lambda: self.store.metadata.is_closed)

    def recover(self, name: str, *, advances: bool = False) -> RecoveringClient:
        return self.world.recover(name, advances=advances)

    def ended(self, client: RecoveringClient) -> None:
        self.until(f"{client.name} ends", lambda: bool(client.metadata or client.failures))

    def kill(self, client: RecoveringClient) -> None:
        self.world.tell(f"{client.name} dies")
        client.is_dead = True

    def crash(self, *numbers: int) -> None:
        for number in numbers:
            self.world.tell(f"b{number} crashes")
            self.world.bookies[self.bookie(number)].crash()

    def restart(self, *numbers: int) -> None:
        for number in numbers:
            self.world.bookies[self.bookie(number)].restart()

    def stall(self, *numbers: int) -> None:
        for number in numbers:
            self.world.tell(f"the disk of b{number} hangs")
            self.world.bookies[self.bookie(number)].stall()

    def wake(self, *numbers: int) -> None:
        """Bookies that had crashed are back, and their disks at work."""
        for number in numbers:
            self.world.bookies[self.bookie(number)].go_on()
        self.restart(*numbers)

    def read_only(self, *numbers: int) -> None:
        for number in numbers:
            self.world.tell(f"b{number} is read-only")
            self.world.bookies[self.bookie(number)].is_read_only = True

    def writable(self, *numbers: int) -> None:
        for number in numbers:
            self.world.tell(f"b{number} is writable again")
            self.world.bookies[self.bookie(number)].is_read_only = False

    def wipe(self, number: int) -> None:
        self.world.tell(f"b{number} loses its disk and comes back in limbo")
        self.world.bookies[self.bookie(number)].wipe()
        self.restart(number)

    def rot(self, number: int) -> None:
        self.world.tell(f"an entry on b{number} rots")
        self.world.bookies[self.bookie(number)].rot()

    # ------------------------------------------------------------------ what must hold

    def must_come(self, row: str, what: str, condition: Callable[[], bool]) -> None:
        try:
            self.until(what, condition)
        except OffScriptError:
            raise ViolationError(row, f"it never came about: {what}") from None

    def must(self, row: str, holds: bool, what: str) -> None:
        if not holds:
            raise ViolationError(row, what)

    def must_end_at(self, row: str, last: int) -> None:
        found = self.store.metadata.last_entry_id
        self.must(row, found == last, f"the ledger ends at {found}, not {last}")
