"""Marks: a persistent node per ledger that lacks copies, with the list of bookies that had them.

Anybody may add to a mark at any time, so every change goes by version: two who mark at once both
get what they said into it, and a mark is deleted only in the version that its worker has seen.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metadata.model import InvalidMetadataError, check_bookie_id
from metadata.paths import ClusterPaths
from metadata.records import UnderreplicationMark, decode_mark, encode_mark
from metadata.store import (
    BadVersionError,
    Change,
    Create,
    MetadataError,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    SessionId,
)
from metadata.tree import create_below, ensure_below
from metadata.update import Backoff, MetadataConflictError, persistently
from wire.types import BookieId, LedgerId

_log = logging.getLogger(__name__)

#: Markers that keep getting in each other's way, before we call it a fault.
_CONFLICTS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark as it was read. `node` tells it from a later one at the same place."""

    ledger_id: LedgerId
    content: UnderreplicationMark
    node: Node

    @property
    def version(self) -> int:
        return self.node.stat.version


class Marks:
    def __init__(
        self,
        store: MetadataStore,
        paths: ClusterPaths,
        *,
        chance: random.Random,
        now_ms: Callable[[], int],
        stores_mark_time: bool,
        backoff: Backoff,
    ) -> None:
        self._store = store
        self._paths = paths
        self._chance = chance
        self._now_ms = now_ms
        self._stores_mark_time = stores_mark_time
        self._backoff = backoff

    async def add(self, ledger_id: LedgerId, missing: Iterable[BookieId]) -> None:
        """Say that the copies of these bookies are missing.

        Nothing is written if all of them are listed, with one exception: while somebody holds
        the lock the mark is renewed, or the worker, which may have looked at the ledger before
        this loss, would delete it.
        """
        replicas = tuple(dict.fromkeys(missing))

        async def attempt() -> None:
            for _ in range(_CONFLICTS_MAX):
                if await self._try_add(ledger_id, replicas):
                    return
            raise MetadataConflictError(
                f"the mark of ledger {ledger_id} changed {_CONFLICTS_MAX} times in a row while "
                "it was to be extended"
            )

        await persistently(attempt, chance=self._chance, backoff=self._backoff)

    async def _try_add(self, ledger_id: LedgerId, replicas: tuple[BookieId, ...]) -> bool:
        path = self._paths.mark(ledger_id)
        time_ms = self._time_ms()
        fresh = UnderreplicationMark(tuple(map(check_bookie_id, replicas)), time_ms)
        try:
            await create_below(self._store, self._paths.root, path, encode_mark(fresh))
        except NodeExistsError:
            pass
        else:
            return True
        try:
            node = await self._store.get(path)
            mark = mark_content(node, path)
            merged = mark.merged(replicas, now_ms=time_ms)
            if merged is mark:
                if await self._store.exists(self._paths.lock(ledger_id)) is None:
                    return True
                merged = UnderreplicationMark(mark.replicas, time_ms)
            await self._store.set(path, encode_mark(merged), version=node.stat.version)
        except (BadVersionError, NoNodeError):
            return False
        return True

    async def add_fresh(self, missing: Mapping[LedgerId, Sequence[BookieId]]) -> bool:
        """Mark ledgers none of which is marked yet, in one transaction; False if one is.

        After the loss of a bookie there are thousands to be marked, and a directory and a node to
        be made for each.
        """
        time_ms = self._time_ms()
        changes: list[Change] = []
        parents: set[str] = set()
        for ledger_id, replicas in missing.items():
            content = UnderreplicationMark(tuple(map(check_bookie_id, replicas)), time_ms)
            directory, above = self._paths.mark_parents(ledger_id)[:2]
            parents.add(above)
            changes += [
                Create(directory),
                Create(self._paths.mark(ledger_id), encode_mark(content)),
            ]
        try:
            for parent in sorted(parents):
                await ensure_below(self._store, self._paths.root, parent)
            await self._store.transact(changes)
        except MetadataError:
            return False
        return True

    async def read(self, ledger_id: LedgerId) -> Mark | None:
        path = self._paths.mark(ledger_id)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            return None
        return Mark(ledger_id, mark_content(node, path), node)

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[Mark]:
        """Those of them that are there, in this order."""
        paths = list(map(self._paths.mark, ledger_ids))
        nodes = await persistently(
            lambda: self._store.get_many(paths), chance=self._chance, backoff=self._backoff
        )
        return [
            Mark(ledger_id, mark_content(node, path), node)
            for ledger_id, path, node in zip(ledger_ids, paths, nodes, strict=True)
            if node is not None
        ]

    async def delete(self, mark: Mark, session: SessionId, *, is_retry: bool) -> bool:
        """Delete exactly this mark, on the session that owns the lock; False if there is a newer.

        `is_retry`: it may have been deleted already, by a request that had no answer.
        """
        path = self._paths.mark(mark.ledger_id)

        async def attempt() -> bool:
            nonlocal is_retry
            if is_retry:
                # If the first delete was applied, what is here now is a new mark whose version
                # starts at zero again, and may look like ours.
                await self._store.sync(path)
                found = await self._store.get(path)
                if found != mark.node:
                    return False
            is_retry = True
            await self._store.delete(path, version=mark.version, session=session)
            return True

        try:
            return await persistently(attempt, chance=self._chance, backoff=self._backoff)
        except BadVersionError:
            return False
        except NoNodeError:
            return True

    def _time_ms(self) -> int | None:
        return self._now_ms() if self._stores_mark_time else None


def mark_content(node: Node, path: str) -> UnderreplicationMark:
    """An unreadable mark still marks: the ledger is checked whole, whatever was meant."""
    try:
        return decode_mark(node.data, path=path)
    except InvalidMetadataError as error:
        _log.warning("taking it for a mark without names: %s", error)
        return UnderreplicationMark(())
