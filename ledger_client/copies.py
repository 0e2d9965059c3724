"""Copies of single entries, which travel to a bookie in bundles, those of many ledgers together.

Thousands of ledgers that get an entry now and then would otherwise send and await as many requests.
A bundle is one request: one piece of bytes, one deadline, one end if the connection is lost. The
bookie answers each entry by itself, so a bundle knows its copies by ledger and entry, and whoever
owns a copy is told at once what became of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ledger_client.core.commands import Outcome
from ledger_client.intake import Batch
from ledger_client.requests import Request
from wire.types import BookieId

#: A bundle takes no further copy above either: the bookie can begin while the next one is filled.
BUNDLE_BYTES: Final = 128 * 1024
BUNDLE_COPIES: Final = 256

#: Ledger and entry as they are in answers. No tuple: every object that Python's collector looks at
#: is dear where there is one per entry.
Key: TypeAlias = bytes


@dataclass(slots=True, eq=False, kw_only=True)
class Bundle(Request):
    copies: dict[Key, Batch] = field(default_factory=dict)  # without an answer
    ledger_ids: set[int] = field(default_factory=set)

    def frames(self) -> bytes:
        return b"".join([copy.frames for copy in self.copies.values()])

    def end(self, bookie_id: BookieId, outcome: Outcome) -> None:
        """The same end for all that have had none."""
        copies, self.copies = self.copies, {}
        for copy in copies.values():
            copy.owner.on_copy_failed(copy.entry, bookie_id, outcome)
