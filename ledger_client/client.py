"""The client: one connection to the cluster, from which ledgers are made, opened and deleted."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

import trio

from ledger_client.bookie_info import BookieSpace, ask_bookie_info
from ledger_client.core.options import WriterOptions
from ledger_client.core.placement import DefaultPolicy, PlacementPolicy
from ledger_client.core.quarantine import QuarantineOptions
from ledger_client.core.reader import ReadOptions
from ledger_client.creation import create_record
from ledger_client.entrance import ClientAuth
from ledger_client.environment import Access, Environment, check_digest_type, check_password
from ledger_client.errors import (
    ClientClosedError,
    InvalidEntryIdError,
    InvalidLedgerIdError,
    reaching_metadata,
)
from ledger_client.health import BookieHealth, ClientStatistics
from ledger_client.pool import Pool
from ledger_client.reader import LedgerReader
from ledger_client.recovery import LedgerRecovery
from ledger_client.security import Security, secure_network
from ledger_client.tail import LedgerTail
from ledger_client.topology import Topology
from ledger_client.weights import SpaceOptions, SpaceWatch
from ledger_client.writer import LedgerWriter
from metadata.access import ANONYMOUS, ZookeeperAccess
from metadata.cluster import open_cluster
from metadata.connect import open_store
from metadata.discovery import Bookies, BookieWatcher
from metadata.ledgers import LedgerExistsError, Ledgers
from metadata.model import LedgerMetadata, new_ledger
from metadata.update import LedgerGoneError, VersionedLedger
from metadata.uri import parse_metadata_uri
from metadata.zookeeper_store import SESSION_SECONDS
from runtime.sockets import Network
from runtime.tls import TlsOptions
from wire.errors import BadRequestError
from wire.types import BookieId, DigestType, LedgerId

_WRITER_OPTIONS: Final = WriterOptions()


class LedgerClient:
    """Use it as `async with LedgerClient("zk://host:2181/ledgers") as client`.

    Handles live as long as their client: what they still have on its way when it is closed ends
    as ClientClosedError, and ledgers that were not closed stay open, for a recovery to close.
    """

    def __init__(
        self,
        uri: str,
        *,
        policy: PlacementPolicy | None = None,
        topology: Topology | None = None,
        space: SpaceOptions | None = None,
        quarantine: QuarantineOptions | None = None,
        session_seconds: float = SESSION_SECONDS,
        tls: TlsOptions | None = None,
        auth: ClientAuth | None = None,
        zookeeper: ZookeeperAccess = ANONYMOUS,
        network: Network | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """`tls`, `auth` and `zookeeper` say whom to trust and who we are; see `security.py`."""
        self._uri = parse_metadata_uri(uri)
        self._policy = policy or DefaultPolicy()
        self._topology = topology
        self._space = None if space is None else SpaceWatch(space)
        self._quarantine = quarantine
        self._session_seconds = session_seconds
        self._zookeeper = zookeeper
        self._network = secure_network(Security(tls=tls, auth=auth), network)
        self._chance = chance or random.Random()
        self._stack = AsyncExitStack()
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._open: Environment | None = None

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        try:
            with reaching_metadata(f"the cluster at {self._uri} cannot be opened"):
                store = await self._stack.enter_async_context(
                    open_store(
                        self._uri, session_seconds=self._session_seconds, access=self._zookeeper
                    )
                )
                cluster = await open_cluster(store, self._uri)
            watcher = BookieWatcher(store, cluster.root)
            self._nursery_manager = trio.open_nursery()
            nursery = await self._nursery_manager.__aenter__()
        except BaseException:
            await self._stack.aclose()
            raise
        pool = Pool(
            lambda: watcher.bookies,
            network=self._network,
            chance=self._chance,
            known=BookieHealth(self._quarantine),
        )
        self._open = Environment(
            ledgers=Ledgers(store, cluster.root, cluster.layout, chance=self._chance),
            pool=pool,
            bookies=lambda: watcher.bookies,
            policy=self._policy,
            chance=self._chance,
            nursery=nursery,
            request_ids=itertools.count(1),
        )
        if self._space is not None:
            self._open.weights = self._space.current
        try:
            with reaching_metadata(f"the bookies at {self._uri} cannot be listed"):
                await nursery.start(watcher.run)
            await nursery.start(pool.run)
            nursery.start_soon(pool.follow, watcher)
            nursery.start_soon(self._open.alarms.run)
            nursery.start_soon(self._open.rounds.run)
            if self._topology is not None:
                await nursery.start(self._topology.follow, self.bookies, watcher.wait_changed)
            if self._space is not None:
                nursery.start_soon(self._space.run, self._open)
        except BaseException:
            await self._shut()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._shut()

    async def _shut(self) -> None:
        """End all tasks of ours. The caller's own error is not theirs: no nursery wraps it."""
        environment, self._open = self._environment, None
        for handle in list(environment.handles):
            handle.on_client_closed()
        environment.pool.close()
        environment.nursery.cancel_scope.cancel()
        assert self._nursery_manager is not None
        try:
            await self._nursery_manager.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            # Ctrl-C may strike in a task of ours; for the caller it is Ctrl-C all the same.
            if group.subgroup(KeyboardInterrupt) is not None:
                raise KeyboardInterrupt from group
            raise
        finally:
            await self._stack.aclose()

    @property
    def _environment(self) -> Environment:
        if self._open is None:
            raise ClientClosedError("the client is not open: use it inside its `async with` block")
        return self._open

    # ------------------------------------------------------------------ ledgers

    async def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 2,
        ack_quorum: int = 2,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        given_entry_ids: bool = False,
        deferred_sync: bool = False,
        shrink_ensemble: bool = False,
        options: WriterOptions | None = None,
    ) -> LedgerWriter:
        """A new ledger, to be written by the handle that is returned and by nobody else.

        With `given_entry_ids` every append names its entry id. With `deferred_sync` bookies
        acknowledge entries before they are on disk, and `force` has them synced. With
        `shrink_ensemble` fewer bookies than asked for will do, down to the write quorum. A caller
        that is cancelled here leaves no ledger behind.
        """
        environment = self._environment
        if not ensemble_size >= write_quorum >= ack_quorum >= 1:
            raise BadRequestError(
                f"a ledger over {ensemble_size} bookies with write quorum {write_quorum} and ack "
                f"quorum {ack_quorum} cannot be: want ensemble >= write quorum >= ack quorum >= 1"
            )
        wanted = None if ledger_id is None else self._ledger_id(ledger_id)
        options = options or _WRITER_OPTIONS
        if deferred_sync:
            options = replace(options, deferred_sync=True)
        ensemble = environment.new_ensemble(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            shrink=shrink_ensemble,
        )
        template = new_ledger(
            ledger_id=LedgerId(0),
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            password=password,
            custom=custom_metadata,
            ctime_ms=time.time_ns() // 1_000_000,
        )
        with reaching_metadata("no ledger could be created"):
            try:
                ledger = await create_record(environment, template, ledger_id=wanted)
            except LedgerExistsError as error:
                error.ledger_id = ledger_id
                raise
        access = Access.of(ledger.metadata.ledger_id, digest_type, password)
        writer = LedgerWriter(environment, ledger, access, options, given_entry_ids=given_entry_ids)
        environment.handles.add(writer)
        return writer

    async def open(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest_type: DigestType | None = None,
        options: ReadOptions | None = None,
    ) -> LedgerReader:
        """A ledger with a settled end.

        If it is still open it is fenced and recovered first: its writer, if there is one, is
        stopped. To follow a living writer, use `tail` or `open_no_recovery`. The record knows the
        digest type; say it to have it checked, or for records of before 2012, which do not.
        """
        environment = self._environment
        ledger, access = await self._access(ledger_id, password, digest_type)
        if not ledger.metadata.is_closed:
            ledger = await LedgerRecovery(environment, ledger, access).run()
        return LedgerReader(environment, ledger, access, options)

    async def open_no_recovery(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest_type: DigestType | None = None,
        options: ReadOptions | None = None,
    ) -> LedgerReader:
        """A ledger as it is now, without disturbing its writer."""
        ledger, access = await self._access(ledger_id, password, digest_type)
        reader = LedgerReader(self._environment, ledger, access, options)
        await reader.read_last_confirmed()
        return reader

    async def tail(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest_type: DigestType | None = None,
        first: int = 0,
        options: ReadOptions | None = None,
    ) -> LedgerTail:
        """Every entry from `first` on, as it is confirmed, until the ledger is closed."""
        if first < 0:
            raise InvalidEntryIdError(f"ledger {ledger_id}: cannot be followed from entry {first}")
        ledger, access = await self._access(ledger_id, password, digest_type)
        reader = LedgerReader(self._environment, ledger, access, options)
        tail = LedgerTail(self._environment, reader, first)
        tail.start(ledger)
        return tail

    async def _access(
        self, ledger_id: int, password: bytes, digest_type: DigestType | None
    ) -> tuple[VersionedLedger, Access]:
        ledger = await self._read(ledger_id)
        metadata = ledger.metadata
        check_password(metadata.ledger_id, metadata.password, password)
        check_digest_type(metadata.ledger_id, metadata.digest_type, digest_type)
        # The oldest records do not say; their clients used this one.
        found = metadata.digest_type or digest_type or DigestType.CRC32
        return ledger, Access.of(metadata.ledger_id, found, password)

    def _ledger_id(self, ledger_id: int) -> LedgerId:
        id_max = self._environment.ledgers.paths.id_max
        if not 0 <= ledger_id <= id_max:
            error = InvalidLedgerIdError(
                f"no ledger of this cluster can have the id {ledger_id}: want 0..{id_max}"
            )
            error.ledger_id = ledger_id
            raise error
        return LedgerId(ledger_id)

    async def _read(self, ledger_id: int) -> VersionedLedger:
        ledgers, wanted = self._environment.ledgers, self._ledger_id(ledger_id)
        with reaching_metadata(f"ledger {ledger_id} cannot be looked up"):
            try:
                return await ledgers.read(wanted)
            except LedgerGoneError as error:
                error.ledger_id = ledger_id
                raise

    # ------------------------------------------------------------------ records

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """The record of a ledger: its shape, its state, and which bookies hold what."""
        return (await self._read(ledger_id)).metadata

    async def exists(self, ledger_id: int) -> bool:
        try:
            await self._read(ledger_id)
        except LedgerGoneError:
            return False
        return True

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger; bookies collect its entries later. One that is gone is no error."""
        wanted = self._ledger_id(ledger_id)
        with reaching_metadata(f"ledger {ledger_id} could not be deleted"):
            await self._environment.ledgers.delete(wanted)

    async def list(self) -> AsyncIterator[LedgerId]:
        """The ids of all ledgers, ascending."""
        with reaching_metadata("ledgers could not be listed"):
            async for found in self._environment.ledgers.ranges():
                for ledger_id in found.ids:
                    yield ledger_id

    # ------------------------------------------------------------------ bookies

    def bookies(self) -> Bookies:
        """The bookies that are registered at present, writable and read-only."""
        return self._environment.bookies()

    async def bookie_info(self, bookie_id: str) -> BookieSpace:
        """What a bookie says about its disks: total and free bytes."""
        return await ask_bookie_info(self._environment, BookieId(bookie_id))

    def statistics(self) -> ClientStatistics:
        """What this client has learned about its bookies: corrupt copies, quarantine, and more."""
        pool = self._environment.pool
        return pool.known.statistics(trio.current_time(), pool.pending)
