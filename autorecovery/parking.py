"""Verdicts on ledgers that cannot be repaired, kept in the metadata store beside the marks.

A verdict counts only while its ledger is marked. Whoever deletes a mark of a parked ledger releases
it; one that was left behind, because Apache's worker deleted the mark, is dropped by the auditor.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from autorecovery.core.parking import Parked, Verdict, decode_parked, encode_parked, joined
from metadata.model import InvalidMetadataError
from metadata.paths import ClusterPaths, ledger_of_mark_name, mark_name
from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
)
from metadata.tree import create_below
from metadata.update import PATIENT, Backoff, MetadataConflictError, persistently
from wire.types import LedgerId

#: Ledgers per directory: a listing must fit into one answer of ZooKeeper.
_PER_DIRECTORY: Final = 10_000
_CONFLICTS_MAX: Final = 100


class Parking:
    def __init__(
        self,
        store: MetadataStore,
        root: str,
        *,
        chance: random.Random,
        now_ms: Callable[[], int],
        backoff: Backoff = PATIENT,
    ) -> None:
        self._store = store
        self._root = root
        #: Ours: Apache's tools walk the marks, locks and votes beside it and no more.
        self._directory = f"{ClusterPaths(root).underreplication}/quireparked"
        self._chance = chance
        self._now_ms = now_ms
        self._backoff = backoff

    def _path(self, ledger_id: LedgerId) -> str:
        return f"{self._directory}/{ledger_id // _PER_DIRECTORY}/{mark_name(ledger_id)}"

    async def park(self, ledger_id: LedgerId, verdict: Verdict) -> Parked:
        """Store the verdict. An order to accept the loss stays if the loss did not grow."""
        verdict = replace(verdict, lost=joined(verdict.lost))

        def renewed(found: Parked | None) -> Parked:
            if found is not None and found.verdict == verdict:
                return found
            is_accepted = (
                found is not None
                and found.is_accepted
                and joined((*found.verdict.lost, *verdict.lost)) == found.verdict.lost
            )
            return Parked(verdict=verdict, time_ms=self._now_ms(), is_accepted=is_accepted)

        parked = await self._change(ledger_id, renewed)
        assert parked is not None
        return parked

    async def accept(self, ledger_id: LedgerId) -> Parked | None:
        """Order to go on without the lost entries. None if the ledger is not parked."""

        def accepted(found: Parked | None) -> Parked | None:
            return None if found is None else replace(found, is_accepted=True)

        return await self._change(ledger_id, accepted)

    async def read(self, ledger_id: LedgerId) -> Parked | None:
        """The verdict on a ledger. One that cannot be understood is none: it will be given anew."""
        path = self._path(ledger_id)
        try:
            return decode_parked((await self._store.get(path)).data, path=path)
        except (NoNodeError, InvalidMetadataError):
            return None

    async def release(self, ledger_id: LedgerId) -> None:
        async def attempt() -> None:
            with suppress(NoNodeError):
                await self._store.delete(self._path(ledger_id), version=ANY_VERSION)

        await persistently(attempt, chance=self._chance, backoff=self._backoff)

    async def ledgers(self) -> AsyncIterator[LedgerId]:
        """Every parked ledger, in no particular order."""
        for name in await self._children(self._directory):
            for leaf in await self._children(f"{self._directory}/{name}"):
                with suppress(InvalidMetadataError):  # not ours: nobody asks for it
                    yield ledger_of_mark_name(leaf)

    async def _children(self, path: str) -> list[str]:
        try:
            names, _ = await self._store.children(path)
        except NoNodeError:
            return []
        return names

    async def _change(
        self, ledger_id: LedgerId, change: Callable[[Parked | None], Parked | None]
    ) -> Parked | None:
        async def attempt() -> Parked | None:
            for _ in range(_CONFLICTS_MAX):
                with suppress(BadVersionError, NoNodeError, NodeExistsError):
                    return await self._try_change(ledger_id, change)
            raise MetadataConflictError(
                f"the verdict on ledger {ledger_id} changed {_CONFLICTS_MAX} times in a row while "
                "it was to be written"
            )

        return await persistently(attempt, chance=self._chance, backoff=self._backoff)

    async def _try_change(
        self, ledger_id: LedgerId, change: Callable[[Parked | None], Parked | None]
    ) -> Parked | None:
        path = self._path(ledger_id)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            wanted = change(None)
            if wanted is not None:
                await create_below(self._store, self._root, path, encode_parked(wanted))
            return wanted
        try:
            found: Parked | None = decode_parked(node.data, path=path)
        except InvalidMetadataError:
            found = None
        wanted = change(found)
        if wanted is not None and wanted != found:
            await self._store.set(path, encode_parked(wanted), version=node.stat.version)
        return wanted
