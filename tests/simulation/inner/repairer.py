"""Re-replication in its simplest form: copy what a slot must hold, then name the new bookie.

The worker's own planning has its own ring of tests; here it is the other party that rewrites old
fragments while the writer, or a recovery, changes the last one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ledger_client.core.commands import Failure, Outcome
from ledger_client.core.distribution import Distribution
from metadata import update
from metadata.model import LedgerMetadata
from tests.simulation.inner.bookie import Entry
from tests.simulation.inner.network import Client
from tests.simulation.inner.reader import RangeReader
from wire.types import BookieId

if TYPE_CHECKING:
    from tests.simulation.inner.world import World


class Repairer(Client):
    """Moves the copies of one bookie out of every fragment whose entries are settled."""

    def __init__(self, world: World, name: str, bookie_id: BookieId) -> None:
        super().__init__(world, name)
        self._old = bookie_id
        world.store.read(self, self._plan)

    def _plan(self, metadata: LedgerMetadata) -> None:
        fragments = metadata.fragments
        for at, fragment in enumerate(fragments):
            if self._old not in fragment.ensemble:
                continue
            if at + 1 < len(fragments):
                last = fragments[at + 1].first_entry_id - 1
            elif metadata.last_entry_id is not None:
                last = metadata.last_entry_id
            else:
                continue  # still being written
            slot = fragment.ensemble.index(self._old)
            chosen = self.world.replacements(fragment.ensemble, {slot: self._old})
            if chosen:
                self._copy(metadata, fragment.first_entry_id, last, slot, chosen[slot])

    def _copy(
        self, metadata: LedgerMetadata, first: int, last: int, slot: int, new: BookieId
    ) -> None:
        held = list(Distribution.of(metadata).entries_of(slot=slot, first=first, last=last))
        left = set(held)
        commit = partial(self._commit, first, slot, new)
        if not held:
            commit()

        def copied(entry_id: int, outcome: Outcome, *_: object) -> None:
            if outcome is Outcome.OK and entry_id in left:
                left.discard(entry_id)
                if not left:
                    commit()

        def found(entry_id: int, entries: dict[int, Entry], failure: Failure | None) -> None:
            if failure is None:
                bookie = self.world.bookies[new]
                self.world.network.ask(
                    self,
                    bookie,
                    lambda reply: bookie.add({entry_id: entries[entry_id]}, reply, recovery=True),
                    partial(copied, entry_id),
                    kind="copy",
                    entry=entry_id,
                )

        for entry_id in held:
            RangeReader(self, metadata, entry_id, entry_id, partial(found, entry_id))

    def _commit(self, first: int, slot: int, new: BookieId) -> None:
        self.world.tell(f"{self.name} moves {self._old} to {new} from entry {first} on")
        wanted = update.ReplaceBookies(first_entry_id=first, replacements={slot: (self._old, new)})
        self.world.store.update(self, wanted, lambda *_: None)
