"""From the operator's file to a bookie's settings and its shell; and a check without starting."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from functools import partial

from bookie.config import BookieConfig, CompositionConfig
from bookie.identity import Resolver, identify, local_cookies
from bookie.lifetimes import BookieSettings, BookieShell
from bookie.security_config import read_security
from bookie.storage.index import open_index
from bookie.storage.start import Shell
from bookie.storage_config import StorageConfig, UpkeepConfig
from metadata.access import access_of
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from runtime.config import ConfigError, Settings
from runtime.files import OSFileSystem
from runtime.process import boot_id
from runtime.shared_options import HttpConfig, LogConfig, MetadataConfig, StatsConfig
from runtime.sockets import KeepAlive, SocketNetwork
from runtime.workers import ThreadWorkers


def bookie_settings(settings: Settings) -> tuple[BookieSettings, MetadataConfig]:
    """What the file says about the bookie itself."""
    metadata = settings.build(MetadataConfig)
    stats = settings.build(StatsConfig)
    found = BookieSettings(
        bookie=settings.build(BookieConfig),
        storage=settings.build(StorageConfig),
        upkeep=settings.build(UpkeepConfig),
        metadata_uri=parse_metadata_uri(metadata.uri()),
        latency_window_seconds=float(stats.latency_window_seconds),
        security=read_security(settings),
    )
    # Thresholds that contradict each other are found here, before anything is opened.
    found.upkeep.garbage_options()
    found.upkeep.disk_options()
    return found, metadata


def refuse_company(settings: Settings) -> None:
    """A bare bookie runs nothing beside itself; whoever wants that should know where it is."""
    above = settings.build(CompositionConfig)
    for key, wanted in (
        ("autoRecoveryDaemonEnabled", above.autorecovery),
        ("dataIntegrityChecking", above.integrity_check),
        ("httpServerEnabled", settings.build(HttpConfig).enabled),
        ("statsProviderClass", settings.build(StatsConfig).enabled),
    ):
        if wanted:
            raise ConfigError(
                f"{settings.source}: {key} asks for more than a bare bookie runs: start it with "
                "`quire bookie`, or unset the key"
            )


def real_shell(settings: BookieSettings, metadata: MetadataConfig) -> BookieShell:
    """The operating system, its network, and ZooKeeper."""
    storage = Shell(
        files=OSFileSystem(),
        open_index=partial(open_index, options=settings.storage.index_options()),
        workers=ThreadWorkers(),
        boot_id=boot_id(),
    )
    return BookieShell(
        storage=storage,
        network=SocketNetwork(_keep_alive(settings.bookie)),
        open_metadata=partial(
            open_store,
            settings.metadata_uri,
            session_seconds=metadata.session_timeout_ms / 1000,
            access=access_of(metadata),
        ),
        chance=random.Random(),
        resolver=Resolver(),
    )


def check_settings(settings: BookieSettings, resolver: Resolver) -> Iterable[str]:
    """Look at the configuration and the directories without changing anything; what was found."""
    storage = settings.storage
    identity = identify(settings.bookie, settings.bookie.port, resolver)
    yield f"bookie {identity.bookie_id}, listening on {identity.listen_host}"
    yield f"metadata at {settings.metadata_uri}"
    directories = (*storage.journals, *storage.ledger_directories)
    for path in directories:
        _check_directory(path)
    cookies = local_cookies(OSFileSystem(), directories)
    for path in directories:
        cookie = cookies.get(path)
        yield f"{path}: {'not used yet' if cookie is None else cookie}"
        if cookie is not None and cookie.bookie_id != identity.bookie_id:
            raise ConfigError(
                f"{path} belongs to bookie {cookie.bookie_id}, and this would be "
                f"{identity.bookie_id}: correct bookieId or the address, or the directories"
            )


def _check_directory(path: str) -> None:
    if os.path.lexists(path):
        if not os.path.isdir(path):
            raise ConfigError(f"{path} is no directory; name one for the bookie alone")
        place = path
    else:  # it will be made
        place = os.path.dirname(os.path.abspath(path))
        while not os.path.lexists(place):
            place = os.path.dirname(place)
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"{place} cannot be written by this user; change its owner or its mode")


def finish(settings: Settings) -> list[str]:
    """Refuse keys that nobody knows; the others that have no effect, one line each."""
    settings.build(LogConfig)
    return settings.finish(HttpConfig, StatsConfig, CompositionConfig)


def _keep_alive(config: BookieConfig) -> KeepAlive:
    return KeepAlive(config.keep_idle_seconds, config.keep_interval_seconds, config.keep_probes)
