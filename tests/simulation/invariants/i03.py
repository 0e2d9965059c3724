"""I3. Adds are confirmed in id order without gaps, once, and never after a failed one."""

from __future__ import annotations

from tests.simulation.invariants.checker import Checker


class I3(Checker):
    name = "I3"

    confirmed = -1
    has_failed = False

    def on_acked(self, first: int, last: int) -> None:
        if first != self.confirmed + 1 or last < first:
            self.fail(f"entries {first}..{last} are confirmed after {self.confirmed}")
        if self.has_failed:
            self.fail(f"entries {first}..{last} are confirmed after an add had failed")
        self.confirmed = last

    def on_writer_failed(self) -> None:
        self.has_failed = True
