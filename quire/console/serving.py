"""The console as a whole: connections to the cluster, the feed, the page on its address."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from autorecovery.config import AuditorConfig, WorkerConfig
from autorecovery.context import RecoverySettings
from autorecovery.daemon import opened_context
from ledger_client import Security
from ledger_client.placement_config import PlacementConfig, placement_of
from metadata.store import MetadataStore
from metadata.uri import MetadataUri
from quire.console.app import Console, console_app
from quire.console.cluster_view import ClusterView
from quire.console.faults import FaultPanel
from quire.console.feed import Feed
from quire.console.ledger_view import LedgerView
from runtime.http import serving_http
from runtime.http_guard import own_names
from runtime.logs import Secret
from runtime.service import background
from wire.types import BookieId

HOST_DEFAULT: Final = "127.0.0.1"
PORT_DEFAULT: Final = 8780
#: Feeds never end by themselves; waiting for them would be waiting for nothing.
_GRACE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    uri: MetadataUri
    open_metadata: Callable[[], AbstractAsyncContextManager[MetadataStore]]
    host: str = HOST_DEFAULT
    port: int = PORT_DEFAULT
    token: Secret | None = None
    #: Reading needs the token, too.
    is_private: bool = False
    names: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    #: Towards bookies.
    security: Security = field(default_factory=Security)


@asynccontextmanager
async def running_console(
    settings: ConsoleSettings, panel: FaultPanel | None = None
) -> AsyncIterator[str]:
    """Served during the block, at the address that is yielded."""
    _, topology = placement_of(settings.placement)
    recovery = RecoverySettings(
        auditor=AuditorConfig(), worker=WorkerConfig(), security=settings.security
    )
    async with opened_context(
        settings.open_metadata,
        settings.uri,
        bookie_id=BookieId("console"),
        settings=recovery,
        topology=topology,
    ) as context:
        ledgers = LedgerView.of(context)
        feed = Feed(ClusterView(context, panel, topology), ledgers)
        console = Console(
            uri=str(settings.uri),
            instance_id=context.cluster.instance_id,
            feed=feed,
            ledgers=ledgers,
            panel=panel,
        )
        app = console_app(
            console,
            token=settings.token,
            names=own_names(*settings.names),
            is_private=settings.is_private,
        )
        async with (
            background(feed.run),
            serving_http(
                app,
                host=settings.host,
                port=settings.port,
                tls=settings.tls,
                grace_seconds=_GRACE_SECONDS,
            ) as url,
        ):
            yield f"{url}/"
