"""What the tests of marks and locks share."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from metadata.faults import Fault, Request, Script
from metadata.memory import MemoryMetadata, MemoryStore
from metadata.paths import ClusterPaths
from metadata.store import MetadataStore
from metadata.underreplication import Lock, UnderReplication
from tests.metadata.places import planted
from wire.types import BookieId, LedgerId

ROOT = "/ledgers"
PATHS = ClusterPaths(ROOT)
A, B, C = (BookieId(f"bk{number}:3181") for number in range(1, 4))
NOW = 1750000000000
CAPTURED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "underreplication.json").read_text()
)


def manager(
    store: MetadataStore, root: str = ROOT, *, seed: int = 1, now_ms: int = NOW, **kwargs: Any
) -> UnderReplication:
    return UnderReplication(
        store,
        root,
        owner=kwargs.pop("owner", "localhost"),
        chance=random.Random(seed),
        now_ms=lambda: now_ms,
        **kwargs,
    )


class World:
    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        planted(self.metadata, [PATHS.marks, PATHS.locks])
        self.script = Script()
        self.requests: list[Request] = []
        self.store: MemoryStore = self.metadata.connect(self._faults)
        self.mine = manager(self.store)
        self.other_store = self.metadata.connect()
        self.other = manager(self.other_store, seed=2, owner="elsewhere")

    def _faults(self, request: Request) -> Fault | None:
        self.requests.append(request)
        return self.script(request)

    def mark_of(self, number: int) -> bytes | None:
        znode = self.metadata.tree.find(PATHS.mark(LedgerId(number)))
        return None if znode is None else znode.data

    def is_locked(self, number: int) -> bool:
        return self.metadata.tree.find(PATHS.lock(LedgerId(number))) is not None

    def expire(self, *, silently: bool = False) -> None:
        assert self.store.session is not None
        self.metadata.expire(self.store.session, silently=silently)


async def take(under: UnderReplication) -> Lock:
    lock = await under.try_acquire()
    assert lock is not None
    return lock


def writes_below(ops: Iterable[dict[str, Any]], part: str) -> list[tuple[str, str, str | None]]:
    return [
        (op["op"], op["path"], op.get("data_hex"))
        for op in ops
        if op["op"] in ("create", "set", "delete") and part in op["path"]
    ]
