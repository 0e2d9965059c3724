"""The record of the ledger in a store that is slow, forgetful about answers, and at times away.

The loop is the one that shells run (`metadata.update.update_ledger`): decide on what was read,
write if nobody else did, and after an answer that never came look whether it was us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from metadata.model import LedgerMetadata
from metadata.update import LedgerUpdate
from wire.errors import LedgerError

if TYPE_CHECKING:
    from tests.simulation.inner.network import Client
    from tests.simulation.inner.world import World

ATTEMPTS = 6

#: Told the record and whether we wrote it, or why not. None instead of an error: out of reach.
Done = Callable[[LedgerMetadata | None, bool, LedgerError | None], None]


class ModelStore:
    def __init__(self, world: World, metadata: LedgerMetadata) -> None:
        self._world = world
        self.metadata = metadata
        self._values = [metadata]
        self.is_away = False
        self.lost_answers = 0.0
        self.stale_reads = 0.0

    def read(self, client: Client, done: Callable[[LedgerMetadata], None]) -> None:
        """Perhaps an older value than the newest, as a follower may show it."""

        def answer() -> None:
            version = len(self._values) - 1
            if version and self.stale_reads and self._world.chance.random() < self.stale_reads:
                version -= 1
            client.version = version
            done(self._values[version])

        client.later(self._seconds(), answer)

    def holds_lock(self, name: str) -> bool:
        """There are no locks here: one client repairs, and nobody else deletes copies meanwhile."""
        return True

    def update(self, client: Client, update: LedgerUpdate, done: Done) -> None:
        self._attempt(client, update, done, 0, None)

    def _attempt(
        self,
        client: Client,
        update: LedgerUpdate,
        done: Done,
        failures: int,
        unsure: tuple[int, LedgerMetadata] | None,
    ) -> None:
        chance, kind = self._world.chance, type(update).__name__

        def again(unsure: tuple[int, LedgerMetadata] | None) -> None:
            if failures + 1 == ATTEMPTS:
                done(None, False, None)
                return
            client.later(
                0.05 * 2 ** min(failures, 4),
                lambda: self._attempt(client, update, done, failures + 1, unsure),
            )

        def decide() -> None:
            if self.is_away:
                again(unsure)
                return
            # First what the client knows already; after a conflict what a synced read shows.
            version = len(self._values) - 1 if failures else client.version
            current = self._values[version]
            client.version = version
            if unsure == (version, current):
                done(current, True, None)
                return
            try:
                target = update.apply(current)
            except LedgerError as error:
                done(None, False, error)
                return
            if target is None:
                done(current, False, None)
                return
            self._world.network.write(
                client, kind, self._seconds(), lambda: write(version, current, target)
            )

        def write(version: int, current: LedgerMetadata, target: LedgerMetadata) -> None:
            if self.is_away:
                again(unsure)
            elif version != len(self._values) - 1:
                again(None)
            elif self._world.network.loses_answer(client, kind):
                self._set(client.name, target)
                again((version + 1, target))
            elif self.lost_answers and chance.random() < self.lost_answers:
                if chance.random() < 0.5:
                    self._set(client.name, target)
                again((version + 1, target))
            else:
                self._set(client.name, target)
                client.version = version + 1
                client.later(self._seconds(), lambda: done(target, True, None))

        client.later(self._seconds(), decide)

    def _set(self, by: str, target: LedgerMetadata) -> None:
        before, self.metadata = self.metadata, target
        self._values.append(target)
        self._world.history.emit("recorded", by, before, target)

    def _seconds(self) -> float:
        return 0.001 + 0.005 * self._world.chance.random()
