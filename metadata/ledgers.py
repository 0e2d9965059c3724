"""The ledgers of a cluster: create, read, change and delete one, follow it, walk over all."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from dataclasses import replace
from typing import Final

import trio

from metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from metadata.latest import Latest
from metadata.ledger_ids import LedgerIds, ledger_ids
from metadata.ledger_walk import LedgerWalk
from metadata.model import InvalidMetadataError, LedgerMetadata
from metadata.paths import LayoutType, LedgerPaths
from metadata.store import (
    ANY_VERSION,
    MetadataError,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    SessionId,
    StoreUnavailableError,
    Watch,
)
from metadata.tree import create_below, prune_parents
from metadata.update import (
    PATIENT,
    Backoff,
    LedgerGoneError,
    LedgerUpdate,
    Updated,
    VersionedLedger,
    persistently,
    read_ledger,
    update_ledger,
)
from wire.errors import LedgerError
from wire.types import LedgerId

_log = logging.getLogger(__name__)

#: After an error or a lost session, before reading again.
_PAUSE_SECONDS: Final = 0.2
#: A watch that the network swallowed is made up for by a read this often.
_RECHECK_SECONDS: Final = 60.0
#: Generated ids that turn out to be taken, one after another, before we call it a fault.
_DRAWS_MAX: Final = 1000
#: Formats below this have no creator token, so no create of ours can be told from another's.
_TOKEN_FORMAT: Final = 3


class LedgerExistsError(MetadataError):
    """The ledger id that the caller chose is taken."""


class Ledgers:
    """The ledgers below one root, in the layout that the cluster has."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        layout: LayoutType,
        *,
        chance: random.Random,
        ids: LedgerIds | None = None,
        backoff: Backoff = PATIENT,
    ) -> None:
        self.store = store
        self.paths = LedgerPaths(root, layout)
        self._chance = chance
        self._backoff = backoff
        self._ids = ids or ledger_ids(store, root, layout, chance=chance, backoff=backoff)

    # ------------------------------------------------------------------ one ledger

    async def read(self, ledger_id: LedgerId) -> VersionedLedger:
        """LedgerGoneError if there is none. Like all reads it may lag behind other clients."""
        return await read_ledger(self.store, self.paths, ledger_id)

    async def is_gone(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger certainly does not exist: the question to ask before deleting data."""
        path = self.paths.path_of(ledger_id)
        await self.store.sync(path)
        return await self.store.exists(path) is None

    async def update(
        self,
        ledger_id: LedgerId,
        update: LedgerUpdate,
        *,
        known: VersionedLedger | None = None,
        session: SessionId | None = None,
    ) -> Updated:
        return await update_ledger(
            self.store,
            self.paths,
            ledger_id,
            update,
            chance=self._chance,
            known=known,
            session=session,
            backoff=self._backoff,
        )

    async def create(
        self, template: LedgerMetadata, *, ledger_id: LedgerId | None = None
    ) -> VersionedLedger:
        """Record a new ledger. The id and the creator token in `template` are replaced.

        Without `ledger_id` one is drawn, and drawn again while the number turns out to be taken.
        """
        if ledger_id is not None:
            created = await self._create_as(ledger_id, template)
            if created is None:
                raise LedgerExistsError(
                    f"ledger {ledger_id} exists already: choose another id, or let one be drawn"
                )
            return created
        for _ in range(_DRAWS_MAX):
            created = await self._create_drawn(template)
            if created is not None:
                return created
        raise LedgerExistsError(
            f"{_DRAWS_MAX} ledger ids drawn in a row are taken: the counter below "
            f"{self.paths.root} was reset, or its directories were removed by hand"
        )

    async def _create_drawn(self, template: LedgerMetadata) -> VersionedLedger | None:
        drawn = await self._ids.draw()
        created: VersionedLedger | None = None
        failure: LedgerError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ids.discard, drawn)  # costs nothing beside the create
            try:
                created = await self._create_as(drawn.ledger_id, template)
            except LedgerError as error:  # raised below: a nursery would wrap it in a group
                failure = error
        if failure is not None:
            raise failure
        return created

    async def _create_as(
        self, ledger_id: LedgerId, template: LedgerMetadata
    ) -> VersionedLedger | None:
        """None if another ledger has this id. Our own, from an answer that was lost, is ours."""
        # Never 0, which is what the first update leaves behind in anybody's record.
        token = self._chance.randrange(1, 2**63 - 1)
        has_token = template.format_version >= _TOKEN_FORMAT
        metadata = replace(template, ledger_id=ledger_id, creator_token=token if has_token else 0)
        path = self.paths.path_of(ledger_id)
        data = encode_ledger_metadata(metadata)

        async def attempt() -> VersionedLedger | None:
            try:
                await create_below(self.store, self.paths.root, path, data)
            except NodeExistsError:
                return await self._own(ledger_id, token) if has_token else None
            return VersionedLedger(metadata, version=0)

        return await persistently(attempt, chance=self._chance, backoff=self._backoff)

    async def _own(self, ledger_id: LedgerId, token: int) -> VersionedLedger | None:
        try:
            found = await self.read(ledger_id)
        except (LedgerGoneError, InvalidMetadataError):
            return None
        return found if found.metadata.creator_token == token else None

    async def delete(self, ledger_id: LedgerId, *, version: int = ANY_VERSION) -> None:
        """Delete the record; bookies collect the entries. A ledger already gone is success.

        Directories that became empty go too, in the layouts where others do the same. That is
        courtesy: it fails silently.
        """
        path = self.paths.path_of(ledger_id)

        async def attempt() -> None:
            await self.store.delete(path, version=version)

        with suppress(NoNodeError):
            await persistently(attempt, chance=self._chance, backoff=self._backoff)
        if self.paths.removes_parents:
            with suppress(MetadataError):
                await prune_parents(self.store, self.paths.parents_of(path))

    # ------------------------------------------------------------------ all ledgers

    def ranges(self) -> LedgerWalk:
        """Every ledger, ascending, one directory at a time."""
        return LedgerWalk(self.store, self.paths)


class LedgerWatch:
    """Keeps the record of one ledger up to date, for any number of readers of it.

    `run` it in a nursery; it ends when the ledger is deleted. A watch is cheap to set and cannot
    be taken back, so readers of the same ledger should share one of these.
    """

    def __init__(self, ledgers: Ledgers, first: VersionedLedger) -> None:
        self._ledgers = ledgers
        self._ledger_id = first.metadata.ledger_id
        self._path = ledgers.paths.path_of(self._ledger_id)
        self._latest: Latest[VersionedLedger | None] = Latest(first)

    @property
    def latest(self) -> VersionedLedger | None:
        """The newest record seen; None once the ledger is gone."""
        return self._latest.value

    async def wait_newer(self, than: VersionedLedger) -> VersionedLedger:
        """The first record with a higher version that we see. LedgerGoneError if deleted."""
        newest = self._latest.value
        while newest is not None and newest.version <= than.version:
            newest = await self._latest.wait_other_than(newest)
        if newest is None:
            raise LedgerGoneError(f"ledger {self._ledger_id} was deleted")
        return newest

    async def run(self) -> None:
        while self.latest is not None:
            try:
                await self._follow()
            except StoreUnavailableError:
                await trio.sleep(_PAUSE_SECONDS)

    async def _follow(self) -> None:
        """One watch, from setting it to its end."""
        try:
            node, watch = await self._ledgers.store.get_and_watch(self._path)
            self._take(node)
            await self._wait(watch)
        except NoNodeError:
            if await self._ledgers.is_gone(self._ledger_id):
                self._latest.put(None)

    async def _wait(self, watch: Watch) -> None:
        """Until the watch fires. It may never: look again from time to time, without another."""
        while True:
            with trio.move_on_after(_RECHECK_SECONDS):
                await watch.wait()
                return
            self._take(await self._ledgers.store.get(self._path))

    def _take(self, node: Node) -> None:
        known = self.latest
        if known is not None and node.stat.version <= known.version:
            return  # a server that lags behind what we have seen elsewhere
        try:
            metadata = decode_ledger_metadata(node.data, ledger_id=self._ledger_id)
        except InvalidMetadataError as error:
            _log.warning("keeping the older record of ledger %d: %s", self._ledger_id, error)
            return
        self._latest.put(VersionedLedger(metadata, node.stat.version, node.stat.created_ms))
