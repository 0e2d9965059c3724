"""Drawing ledger ids from the sequence counters of the tree.

An id is the number that the store appends to an ephemeral node. The node itself is worthless once
the number is known: `draw` gives both, and `discard` deletes the node, which the caller runs beside
something useful (creating the ledger) so that it costs no time.

ZooKeeper's counters have 31 bits. The two layouts for large ids go on behind that: directories
named `HOB-<number>` hold the high 32 bits and have counters of their own. Such a directory is never
made below the largest one: its counter would start at zero again and hand out the ids of deleted
ledgers, whose entries and fences bookies may still hold.
"""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from metadata.model import InvalidMetadataError
from metadata.paths import (
    HIGH_BITS_PREFIX,
    LONG_FORM_FROM,
    SEQUENTIAL_ID_PREFIX,
    ClusterPaths,
    LayoutType,
    sequence_of,
)
from metadata.store import (
    ANY_VERSION,
    ConnectionLostError,
    MetadataError,
    MetadataStore,
    NoNodeError,
    NotEmptyError,
    StoreUnavailableError,
)
from metadata.tree import create_below, ensure_below
from metadata.update import PATIENT, Backoff
from metadata.znodes import parent_of
from wire.types import LedgerId

_log = logging.getLogger(__name__)

#: High bits from here on would make ids negative.
_HIGH_END: Final = 2**31
#: Older directories stay for creators that are just drawing from them; then they are litter.
_HIGH_KEPT: Final = 3
#: Directories that run out or vanish under us, before we call it a fault of the tree.
_ROUNDS_MAX: Final = 16


class IdsExhaustedError(MetadataError):
    """The counter of this layout has no ids left."""


@dataclass(frozen=True, slots=True)
class DrawnId:
    ledger_id: LedgerId
    node: str  # ephemeral; `discard` it


class LedgerIds(Protocol):
    async def draw(self) -> DrawnId: ...

    async def discard(self, drawn: DrawnId) -> None:
        """Best effort: what stays behind goes with our session."""


def ledger_ids(
    store: MetadataStore,
    root: str,
    layout: LayoutType,
    *,
    chance: random.Random,
    backoff: Backoff = PATIENT,
) -> LedgerIds:
    """The generator that all clients of a cluster with this layout share."""
    paths = ClusterPaths(root)
    counter = _Counter(store, root, chance, backoff)
    match layout:
        case LayoutType.FLAT:
            return ShortIds(counter, paths.id_prefix_flat)
        case LayoutType.LEGACY_HIERARCHICAL:
            return ShortIds(counter, paths.id_prefix)
        case LayoutType.HIERARCHICAL | LayoutType.LONG_HIERARCHICAL:
            return LongIds(counter, paths)


class _Counter:
    """Numbers from one directory's sequence, and the removal of the nodes that carried them."""

    def __init__(
        self, store: MetadataStore, root: str, chance: random.Random, backoff: Backoff
    ) -> None:
        self.store = store
        self.root = root
        self._chance = chance
        self._backoff = backoff
        self._littered: set[str] = set()  # directories where an answer was lost

    async def draw(self, prefix: str, *, make_parent: bool) -> tuple[int, str]:
        """The next number and its node. A number whose answer was lost is simply wasted."""
        for failures in range(1, self._backoff.attempts_max + 1):
            try:
                if make_parent:
                    node = await create_below(
                        self.store, self.root, prefix, ephemeral=True, sequential=True
                    )
                else:
                    node = await self.store.create(prefix, ephemeral=True, sequential=True)
                return sequence_of(node, SEQUENTIAL_ID_PREFIX), node
            except StoreUnavailableError as error:
                if isinstance(error, ConnectionLostError):
                    self._littered.add(parent_of(prefix))
                if failures == self._backoff.attempts_max:
                    raise
            await trio.sleep(self._backoff.seconds(failures, self._chance))
        raise AssertionError("the loop returns or raises")

    async def discard(self, node: str) -> None:
        try:
            await self._delete(node)
            while self._littered:
                await self._sweep(self._littered.pop())
        except MetadataError as error:
            _log.info("left %s to the end of the session: %s", node, error)

    async def _sweep(self, directory: str) -> None:
        """Remove our own nodes, whose numbers nobody was told.

        This may hit the node of a draw of ours that is still under way. No harm: its number is
        taken, and will arrive with its answer.
        """
        session = self.store.session
        names, _ = await self.store.children(directory)
        for name in names:
            if name.startswith(SEQUENTIAL_ID_PREFIX):
                node = f"{directory}/{name}"
                stat = await self.store.exists(node)
                if stat is not None and stat.owner is not None and stat.owner == session:
                    await self._delete(node)

    async def _delete(self, node: str) -> None:
        with suppress(NoNodeError):  # the session it belonged to may be over
            await self.store.delete(node, version=ANY_VERSION)


