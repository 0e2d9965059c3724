"""I22. Autorecovery fences a writer only if one bookie of its ensemble was away all the grace.

Between the last look at the bookies and the record stands the store with its faults: a bookie may
have come back meanwhile. And a bookie that lost its disk has fenced the writer already, by being in
limbo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from metadata.model import LedgerMetadata, LedgerState
from tests.simulation.invariants.checker import Checker

if TYPE_CHECKING:
    from tests.simulation.outer.world import OuterWorld

#: From the look to the record, while requests fail and take long. And how long a return may go
#: unnoticed by one who then sees the bookie away again: watches fire late.
SLACK_SECONDS: Final = 5.0
ROUNDING_SECONDS: Final = 0.01


class I22(Checker):
    name = "I22"

    changed = 0.0  # when the ensemble became what it is

    def on_recorded(self, by: str, before: LedgerMetadata, after: LedgerMetadata) -> None:
        world = cast("OuterWorld", self.world)
        if before.last_fragment != after.last_fragment:
            self.changed = trio.current_time()
        if by not in world.recoveries or before.state is not LedgerState.OPEN:
            return
        if after.state is not LedgerState.IN_RECOVERY:
            return
        ensemble = before.last_fragment.ensemble
        away = max(
            world.store.registrations.longest_absence(
                bookie_id, since=self.changed, slack=SLACK_SECONDS
            )
            for bookie_id in ensemble
        )
        if away < world.plan.grace - ROUNDING_SECONDS:
            self.fail(
                f"{by} fences the writer; of {ensemble} nobody was away for {world.plan.grace} s, "
                f"the longest for {away:.3f} s"
            )
