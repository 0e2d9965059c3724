"""A bookie as a service: start in the order of the text, serve, stop in reverse.

`run_bookie` composes it: metadata, identity, storage, connections, registration, garbage
collection. What stands above the bookie (admin paths, autorecovery in the same process, the check
that ends limbo) comes in as extensions: context managers around the time that the bookie serves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from random import Random

import trio

from bookie.bookie import Bookie
from bookie.collector import Collector
from bookie.collector_metadata import StoreMetadata
from bookie.config import BookieConfig
from bookie.identity import Identity, check_cookie, identify, listen_host
from bookie.last_session import LastSession
from bookie.lifetimes import (
    BookieSettings,
    BookieShell,
    Fatal,
    collect_when_idle,
    opened_storage,
    registered,
    served,
)
from bookie.mode import Mode, StatusFiles
from bookie.statistics import samples
from bookie.storage.start import Store
from bookie.storage_statistics import StorageMetrics
from metadata.cluster import Cluster, open_cluster
from metadata.cookie import Cookie
from metadata.cookies import Cookies
from metadata.ledgers import Ledgers
from metadata.measured import MeasuredStore
from metadata.registration import Registration
from metadata.service_info import ADD_BATCH_PROPERTY, bookie_service_info
from metadata.store import MetadataStore
from metadata.underreplication import UnderReplication
from runtime import logs
from runtime.loop_lag import LoopLag
from runtime.metrics import Registry, gauge
from runtime.service import Readiness, background
from runtime.sockets import Listener, Network
from wire.errors import LedgerError

_log = logs.get("bookie.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBookie:
    """What an extension is given."""

    settings: BookieSettings
    identity: Identity
    port: int
    cluster: Cluster
    bookie: Bookie
    store: Store
    metadata: MetadataStore
    registration: Registration
    mode: Mode
    collector: Collector
    loop_lag: LoopLag
    registry: Registry


Extension = Callable[[RunningBookie], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class HttpPlace:
    """Where this process serves HTTP, for others to be told. No host: the bookie's own."""

    host: str | None
    port: int
    tls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBookie:
    """A bookie whose store may have lost entries, before anybody can ask it for them."""

    identity: Identity
    cluster: Cluster
    store: Store
    metadata: MetadataStore
    chance: Random


#: Sees to it that nothing is denied that may have been lost. Only who has one may come back empty.
Preparation = Callable[[LostBookie], Awaitable[None]]


async def run_bookie(
    settings: BookieSettings,
    shell: BookieShell,
    stop: trio.Event,
    *,
    readiness: Readiness | None = None,
    registry: Registry | None = None,
    extensions: Sequence[Extension] = (),
    prepare: Preparation | None = None,
    http: HttpPlace | None = None,
) -> None:
    """Serve until `stop` is set, then leave in reverse order: unregister, drain, checkpoint.

    Being cancelled skips these courtesies. It counts as a crash and must be as safe as one. An
    error of the journal is such a crash, too: nothing is acknowledged after it.
    """
    fatal = Fatal()
    with fatal.scope:
        async with AsyncExitStack() as stack:
            running = await _start(
                settings, shell, stack, fatal, registry or Registry(), prepare, http
            )
            for extension in extensions:
                await stack.enter_async_context(extension(running))
            (readiness or Readiness()).announce(
                "bookie",
                id=running.identity.bookie_id,
                host=running.identity.listen_host,
                port=running.port,
                mode=running.mode.registered.value,
            )
            await stop.wait()
            _log.info("stopping", connections=len(running.bookie.connections))
    if fatal.error is not None:
        raise fatal.error


