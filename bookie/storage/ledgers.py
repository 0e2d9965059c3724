"""The ledgers this bookie has in memory: loaded on first use, forgotten when nothing needs them.

Exactly one object per ledger. Forgetting is safe only for objects whose state is in the index
(`Ledger.is_pinned`); those are skipped, however old they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from bookie.core import ledger as core
from bookie.core.ledger import Ledger
from bookie.storage.index_format import JournalPosition, StoredLedgerState, Tombstone
from bookie.storage.index_interface import Index
from wire.types import LedgerId

#: How many old objects one call looks at, so that a table full of pinned ones costs no stall.
_EVICTION_LOOKS: Final = 8
_HASH_FACTOR: Final = 0x9E3779B97F4A7C15
_HASH_MASK: Final = 2**64 - 1


def stored_state(ledger: Ledger, position: JournalPosition | None) -> bytes:
    """The ledger's state as the index keeps it. `position` lies at or before the change."""
    return StoredLedgerState(
        master_key=ledger.master_key or b"",
        fenced=ledger.fenced,
        limbo=ledger.limbo,
        tombstone=ledger.tombstone and Tombstone(*ledger.tombstone),
        explicit_lac=ledger.explicit_lac,
        journal_file_id=position.file_id if position else 0,
        journal_offset=position.block_offset if position else 0,
    ).encode()


class Ledgers:
    def __init__(
        self, indexes: Sequence[Index], *, journal_count: int, count_max: int = 100_000
    ) -> None:
        self._indexes = indexes
        self._journal_count = journal_count
        self._count_max = count_max
        #: Where a ledger that no index knows may go. Replay narrows it down, block by block.
        self.homes: Sequence[int] = range(len(indexes))
        # In the order of loading. Use only sets a flag (`touched`); whoever is oldest and was used
        # since the last look goes to the end. Cheaper per use than keeping an exact order. A plain
        # dictionary would not do: to find its first item it passes all that stood before it.
        self._objects: OrderedDict[int, Ledger] = OrderedDict()
        #: `get` for who asks for thousands: only what is in memory, and that does not count as use.
        self.peek = self._objects.get

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, ledger_id: int) -> Ledger:
        """The ledger's object; of a ledger that is not stored here, a new one without a key."""
        ledger = self._objects.get(ledger_id)
        if ledger is None:
            # Room is made first: among pinned ones the newcomer itself would have to go, and its
            # caller would be left with an object that nobody else finds.
            if len(self._objects) >= self._count_max:
                self._forget_some()
            ledger = self._objects[ledger_id] = self._load(LedgerId(ledger_id))
        ledger.touched = True
        return ledger

    def in_memory(self) -> Sequence[Ledger]:
        return list(self._objects.values())

    def forget_dropped(self, ledger_ids: Sequence[int]) -> None:
        """The index has forgotten that these were dropped: so does memory, unless they are back."""
        for ledger_id in ledger_ids:
            ledger = self._objects.get(ledger_id)
            if ledger is not None and ledger.tombstone is not None and not ledger.is_pinned:
                del self._objects[ledger_id]

    def is_stored(self, ledger: Ledger) -> bool:
        """Whether an index knows it: its home is then beyond doubt."""
        return self._indexes[ledger.home].ledger_state(ledger.id) is not None

    def _load(self, ledger_id: LedgerId) -> Ledger:
        """Its home is the directory that knows it, for ever; only a new ledger is assigned one.

        A rule by number alone would lose every ledger when a directory is added.
        """
        journal = ledger_id % self._journal_count
        for home, index in enumerate(self._indexes):
            stored = index.ledger_state(ledger_id)
            if stored is None:
                continue
            ledger = Ledger(ledger_id, home=home, journal=journal, is_new=False)
            ledger.master_key = stored.master_key  # an empty one is a key too: the ledger exists
            ledger.fenced = stored.fenced
            ledger.limbo = stored.limbo
            if stored.tombstone is not None:
                ledger.tombstone = core.Tombstone(*stored.tombstone)
            ledger.explicit_lac = stored.explicit_lac
            return ledger
        scattered = (ledger_id * _HASH_FACTOR & _HASH_MASK) >> 32
        home = self.homes[scattered % len(self.homes)]
        return Ledger(ledger_id, home=home, journal=journal, is_new=True)

    def _forget_some(self) -> None:
        for _ in range(_EVICTION_LOOKS):
            ledger_id, ledger = next(iter(self._objects.items()))
            if ledger.is_pinned or ledger.touched:
                ledger.touched = False
                self._objects.move_to_end(ledger_id)
            else:
                del self._objects[ledger_id]
                if len(self._objects) < self._count_max:
                    return
