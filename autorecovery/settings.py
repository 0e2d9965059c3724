"""From the operator's file to the settings of an autorecovery process; and a check without it."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from autorecovery.config import AuditorConfig, RecoveryConfig, WorkerConfig
from autorecovery.context import RecoverySettings
from ledger_client.placement_config import PlacementConfig
from ledger_client.security import security_of
from metadata.access import access_of
from metadata.connect import open_store
from metadata.model import InvalidMetadataError, check_bookie_id
from metadata.store import MetadataStore
from metadata.uri import MetadataUri, parse_metadata_uri
from runtime.config import ConfigError, Settings
from runtime.shared_options import HttpConfig, LogConfig, MetadataConfig, StatsConfig
from wire.types import BookieId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Everything the file says about autorecovery."""

    process: RecoveryConfig
    recovery: RecoverySettings
    metadata: MetadataConfig
    metadata_uri: MetadataUri
    latency_window_seconds: float
    placement: PlacementConfig = field(default_factory=PlacementConfig)

    def open_metadata(self) -> AbstractAsyncContextManager[MetadataStore]:
        """A connection with a session of its own: locks and votes live and die with it."""
        metadata = self.metadata
        return open_store(
            self.metadata_uri,
            session_seconds=metadata.session_timeout_ms / 1000,
            access=access_of(metadata),
        )


def process_settings(settings: Settings) -> ProcessSettings:
    metadata = settings.build(MetadataConfig)
    return ProcessSettings(
        process=settings.build(RecoveryConfig),
        recovery=RecoverySettings(
            auditor=settings.build(AuditorConfig),
            worker=settings.build(WorkerConfig),
            security=security_of(settings, is_daemon=True),
        ),
        metadata=metadata,
        metadata_uri=parse_metadata_uri(metadata.uri()),
        latency_window_seconds=float(settings.build(StatsConfig).latency_window_seconds),
        placement=settings.build(PlacementConfig),
    )


def own_id(config: RecoveryConfig) -> BookieId:
    """The name we vote and lock under: what a bookie with the same file would be called."""
    if config.bookie_id is not None:
        name = config.bookie_id
    else:
        host = config.advertised_address or _own_host(config.use_host_name)
        name = f"{host}:{config.port}"
    try:
        return check_bookie_id(name)
    except InvalidMetadataError as error:
        raise ConfigError(f"{error}; set bookieId") from None


def _own_host(use_name: bool) -> str:
    name = socket.getfqdn()
    if use_name:
        return name
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise ConfigError(
            f"the host name {name} has no address ({error}): set bookieId or advertisedAddress"
        ) from None


def refuse_company(settings: Settings) -> None:
    """A bare process serves no pages; whoever wants them should know where they are."""
    for key, wanted in (
        ("httpServerEnabled", settings.build(HttpConfig).enabled),
        ("statsProviderClass", settings.build(StatsConfig).enabled),
    ):
        if wanted:
            raise ConfigError(
                f"{settings.source}: {key} asks for more than a bare autorecovery runs: start it "
                "with `quire autorecovery`, or unset the key"
            )


def finish(settings: Settings) -> list[str]:
    """Refuse keys that nobody knows; the others that have no effect, one line each."""
    settings.build(LogConfig)
    return settings.finish(HttpConfig, StatsConfig)


def check_settings(settings: ProcessSettings) -> Iterable[str]:
    """What a start would do, without starting."""
    yield f"autorecovery as {own_id(settings.process)}"
    yield f"metadata at {settings.metadata_uri}"
    process, auditor = settings.process, settings.recovery.auditor
    if not process.runs_auditor and not process.runs_worker:
        raise ConfigError(
            "quire_auditorEnabled and quire_replicationWorkerEnabled are both false: nothing would "
            "run"
        )
    if process.runs_auditor:
        for name, seconds in (
            ("bookie check", auditor.bookie_check_seconds),
            ("full check of ledgers", auditor.ledger_check_seconds),
            ("placement check", auditor.placement_check_seconds),
            ("replicas check", auditor.replicas_check_seconds),
        ):
            yield f"{name}: {f'every {seconds} s' if seconds else 'never'}"
