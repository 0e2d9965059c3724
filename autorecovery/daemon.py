"""Autorecovery as a process of its own, or beside a bookie in the bookie's process.

Auditor and worker share one connection to the metadata, and with it one session: when it is lost
the auditor's office and the worker's locks are lost together, both give up what they were doing and
begin again on a new one. Nothing has to be restarted.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import trio

from autorecovery.auditor import Auditor
from autorecovery.context import RecoveryContext, RecoverySettings
from autorecovery.integrity import LimboBookie, heal_bookie
from autorecovery.parking import Parking
from autorecovery.settings import ProcessSettings, own_id
from autorecovery.worker import run_worker
from ledger_client.core.placement import DefaultPolicy, PlacementPolicy
from ledger_client.environment import Environment
from ledger_client.placement_config import placement_of
from ledger_client.pool import Pool
from ledger_client.security import secure_network
from ledger_client.topology import Topology
from metadata.cluster import open_cluster
from metadata.cookies import Cookies
from metadata.discovery import BookieWatcher
from metadata.ledgers import Ledgers
from metadata.store import MetadataStore
from metadata.underreplication import UnderReplication
from metadata.uri import MetadataUri
from runtime import logs
from runtime.metrics import Registry
from runtime.service import Readiness, background
from runtime.sockets import Network
from wire.errors import LedgerError
from wire.types import BookieId

_log = logs.get("autorecovery.daemon")

#: Beside a bookie: between two attempts to start.
_RESTART_SECONDS: Final = 30.0


@asynccontextmanager
async def opened_context(
    open_metadata: Callable[[], AbstractAsyncContextManager[MetadataStore]],
    uri: MetadataUri,
    *,
    bookie_id: BookieId,
    settings: RecoverySettings,
    registry: Registry | None = None,
    network: Network | None = None,
    policy: PlacementPolicy | None = None,
    topology: Topology | None = None,
    chance: random.Random | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> AsyncIterator[RecoveryContext]:
    """Connections to the metadata and to the bookies, for the length of the block.

    For daemons and for the commands of operators alike. The marks are opened: the tree below
    `underreplication` exists from here on.
    """
    chance = chance or random.Random()
    failure: Exception | None = None
    async with open_metadata() as store:
        cluster = await open_cluster(store, uri)
        marks = UnderReplication(
            store,
            cluster.root,
            owner=bookie_id.rpartition(":")[0] or bookie_id,
            chance=chance,
            now_ms=now_ms,
            stores_mark_time=settings.auditor.stores_mark_time,
        )
        await marks.open()
        watcher = BookieWatcher(store, cluster.root)
        pool = Pool(
            lambda: watcher.bookies,
            network=secure_network(settings.security, network),
            chance=chance,
        )
        async with trio.open_nursery() as nursery:
            client = Environment(
                ledgers=Ledgers(store, cluster.root, cluster.layout, chance=chance),
                pool=pool,
                bookies=lambda: watcher.bookies,
                policy=policy or DefaultPolicy(),
                chance=chance,
                nursery=nursery,
                request_ids=itertools.count(1),
            )
            try:
                await nursery.start(watcher.run)
                await nursery.start(pool.run)
                nursery.start_soon(pool.follow, watcher)
                if topology is not None:
                    await nursery.start(topology.follow, client.bookies, watcher.wait_changed)
                yield RecoveryContext(
                    store=store,
                    cluster=cluster,
                    bookie_id=bookie_id,
                    client=client,
                    watcher=watcher,
                    cookies=Cookies(store, cluster.root),
                    marks=marks,
                    parking=Parking(store, cluster.root, chance=chance, now_ms=now_ms),
                    settings=settings,
                    registry=registry or Registry(),
                    now_ms=now_ms,
                )
            except Exception as error:  # raised below: the nursery would wrap it in a group
                failure = error
            finally:
                for handle in list(client.handles):
                    handle.on_client_closed()
                pool.close()
                nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


@asynccontextmanager
async def running_autorecovery(
    settings: ProcessSettings,
    *,
    bookie_id: BookieId | None = None,
    registry: Registry | None = None,
    network: Network | None = None,
    policy: PlacementPolicy | None = None,
) -> AsyncIterator[RecoveryContext]:
    """Auditor and worker run during the block, and leave their vote and locks behind orderly."""
    topology: Topology | None = None
    if policy is None:
        policy, topology = placement_of(settings.placement)
    async with (
        opened_context(
            settings.open_metadata,
            settings.metadata_uri,
            bookie_id=bookie_id or own_id(settings.process),
            settings=settings.recovery,
            registry=registry,
            network=network,
            policy=policy,
            topology=topology,
        ) as context,
        trio.open_nursery(strict_exception_groups=True) as nursery,
    ):
        if settings.process.runs_auditor:
            nursery.start_soon(Auditor(context).run)
        if settings.process.runs_worker:
            nursery.start_soon(run_worker, context)
        try:
            yield context
        finally:
            nursery.cancel_scope.cancel()


async def run_autorecovery(
    settings: ProcessSettings,
    stop: trio.Event,
    *,
    readiness: Readiness | None = None,
    registry: Registry | None = None,
    network: Network | None = None,
    policy: PlacementPolicy | None = None,
) -> None:
    """A process of its own: until `stop` is set."""
    registry = registry or Registry()
    async with (
        running_autorecovery(
            settings, registry=registry, network=network, policy=policy
        ) as context,
        background(partial(registry.rotate_forever, settings.latency_window_seconds)),
    ):
        (readiness or Readiness()).announce(
            "autorecovery",
            id=context.bookie_id,
            metadata=settings.metadata_uri,
            auditor=settings.process.runs_auditor,
            worker=settings.process.runs_worker,
        )
        await stop.wait()
        _log.info("stopping")


@asynccontextmanager
async def healing_bookie(
    settings: ProcessSettings,
    bookie: LimboBookie,
    *,
    registry: Registry,
    network: Network | None = None,
) -> AsyncIterator[None]:
    """For `dataIntegrityChecking`: if the bookie has lost data it is healed while it serves."""

    async def heal() -> None:
        while True:
            try:
                async with opened_context(
                    settings.open_metadata,
                    settings.metadata_uri,
                    bookie_id=bookie.bookie_id,
                    settings=settings.recovery,
                    registry=registry,
                    network=network,
                ) as context:
                    await heal_bookie(context, bookie)
                return
            except LedgerError as error:
                _log.warning("healing goes on later", seconds=_RESTART_SECONDS, error=error)
                await trio.sleep(_RESTART_SECONDS)

    if not bookie.needs_check:
        yield
        return
    async with background(heal):
        yield


@asynccontextmanager
async def beside_bookie(
    settings: ProcessSettings,
    *,
    bookie_id: BookieId,
    registry: Registry,
    network: Network | None = None,
    policy: PlacementPolicy | None = None,
) -> AsyncIterator[None]:
    """For `autoRecoveryDaemonEnabled`: runs as long as the bookie does.

    Entries that clients wait for come first: whatever happens to autorecovery here is logged, while
    the bookie goes on serving.
    """
    running = partial(
        running_autorecovery,
        settings,
        bookie_id=bookie_id,
        registry=registry,
        network=network,
        policy=policy,
    )
    async with background(partial(_run_beside, running)):
        yield


async def _run_beside(
    running: Callable[[], AbstractAsyncContextManager[RecoveryContext]],
) -> None:
    while True:
        has_begun = False
        try:
            async with running():
                has_begun = True
                await trio.sleep_forever()
        except Exception as error:
            if has_begun:
                _log.exception("autorecovery has stopped: restart the process", error)
                return
            _log.warning("autorecovery starts later", seconds=_RESTART_SECONDS, error=error)
            await trio.sleep(_RESTART_SECONDS)
