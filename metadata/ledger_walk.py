"""Meeting every ledger of a cluster once, in ascending order, one directory at a time.

This is what bookies base garbage collection on: a ledger that the walk does not meet is deleted
from disk. So the walk never guesses. It reads past lagging followers, an error ends it with an
error and never with "no more", and a name or an order that it does not understand is an error too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from metadata.model import InvalidMetadataError
from metadata.paths import LayoutType, LedgerPaths
from metadata.store import MetadataStore, NoNodeError
from wire.types import LedgerId


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """All ledgers below one directory, ascending; at most 10000, but for the flat layout.

    Between the end of one range and the end of the next, what is not listed does not exist.
    """

    ids: tuple[LedgerId, ...]

    @property
    def first(self) -> LedgerId:
        return self.ids[0]

    @property
    def last(self) -> LedgerId:
        return self.ids[-1]


class LedgerWalk:
    """An asynchronous iterator over ranges. After an error it may be asked again and goes on
    where it was; nothing is passed over.

    A ledger that existed when the walk began is met, unless it is deleted on the way; one that is
    created meanwhile may or may not be.
    """

    def __init__(self, store: MetadataStore, paths: LedgerPaths) -> None:
        self._store = store
        self._paths = paths
        #: Directories still to be visited, the next one last, with the levels of directories
        #: below each. None before the root was listed.
        self._ahead: list[tuple[str, int]] | None = None
        self._previous = -1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LedgerRange:
        if self._ahead is None:
            self._ahead = await self._tops()
        while self._ahead:
            path, levels = self._ahead[-1]
            names = await self._names(path, is_root=path == self._paths.root)
            ids = self._ids(path, names) if levels == 0 else ()
            self._ahead.pop()  # not before all that may raise
            if levels > 0:
                self._ahead += [(f"{path}/{name}", levels - 1) for name in reversed(names)]
            if ids:
                self._previous = ids[-1]
                return LedgerRange(ids)
        raise StopAsyncIteration

    async def _tops(self) -> list[tuple[str, int]]:
        root = self._paths.root
        if self._paths.layout is LayoutType.FLAT:
            return [(root, 0)]
        names = filter(self._paths.is_top_level, await self._names(root, is_root=True))
        # Short ids before long ones: two digits at the top, then three.
        ascending = sorted(names, key=lambda name: (len(name), name))
        return [(f"{root}/{name}", self._levels_below(name)) for name in reversed(ascending)]

    def _levels_below(self, top: str) -> int:
        return self._paths.levels_below(top) - 1

    async def _names(self, path: str, *, is_root: bool) -> list[str]:
        """What is there now. A directory that is gone was empty; a root that is gone is not."""
        await self._store.sync(path)
        try:
            names, _ = await self._store.children(path)
        except NoNodeError:
            if is_root:
                raise
            return []
        return names

    def _ids(self, directory: str, names: list[str]) -> tuple[LedgerId, ...]:
        if directory == self._paths.root:
            names = [name for name in names if _looks_like_a_ledger(name)]
        ids = tuple(sorted(self._paths.id_of(f"{directory}/{name}") for name in names))
        if ids and ids[0] <= self._previous:
            raise InvalidMetadataError(
                f"ledger {ids[0]} in {directory} comes after ledger {self._previous}: the tree is "
                "not in ascending order, so nothing can be said about what is missing"
            )
        return ids


def _looks_like_a_ledger(name: str) -> bool:
    # Wider than the layout's own pattern: an id too long for it must surface, not be overlooked.
    return name[:1] == "L" and name[1:].isdigit()