class ShortIds:
    """31-bit ids: the flat layout counts on the root itself, the others on `idgen`."""

    def __init__(self, counter: _Counter, prefix: str) -> None:
        self._counter = counter
        self._prefix = prefix

    async def draw(self) -> DrawnId:
        number, node = await self._counter.draw(self._prefix, make_parent=True)
        if not 0 <= number < LONG_FORM_FROM:
            await self._counter.discard(node)
            raise IdsExhaustedError(
                f"the ledger id counter at {self._prefix} has passed {LONG_FORM_FROM - 1}: this "
                "layout has no ids left, move to a cluster with the hierarchical layout"
            )
        return DrawnId(LedgerId(number), node)

    async def discard(self, drawn: DrawnId) -> None:
        await self._counter.discard(drawn.node)


class LongIds:
    """63-bit ids: the short counter first, then `idgen-long`, whose existence is the switch."""

    def __init__(self, counter: _Counter, paths: ClusterPaths) -> None:
        self._counter = counter
        self._short = ShortIds(counter, paths.id_prefix)
        self._store = counter.store
        self._paths = paths
        self._is_long: bool | None = None  # asked once; we throw the switch ourselves on overflow
        self._high: tuple[int, ...] = ()  # ascending; empty = list again
        self._highest_seen = 0

    async def draw(self) -> DrawnId:
        if self._is_long is None:
            self._is_long = await self._store.exists(self._paths.idgen_long) is not None
        if not self._is_long:
            try:
                return await self._short.draw()
            except IdsExhaustedError:
                _log.warning("31-bit ledger ids are used up: going on with 63 bits")
                await self._ensure(self._paths.idgen_long)
                self._is_long = True
        return await self._draw_long()

    async def discard(self, drawn: DrawnId) -> None:
        await self._counter.discard(drawn.node)
        if len(self._high) > _HIGH_KEPT:
            await self._remove_oldest()

    async def _draw_long(self) -> DrawnId:
        spent: int | None = None  # the high bits whose counter has run out
        for _ in range(_ROUNDS_MAX):
            high = await self._highest(spent)
            try:
                low, node = await self._counter.draw(
                    self._paths.id_prefix_long(high), make_parent=False
                )
            except NoNodeError:
                # Removed as one of the oldest; the largest is elsewhere by now.
                self._high = ()
                continue
            if 0 <= low < LONG_FORM_FROM:
                return DrawnId(LedgerId(high << 32 | low), node)
            await self._counter.discard(node)
            spent = high
        raise IdsExhaustedError(
            f"{self._paths.idgen_long}: no ledger id in {_ROUNDS_MAX} rounds, its directories run "
            "out or vanish as fast as they are made"
        )

    async def _highest(self, spent: int | None) -> int:
        """The largest high bits; makes a directory if there is none, or none above `spent`."""
        if self._high and self._high[-1] != spent:
            return self._high[-1]
        self._high = await self._list()
        if self._high and self._high[-1] != spent:
            return self._high[-1]
        following = max(self._highest_seen, *self._high, 0) + 1
        if following >= _HIGH_END:
            raise IdsExhaustedError(f"{self._paths.idgen_long}: all 63-bit ledger ids are used up")
        await self._ensure(self._paths.high_bits(following))
        self._high = (*self._high, following)
        self._highest_seen = following
        return following

    async def _list(self) -> tuple[int, ...]:
        # What follows may create a directory: a follower's old list must not decide where.
        await self._store.sync(self._paths.idgen_long)
        try:
            names, _ = await self._store.children(self._paths.idgen_long)
        except NoNodeError:
            return ()
        numbers = []
        for name in names:
            try:
                numbers.append(sequence_of(name, HIGH_BITS_PREFIX))
            except InvalidMetadataError:
                _log.warning("ignoring %s in %s", name, self._paths.idgen_long)
        self._highest_seen = max(self._highest_seen, *numbers, 0)
        return tuple(sorted(numbers))

    async def _ensure(self, path: str) -> None:
        await ensure_below(self._store, self._paths.root, path, open_acl=True)

    async def _remove_oldest(self) -> None:
        oldest, self._high = self._high[:-_HIGH_KEPT], ()
        for high in oldest:
            try:
                await self._store.delete(self._paths.high_bits(high), version=0)
            except (NoNodeError, NotEmptyError):
                continue
            except MetadataError as error:
                _log.info("left %s for another time: %s", self._paths.high_bits(high), error)
                return
