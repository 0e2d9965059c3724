"""I12. The last fragment of an open ledger is changed by its writer alone; later by the close.

And that close is recovery's: the recovering client may have found entries that the writer does not
know to be written.
"""

from __future__ import annotations

from metadata.model import LedgerMetadata, LedgerState
from tests.simulation.invariants.checker import Checker


class I12(Checker):
    name = "I12"

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        if before.state is LedgerState.IN_RECOVERY and after.is_closed and by == "W":
            self.fail("the writer closed a ledger that is being recovered")
        if before.last_fragment == after.last_fragment:
            return
        if before.state is LedgerState.OPEN and by != "W":
            self.fail(f"{by} changed the last fragment of an open ledger")
        if before.state is LedgerState.IN_RECOVERY and not after.is_closed:
            self.fail(f"{by} changed the last fragment during recovery, without closing")
