"""The collector's questions, asked of the real metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from metadata.cluster import read_instance_id
from metadata.ledgers import Ledgers
from metadata.model import LedgerMetadata
from metadata.paths import ClusterPaths
from metadata.underreplication import Lock, UnderReplication
from metadata.update import LedgerGoneError
from wire.types import LedgerId


class StoreMetadata:
    def __init__(self, ledgers: Ledgers, underreplication: UnderReplication) -> None:
        self._ledgers = ledgers
        self._underreplication = underreplication

    async def ranges(self) -> AsyncIterator[Sequence[LedgerId]]:
        async for found in self._ledgers.ranges():
            yield found.ids

    async def is_gone(self, ledger_id: LedgerId) -> bool:
        return await self._ledgers.is_gone(ledger_id)

    async def read(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        await self._ledgers.store.sync(self._ledgers.paths.path_of(ledger_id))
        return await self.glance(ledger_id)

    async def glance(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        try:
            return (await self._ledgers.read(ledger_id)).metadata
        except LedgerGoneError:
            return None

    async def instance_id(self) -> str | None:
        root = self._ledgers.paths.root
        await self._ledgers.store.sync(ClusterPaths(root).instance_id)
        return await read_instance_id(self._ledgers.store, root)

    async def lock(self, ledger_id: LedgerId) -> object | None:
        return await self._underreplication.lock(ledger_id)

    def is_held(self, lock: object) -> bool:
        assert isinstance(lock, Lock)
        return self._ledgers.store.session == lock.session

    async def settle(self) -> None:
        await self._underreplication.settle()

    async def release(self, lock: object) -> None:
        assert isinstance(lock, Lock)
        await self._underreplication.release(lock)
