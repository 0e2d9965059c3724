"""Looking for marked ledgers, cheaply enough to do it before every repair.

Marks lie four directories deep, one per 16 bits of the ledger id. The lists of the upper levels and
of the locks are kept, each with a watch, and read again only when their watch has fired. The last
level is not listed at all: its name completes the id, so the mark's path is known.

Directories are visited in random order, or all workers would fight over the same ledger.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

from metadata.paths import ClusterPaths, mark_name
from metadata.store import MetadataStore, NoNodeError, Watch
from wire.types import ID_MAX, LedgerId

T = TypeVar("T")

_log = logging.getLogger(__name__)

_GROUP: Final = re.compile(r"[0-9a-f]{4}", re.ASCII)
#: Of directories above the marks.
_LEVELS: Final = 4
#: With more marks than this in one directory, deleting one does not empty it.
_SIBLINGS_MIN: Final = 100
#: Watches that the network swallowed are made up for by reading again this often.
_RECHECK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Listing:
    names: tuple[str, ...]
    watch: Watch


class MarkTree:
    def __init__(self, store: MetadataStore, paths: ClusterPaths, chance: random.Random) -> None:
        self._store = store
        self._paths = paths
        self._chance = chance
        self._listings: dict[str, _Listing] = {}
        self._absent: dict[str, Watch] = {}  # nodes that were looked for in vain

    async def first(self, take: Callable[[LedgerId], Awaitable[T | None]]) -> T | None:
        """Offer marked ledgers that nobody has locked to `take`, until it takes one."""
        locked = frozenset(await self._names(self._paths.locks))
        return await self._descend(self._paths.marks, "", locked, take)

    async def sample(self, count_max: int) -> list[LedgerId]:
        """Marked ledgers that nobody has locked, as many as that, in random order.

        From the lists alone: a mark may have gone meanwhile. For workers that repair many small
        ledgers, whose every deletion outdates a list that all of them would have to read again.
        """
        locked = frozenset(await self._names(self._paths.locks))
        found: list[LedgerId] = []
        await self._gather(self._paths.marks, "", locked, count_max, found)
        return found

    def has_siblings(self, ledger_id: LedgerId) -> bool:
        """Whether so many marks were listed beside this one that their directory will stay."""
        known = self._listings.get(self._paths.mark_parents(ledger_id)[1])
        return known is not None and len(known.names) > _SIBLINGS_MIN

    async def _gather(
        self, path: str, digits: str, locked: frozenset[str], count_max: int, found: list[LedgerId]
    ) -> None:
        names = list(await self._names(path))
        self._chance.shuffle(names)
        for name in names:
            if len(found) >= count_max:
                return
            if not _is_group(path, name):
                continue
            if len(digits) < 4 * (_LEVELS - 1):
                await self._gather(f"{path}/{name}", digits + name, locked, count_max, found)
            else:
                ledger_id = LedgerId(int(digits + name, 16))
                if ledger_id <= ID_MAX and mark_name(ledger_id) not in locked:
                    found.append(ledger_id)

    async def _descend(
        self,
        path: str,
        digits: str,
        locked: frozenset[str],
        take: Callable[[LedgerId], Awaitable[T | None]],
    ) -> T | None:
        names = list(await self._names(path))
        self._chance.shuffle(names)
        for name in names:
            if not _is_group(path, name):
                continue
            taken: T | None = None
            if len(digits) < 4 * (_LEVELS - 1):
                taken = await self._descend(f"{path}/{name}", digits + name, locked, take)
            else:
                ledger_id = LedgerId(int(digits + name, 16))
                if ledger_id <= ID_MAX and mark_name(ledger_id) not in locked:
                    taken = await self._offer(ledger_id, take)
            if taken is not None:
                return taken
        return None

    async def _offer(
        self, ledger_id: LedgerId, take: Callable[[LedgerId], Awaitable[T | None]]
    ) -> T | None:
        path = self._paths.mark(ledger_id)
        if await self._exists(path):
            return await take(ledger_id)
        return None  # a directory without a mark: one is coming, or has just been deleted

    async def marked(self) -> list[LedgerId]:
        """Every marked ledger now, ascending. Without caches or watches."""
        found: list[LedgerId] = []
        await self._collect(self._paths.marks, "", found)
        return found

    async def _collect(self, path: str, digits: str, found: list[LedgerId]) -> None:
        try:
            names, _ = await self._store.children(path)
        except NoNodeError:
            return
        if len(digits) == 4 * _LEVELS:
            ledger_id = int(digits, 16)
            if ledger_id <= ID_MAX and mark_name(LedgerId(ledger_id)) in names:
                found.append(LedgerId(ledger_id))
            return
        for name in names:
            if _is_group(path, name):
                await self._collect(f"{path}/{name}", digits + name, found)

    # ------------------------------------------------------------------ waiting

    async def wait_for_work(self) -> None:
        """Until something has changed since the last search."""
        while True:
            with trio.move_on_after(_RECHECK_SECONDS):
                await self._wait_for_any_watch()
                return
            if await self._is_outdated():
                self.forget()
                return

    def forget(self) -> None:
        self._listings.clear()
        self._absent.clear()

    async def _wait_for_any_watch(self) -> None:
        async def wait(watch: Watch) -> None:
            await watch.wait()
            nursery.cancel_scope.cancel()

        watches = [listing.watch for listing in self._listings.values()] + [*self._absent.values()]
        async with trio.open_nursery() as nursery:
            for watch in watches:
                nursery.start_soon(wait, watch)
            if not watches:
                nursery.start_soon(trio.sleep_forever)
        self._drop_fired()

    def _drop_fired(self) -> None:
        self._listings = {p: kept for p, kept in self._listings.items() if not kept.watch.event}
        self._absent = {p: watch for p, watch in self._absent.items() if not watch.event}

    async def _is_outdated(self) -> bool:
        for path, listing in list(self._listings.items()):
            try:
                names, _ = await self._store.children(path)
            except NoNodeError:
                return True
            if tuple(names) != listing.names:
                return True
        for path in list(self._absent):
            if await self._store.exists(path) is not None:
                return True
        return False

    # ------------------------------------------------------------------ reading once

    async def _names(self, path: str) -> tuple[str, ...]:
        known = self._listings.get(path)
        if known is not None and known.watch.event is None:
            return known.names
        self._listings.pop(path, None)
        try:
            names, _, watch = await self._store.children_and_watch(path)
        except NoNodeError:
            if await self._exists(path):
                return await self._names(path)
            return ()
        self._listings[path] = _Listing(tuple(names), watch)
        return self._listings[path].names

    async def _exists(self, path: str) -> bool:
        """Whether it is there; if not, we hear of it when it is made."""
        known = self._absent.get(path)
        if known is not None and known.event is None:
            return False
        self._absent.pop(path, None)
        if await self._store.exists(path) is not None:
            return True
        stat, watch = await self._store.exists_and_watch(path)
        if stat is None:
            self._absent[path] = watch
        return stat is not None


def _is_group(path: str, name: str) -> bool:
    if _GROUP.fullmatch(name) is None:
        _log.warning("ignoring %s/%s: not a part of a ledger id", path, name)
        return False
    return True
