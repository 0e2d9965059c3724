"""Blocks of entry logs in memory, bounded by bytes, least recently used goes first.

The unit is a block: consecutive records of one run, at most 256 KiB, cut on record borders.
Nothing is inserted per entry; readers cut entries out of the block. The event loop owns it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from bookie.core.runs import Run

#: A location in a ledger directory: (directory, log id << 32 | offset of the run, block number).
BlockKey = tuple[int, int, int]

BLOCK_BYTES_MAX = 256 * 1024
LATEST_MAX = 16

B = TypeVar("B", bound=Run)


class ReadCache(Generic[B]):
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._blocks: OrderedDict[BlockKey, B] = OrderedDict()
        self._latest: OrderedDict[int, B] = OrderedDict()  # by ledger: the block it read last

    def get(self, key: BlockKey) -> B | None:
        block = self._blocks.get(key)
        if block is None:
            self.misses += 1
            return None
        self.hits += 1
        self._blocks.move_to_end(key)
        return block

    def latest(self, ledger_id: int, entry_id: int) -> B | None:
        """The block that a reader of this ledger had last, if it holds the entry too.

        The usual case of a sequential reader: no look-up in the index at all.
        """
        block = self._latest.get(ledger_id)
        if block is None or block.position(entry_id) < 0:
            return None
        self.hits += 1
        return block

    def last(self, ledger_id: int) -> B | None:
        """The same whatever it holds: the entry behind it is often in the same run."""
        return self._latest.get(ledger_id)

    def remember(self, ledger_id: int, block: B) -> None:
        """Make a block the latest of its ledger. A few are kept beside the limit by bytes."""
        self._latest[ledger_id] = block
        self._latest.move_to_end(ledger_id)
        if len(self._latest) > LATEST_MAX:
            self._latest.popitem(last=False)

    def forget(self, ledger_id: int) -> None:
        """The ledger was dropped. Blocks of it that are still cached are never asked for again."""
        self._latest.pop(ledger_id, None)

    def put(self, key: BlockKey, block: B) -> None:
        """Keep a block, unless it is so large that it would drive out everything else."""
        size = len(block.body)
        if not self.takes(key, size):
            return
        self._blocks[key] = block
        self.bytes += size
        while self.bytes > self.bytes_max:
            _, oldest = self._blocks.popitem(last=False)
            self.bytes -= len(oldest.body)

    def takes(self, key: BlockKey, size: int) -> bool:
        """Whether it has use for a block of this size."""
        return size <= self.bytes_max // 16 and key not in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)
