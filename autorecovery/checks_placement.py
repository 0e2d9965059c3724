"""The placement check: closed ledgers whose copies are not spread as the policy would have it.

A mark without names asks a worker to put the ledger in order; only if the operator wants that, for
it moves data that is safe enough today.
"""

from __future__ import annotations

from autorecovery.checks import Checks, CheckSummary
from metadata.update import VersionedLedger


class PlacementCheck:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks

    async def run(self) -> CheckSummary:
        self._misplaced = 0
        summary = await self._checks.walk(self._check)
        self._checks.statistics.counts.misplaced = self._misplaced
        return summary

    async def _check(self, ledger: VersionedLedger, summary: CheckSummary) -> None:
        metadata = ledger.metadata
        if not metadata.is_closed:
            return
        policy = self._checks.context.client.policy
        if all(
            policy.is_placed(fragment.ensemble, metadata.write_quorum, metadata.ack_quorum)
            for fragment in metadata.fragments
        ):
            return
        self._misplaced += 1
        self._checks.report("copies are not spread as the policy asks", ledger)
        if self._checks.context.settings.auditor.repairs_placement:
            await self._checks.mark(ledger, (), summary)