async def _start(
    settings: BookieSettings,
    shell: BookieShell,
    stack: AsyncExitStack,
    fatal: Fatal,
    registry: Registry,
    prepare: Preparation | None,
    http: HttpPlace | None,
) -> RunningBookie:
    config = settings.bookie
    opened = await stack.enter_async_context(shell.open_metadata())
    metadata = MeasuredStore(opened, registry, prefix="bookie_bookie_zk_")
    cluster = await open_cluster(metadata, settings.metadata_uri)
    listener = await _try_port(config, shell)
    port = listener.port if listener is not None else config.port
    identity = identify(config, port, shell.resolver)
    stamp = await _check_cookie(
        settings, shell, identity, cluster, metadata, allow_loss=prepare is not None
    )

    status = None
    if config.persist_status:
        directories = settings.storage.ledger_directories
        status = StatusFiles(shell.storage.files, directories, shell.storage.now_ms)
    mode = Mode(forced=config.read_only, status=status, damaged_runs_max=config.damaged_runs_max)
    bookie = _new_bookie(settings, shell, registry)
    if settings.security.certificates is not None and not settings.security.tls_required:
        _log.info("TLS is offered, and clients in clear are served, too: see quire_tlsRequired")
    store = await stack.enter_async_context(
        opened_storage(settings, shell, bookie, mode, fatal, has_lost=stamp is not None)
    )
    if store.has_forgotten:
        if prepare is None:
            # What only the lost part knew is not in limbo: it would be denied, and its fences gone.
            raise LedgerError(
                "entries may be lost here, and which ledgers that hit only the metadata can tell: "
                "start the bookie with `quire bookie` and dataIntegrityChecking=true"
            )
        await prepare(
            LostBookie(
                identity=identity,
                cluster=cluster,
                store=store,
                metadata=metadata,
                chance=shell.chance,
            )
        )
        store.remembered()
    if store.needs_integrity_check:
        _log.warning(
            "entries may be lost here: ledgers are in limbo until an integrity check has found "
            "what is missing; run it with `quire bookie` and dataIntegrityChecking=true"
        )
    if stamp is not None:
        stamp()
    registry.add_source(partial(samples, bookie))
    registry.add_source(
        lambda: [gauge("quire_needs_integrity_check", int(store.needs_integrity_check))]
    )
    loop_lag = LoopLag(registry.summary("quire_loop_lag_ms").success)
    collector = _new_collector(settings, shell, store, identity, cluster, metadata)
    StorageMetrics(registry, store.engine, collector)
    for task in (
        bookie.polls.run,
        loop_lag.run,
        partial(registry.rotate_forever, settings.latency_window_seconds),
        partial(collect_when_idle, bookie),
    ):
        await stack.enter_async_context(background(task))
    if listener is None:
        listener = await _listen(identity.listen_host, port, shell.network)
    await stack.enter_async_context(served(bookie, listener))
    info = bookie_service_info(
        host=identity.host,
        port=port,
        http=None if http is None else (http.host or identity.host, http.port),
        http_tls=http is not None and http.tls,
        properties={ADD_BATCH_PROPERTY: "1"},
    )
    registration = Registration(
        metadata, cluster.root, identity.bookie_id, info, chance=shell.chance
    )
    last_session = LastSession(
        shell.storage.files, settings.storage.ledger_directories[0], shell.storage.boot_id
    )
    await stack.enter_async_context(registered(registration, mode, metadata, last_session))
    await stack.enter_async_context(background(collector.run))
    return RunningBookie(
        settings=settings,
        identity=identity,
        port=port,
        cluster=cluster,
        bookie=bookie,
        store=store,
        metadata=metadata,
        registration=registration,
        mode=mode,
        collector=collector,
        loop_lag=loop_lag,
        registry=registry,
    )


def _new_bookie(settings: BookieSettings, shell: BookieShell, registry: Registry) -> Bookie:
    files, directories = shell.storage.files, settings.storage.ledger_directories
    return Bookie(
        settings.bookie.options(),
        registry,
        spaces=lambda: {path: files.space(path) for path in directories},
        clock=shell.storage.clock,
        now_ms=shell.storage.now_ms,
        security=settings.security,
    )


def _new_collector(
    settings: BookieSettings,
    shell: BookieShell,
    store: Store,
    identity: Identity,
    cluster: Cluster,
    metadata: MetadataStore,
) -> Collector:
    ledgers = Ledgers(metadata, cluster.root, cluster.layout, chance=shell.chance)
    locks = UnderReplication(
        metadata,
        cluster.root,
        owner=identity.host,
        chance=shell.chance,
        now_ms=shell.storage.now_ms,
    )
    return Collector(
        store.engine,
        StoreMetadata(ledgers, locks),
        bookie_id=identity.bookie_id,
        instance_id=cluster.instance_id,
        options=settings.upkeep.collector_options(),
        now_ms=shell.storage.now_ms,
    )


# ---------------------------------------------------------------------- identity and port


async def _try_port(config: BookieConfig, shell: BookieShell) -> Listener | None:
    """Listen at once if the port is to be a free one, which decides who we are.

    Otherwise only see whether the port can be had: until the journal is replayed, clients are
    better refused than kept waiting.
    """
    listener = await _listen(listen_host(config, shell.resolver), config.port, shell.network)
    if config.port == 0:
        return listener
    listener.close()
    return None


async def _listen(host: str, port: int, network: Network) -> Listener:
    try:
        return await network.listen(host, port)
    except OSError as error:
        raise LedgerError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; stop whoever has the "
            "port, or set another bookiePort"
        ) from error


async def _check_cookie(
    settings: BookieSettings,
    shell: BookieShell,
    identity: Identity,
    cluster: Cluster,
    metadata: MetadataStore,
    *,
    allow_loss: bool,
) -> Callable[[], None] | None:
    storage = settings.storage
    own = Cookie.of(
        bookie_id=identity.bookie_id,
        journal_dirs=storage.journals,
        ledger_dirs=storage.ledger_directories,
        instance_id=cluster.instance_id,
    )
    return await check_cookie(
        own,
        identity.former_ids,
        Cookies(metadata, cluster.root),
        shell.storage.files,
        (*storage.journals, *storage.ledger_directories),
        allow_expansion=storage.allow_expansion,
        allow_loss=allow_loss,
        on_new=lambda: _log.info("a new bookie", id=identity.bookie_id),
    )
