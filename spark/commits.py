"""Commits of the sink in the metadata store: made once, read back, and what they do not list swept.

Everything here may be repeated, and is: a lost answer of the store, a commit that Spark replays, an
abort that follows a commit which had won. What decides is always a transaction of the store. A
commit checks that the ledgers it lists still exist; a sweep deletes a ledger only while its
commit is as it was when it was read, and where there is none, while there still is none.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from ledger_client.errors import reaching_metadata
from ledger_client.security import read_security, zookeeper_of
from metadata.cluster import open_cluster
from metadata.connect import open_store
from metadata.ledgers import Ledgers
from metadata.model import InvalidMetadataError
from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    Change,
    Check,
    Create,
    Delete,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    SetData,
)
from metadata.update import PATIENT, Backoff, LedgerGoneError, persistently
from metadata.uri import parse_metadata_uri
from spark.core.commits import (
    CommitConflictError,
    CommitError,
    CommitPaths,
    CommitRecord,
    Identity,
    QueryHead,
    identity_of,
    is_orphan,
    ttl_of,
)
from spark.parallel import map_parallel
from wire.types import LedgerId

_log = logging.getLogger(__name__)

#: How often a transaction may find that somebody else was faster.
_ATTEMPTS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class _Found:
    record: CommitRecord
    version: int
    modified_ms: int


@asynccontextmanager
async def open_commits(uri: str, client_conf: str | None = None) -> AsyncIterator[Commits]:
    """The commits of the cluster at `uri`, on a connection of their own."""
    place = parse_metadata_uri(uri)
    chance = random.Random()
    with reaching_metadata(f"the commits beside {place} cannot be reached"):
        access = zookeeper_of(read_security(client_conf))
        async with open_store(place, access=access) as store:
            cluster = await open_cluster(store, place)
            yield Commits(
                Ledgers(store, cluster.root, cluster.layout, chance=chance), chance=chance
            )


class Commits:
    """The commits beside one cluster's tree."""

    def __init__(
        self, ledgers: Ledgers, *, chance: random.Random, backoff: Backoff = PATIENT
    ) -> None:
        self._ledgers = ledgers
        self._store: MetadataStore = ledgers.store
        self._paths = CommitPaths(ledgers.paths.root)
        self._chance = chance
        self._backoff = backoff

    # ------------------------------------------------------------------ reading

    async def read(self, identity: Identity) -> CommitRecord | None:
        found = await self._find(identity)
        return None if found is None else found.record

    async def last_batch(self, query: str) -> int:
        """The last batch that a query has committed; -1 if none."""
        head = await self._head(query)
        return -1 if head is None else head[0].last_batch

    async def ledger_ids(self, identity: Identity) -> list[int]:
        """What `commit=<identity>` names: a job's ledgers, a batch's, or all of a query's."""
        record = await self.read(identity)
        if record is not None:
            return list(record.ledger_ids)
        if identity.batch is None:
            found = await self._query_ledgers(identity.name)
            if found is not None:
                return found
        elif identity.batch <= await self.last_batch(identity.name):
            return []  # a batch without rows leaves no record
        raise CommitError(
            f"nothing is committed as {identity}: the job has not ended, or the name is another"
        )

    async def _query_ledgers(self, query: str) -> list[int] | None:
        if await self.last_batch(query) < 0:
            return None
        path = self._paths.query(query)
        directories, _ = await self._store.children(path)
        found: list[int] = []
        for directory in sorted(directories):
            names, _ = await self._store.children(f"{path}/{directory}")
            paths = [f"{path}/{directory}/{name}" for name in names]
            for record in await map_parallel(self._read_record, paths):
                found += record.ledger_ids
        return found

    async def _read_record(self, path: str) -> CommitRecord:
        return _decode(path, await self._store.get(path)).record

    async def _find(self, identity: Identity, *, fresh: bool = False) -> _Found | None:
        """`fresh` before acting on absence: a follower that lags would show too little."""
        path = self._paths.record(identity)
        if fresh:
            await self._store.sync(path)
        try:
            return _decode(path, await self._store.get(path))
        except NoNodeError:
            return None

    async def _head(self, query: str) -> tuple[QueryHead, int] | None:
        path = self._paths.query(query)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            return None
        return QueryHead.decode(node.data, where=path), node.stat.version

    # ------------------------------------------------------------------ committing

    async def commit(self, record: CommitRecord, *, overwrite: bool = False) -> CommitRecord:
        """Make the rows count, once; the commit that counts, which may be an earlier one.

        A commit of the same rows that stands already is as good as this one: the ledgers that
        came too late are deleted. One of other rows is a CommitConflictError, and nothing is
        changed. For a stream every batch up to the last committed one stands.
        """

        async def attempt() -> CommitRecord:
            return await self._commit(record, overwrite=overwrite)

        stands = await persistently(attempt, chance=self._chance, backoff=self._backoff)
        await self.discard(record.identity, set(record.ledger_ids) - set(stands.ledger_ids))
        return stands

    async def _commit(self, record: CommitRecord, *, overwrite: bool) -> CommitRecord:
        for _ in range(_ATTEMPTS_MAX):
            found = await self._find(record.identity, fresh=True)
            if found is not None and not overwrite:
                return _settle(record, found.record)
            if found is not None and found.record.ledger_ids == record.ledger_ids:
                return found.record
            changes = await self._changes(record, found)
            if changes is None:
                return CommitRecord(record.identity, ())
            try:
                await self._store.transact(changes)
            except (NodeExistsError, BadVersionError):
                continue  # somebody was faster, perhaps this commit, its answer lost
            except NoNodeError:
                await self._explain_missing(record)
                continue
            return record
        raise CommitError(f"commit {record.identity}: somebody else changes it all the time")

    async def _changes(self, record: CommitRecord, found: _Found | None) -> list[Change] | None:
        """The transaction; None if the batch was committed before, without rows."""
        identity = record.identity
        path = self._paths.record(identity)
        await self._ensure(self._paths.directory(identity))
        checks: list[Change] = [
            Check(self._ledgers.paths.path_of(LedgerId(ledger_id)), ANY_VERSION)
            for ledger_id in record.ledger_ids
        ]
        if found is not None:
            return [*checks, SetData(path, record.encode(), found.version)]
        if identity.batch is None:
            return [*checks, Create(path, record.encode())]
        head = await self._head(identity.name)
        assert head is not None
        if identity.batch <= head[0].last_batch:
            return None
        query = self._paths.query(identity.name)
        bump = SetData(query, QueryHead(identity.batch).encode(), head[1])
        if not record.ledgers:
            return [bump]
        return [*checks, Create(path, record.encode()), bump]

    async def _ensure(self, path: str) -> None:
        """The directory and its parents; that of a query begins with a head."""
        if await self._store.exists(path) is not None:
            return
        head = QueryHead().encode()
        at = self._paths.ledgers_root + "-quire"
        for name in ["", *path.removeprefix(at + "/").split("/")]:
            at = f"{at}/{name}" if name else at
            is_query = at.startswith(f"{self._paths.root}/queries/") and at.count("/") == (
                self._paths.root.count("/") + 2
            )
            with suppress(NodeExistsError):
                await self._store.create(at, head if is_query else b"")

    async def _explain_missing(self, record: CommitRecord) -> None:
        """Which ledger is gone; if none is, a directory was, and the next attempt makes it."""
        for ledger_id in record.ledger_ids:
            if await self._ledgers.is_gone(LedgerId(ledger_id)):
                error = LedgerGoneError(
                    f"commit {record.identity}: ledger {ledger_id} was deleted before it could be "
                    "committed: is orphanTtl shorter than this job?"
                )
                error.ledger_id = ledger_id
                raise error

    # ------------------------------------------------------------------ leftovers

    async def discard(self, identity: Identity, ledger_ids: Iterable[int]) -> list[int]:
        """Delete ledgers written for `identity`, but for those that its commit lists.

        After an abort nobody knows whether a commit had won and only its answer was lost.
        """
        gone = []
        for ledger_id in sorted(ledger_ids):

            async def attempt(ledger_id: int = ledger_id) -> bool:
                return await self._discard(identity, ledger_id)

            if await persistently(attempt, chance=self._chance, backoff=self._backoff):
                gone.append(ledger_id)
        return gone

    async def _discard(self, identity: Identity, ledger_id: int) -> bool:
        for _ in range(_ATTEMPTS_MAX):
            found = await self._find(identity, fresh=True)
            if found is not None and ledger_id in found.record.ledger_ids:
                return False
            try:
                await self._store.transact(await self._deletion(identity, ledger_id, found))
            except (NodeExistsError, BadVersionError):
                continue  # committed meanwhile: look again
            except NoNodeError:
                if await self._ledgers.is_gone(LedgerId(ledger_id)):
                    return False
                continue
            await self._ledgers.delete(LedgerId(ledger_id))  # its empty directories, too
            return True
        raise CommitError(f"commit {identity}: somebody else changes it all the time")

    async def _deletion(
        self, identity: Identity, ledger_id: int, found: _Found | None
    ) -> list[Change]:
        delete = Delete(self._ledgers.paths.path_of(LedgerId(ledger_id)), ANY_VERSION)
        path = self._paths.record(identity)
        if found is not None:
            return [Check(path, found.version), delete]
        # No transaction can ask that a node does not exist, but it can make and remove it.
        await self._ensure(self._paths.directory(identity))
        return [Create(path), Delete(path, ANY_VERSION), delete]

    async def sweep(self, *, now_ms: int, ttl_ms: int | None = None) -> list[int]:
        """Delete what sinks left behind more than `ttl_ms` ago; the ids of what was deleted.

        Without `ttl_ms` it is what the job said that wrote the ledger (`orphanTtl`).
        """

        async def sweep(ledger_id: LedgerId) -> list[int]:
            return await self._sweep_one(ledger_id, now_ms, ttl_ms)

        gone: list[int] = []
        async for found in self._ledgers.ranges():
            for one in await map_parallel(sweep, found.ids):
                gone += one
        return gone

    async def _sweep_one(self, ledger_id: LedgerId, now_ms: int, ttl_ms: int | None) -> list[int]:
        try:
            ledger = await self._ledgers.read(ledger_id)
        except LedgerGoneError:
            return []
        except InvalidMetadataError as error:
            _log.warning("the sweep leaves ledger %d alone: %s", ledger_id, error)
            return []
        custom = dict(ledger.metadata.custom)
        identity = identity_of(custom)
        if identity is None:
            return []
        made_ms = ledger.metadata.ctime_ms or ledger.created_ms or now_ms
        commit = await self._find(identity, fresh=True)
        if is_orphan(
            ledger_id,
            age_ms=now_ms - made_ms,
            record=None if commit is None else commit.record,
            record_age_ms=0 if commit is None else now_ms - commit.modified_ms,
            ttl_ms=ttl_of(custom) if ttl_ms is None else ttl_ms,
        ):
            return await self.discard(identity, [ledger_id])
        return []


def _decode(path: str, node: Node) -> _Found:
    return _Found(
        CommitRecord.decode(node.data, where=path), node.stat.version, node.stat.modified_ms
    )


def _settle(record: CommitRecord, stands: CommitRecord) -> CommitRecord:
    """The commit that stands, if it is as good as the new one."""
    # A stream's batch is replayed from the same offsets: whoever came first has its rows.
    if record.identity.batch is not None or stands.rows == record.rows:
        return stands
    raise CommitConflictError(
        f"commit {record.identity}: it stands already with {stands.rows.entries} rows and "
        f"{stands.rows.nbytes} bytes, this job wrote {record.rows.entries} rows and "
        f"{record.rows.nbytes} bytes: choose another writeId, or write with mode overwrite"
    )
