"""The replicas check: ask every bookie for the list of entries that it has, and compare.

It reads no entries, so it is cheap and finds every hole, but it believes what bookies say. Entries
with fewer copies than they should have are counted by how bad it is, and their ledgers marked:
Apache's check only counts.
"""

from __future__ import annotations

from typing import Final

from autorecovery.checks import Checks, CheckSummary
from autorecovery.core.audit import missing_bookies
from autorecovery.core.checks import stretches
from autorecovery.core.fragments import missing_runs
from autorecovery.ledger_scan import for_each
from autorecovery.worker_listing import Listed, list_entries
from ledger_client.core.distribution import Distribution
from metadata.model import FragmentRange
from metadata.update import VersionedLedger
from wire.availability import Availability
from wire.types import BookieId

_LISTS_AT_ONCE: Final = 16
_LEDGERS_AT_ONCE: Final = 4
_NOTHING: Final = Availability([])


class ReplicasCheck:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks

    async def run(self) -> CheckSummary:
        self._none = self._below_ack = self._below_write = 0
        summary = await self._checks.walk(self._check, at_once=_LEDGERS_AT_ONCE)
        counts = self._checks.statistics.counts
        counts.no_replica = self._none
        counts.below_ack_quorum = self._below_ack
        counts.below_write_quorum = self._below_write
        return summary

    async def _check(self, ledger: VersionedLedger, summary: CheckSummary) -> None:
        metadata = ledger.metadata
        if not metadata.is_closed:
            return
        alive = self._checks.alive()
        lists: dict[BookieId, Availability] = {}

        async def ask(bookie_id: BookieId) -> None:
            found = await list_entries(self._checks.context.client, bookie_id, metadata.ledger_id)
            if isinstance(found, Availability):
                lists[bookie_id] = found
            elif found is Listed.NOTHING:
                lists[bookie_id] = _NOTHING
            else:
                summary.undecided += 1
                self._checks.statistics.counts.undecided += 1

        await for_each(sorted(metadata.bookies() & alive), ask, at_once=_LISTS_AT_ONCE)
        bad = dict.fromkeys(missing_bookies(metadata, alive))
        worst = metadata.write_quorum
        shape = Distribution.of(metadata)
        for found in metadata.ranges():
            worst = min(worst, self._worst(shape, found, alive, lists, bad))
        if worst == 0:
            self._none += 1
            self._checks.report("no bookie has some entries", ledger)
        elif worst < metadata.ack_quorum:
            self._below_ack += 1
        elif worst < metadata.write_quorum:
            self._below_write += 1
        self._checks.statistics.counts.ledgers_checked += 1
        if bad and not await self._checks.context.client.ledgers.is_gone(metadata.ledger_id):
            await self._checks.mark(ledger, bad, summary)

    def _worst(
        self,
        shape: Distribution,
        found: FragmentRange,
        alive: frozenset[BookieId],
        lists: dict[BookieId, Availability],
        bad: dict[BookieId, None],
    ) -> int:
        """The copies of the worst entry; bookies that lack some are added to `bad`."""
        first, last = found.fragment.first_entry_id, found.last_entry_id
        assert last is not None
        missing = {}
        for slot, bookie_id in enumerate(found.fragment.ensemble):
            if bookie_id not in alive:
                missing[slot] = [(first, last)]
            elif bookie_id in lists:
                runs = missing_runs(
                    shape,
                    slot=slot,
                    first=first,
                    last=last,
                    listed=lists[bookie_id].runs(first, last),
                )
                if runs:
                    bad[bookie_id] = None
                    missing[slot] = runs
        found_here = stretches(shape, first=first, last=last, missing=missing)
        return min((stretch.copies for stretch in found_here), default=shape.write_quorum)
