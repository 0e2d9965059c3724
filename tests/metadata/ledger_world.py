"""What the tests of ledgers share: a template, and one cluster of memory."""

from __future__ import annotations

import random

from metadata.faults import Script
from metadata.ledgers import Ledgers
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.model import new_ledger
from metadata.paths import LayoutType, LedgerPaths
from metadata.store import MetadataStore
from tests.metadata.places import planted
from wire.types import BookieId, DigestType, LedgerId

ROOT = "/ledgers"
TEMPLATE = new_ledger(
    ledger_id=LedgerId(0),
    ensemble=[BookieId("bk1:3181")],
    write_quorum=1,
    ack_quorum=1,
    digest_type=DigestType.CRC32C,
    password=b"pw",
)


def ledgers_of(
    store: MetadataStore, layout: LayoutType = LayoutType.HIERARCHICAL, root: str = ROOT
) -> Ledgers:
    return Ledgers(store, root, layout, chance=random.Random(5))


class World:
    def __init__(self, layout: LayoutType = LayoutType.HIERARCHICAL) -> None:
        self.metadata = MemoryMetadata()
        planted(self.metadata, [ROOT])
        self.script = Script()
        self.store: MemoryStore = self.metadata.connect(self.script)
        self.paths = LedgerPaths(ROOT, layout)
        self.ledgers = ledgers_of(self.store, layout)

    def plant(self, *ids: int) -> None:
        planted(self.metadata, (self.paths.path_of(LedgerId(number)) for number in ids))

    def has(self, path: str) -> bool:
        return self.metadata.tree.find(path) is not None


async def walk(ledgers: Ledgers) -> list[tuple[LedgerId, ...]]:
    return [found.ids async for found in ledgers.ranges()]
