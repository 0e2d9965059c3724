"""The admin paths of a process: BookKeeper's, in front of everything that runs here.

    async with serving_pages(host, page_settings(settings)) as place:
        await run_bookie(..., extensions=[host.beside], http=place)

They are there before the bookie is, so that a probe can tell a long start from a dead process, and
until it has stopped. `docs/http.md` shows each of them with an example.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bookie.server import HttpPlace
from quire.admin_bookie import bookie_pages
from quire.admin_cluster import cluster_pages
from quire.admin_garbage import garbage_pages
from quire.admin_host import AdminHost
from quire.admin_http import AdminApp
from quire.admin_ledgers import ledger_pages
from quire.admin_process import HEARTBEAT, METRICS, metrics_page, process_pages
from quire.admin_recovery import recovery_pages
from runtime import logs
from runtime.config import Settings
from runtime.http import server_tls, serving_http
from runtime.http_guard import Guard, Guarded, own_names, read_token
from runtime.shared_options import HttpConfig, StatsConfig

if TYPE_CHECKING:
    from quire.admin_http import Page
    from runtime.logs import Secret

#: Probes and scrapers come under any name, and find nothing secret.
OPEN_PATHS = frozenset({HEARTBEAT, METRICS, "/api/v1/bookie/is_ready"})

_log = logs.get("quire.admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """What the operator decided, with the files that it names read and understood."""

    http: HttpConfig
    stats: StatsConfig
    token: Secret | None
    tls: ssl.SSLContext | None

    @property
    def is_wanted(self) -> bool:
        return self.http.enabled or (self.stats.enabled and self.stats.own_server)


def page_settings(settings: Settings) -> PageSettings:
    http = settings.build(HttpConfig)
    token, tls = None, None
    if http.enabled and http.token_file is not None:
        token = read_token(http.token_file)
    if http.enabled and http.certificate_file is not None and http.key_file is not None:
        tls = server_tls(http.certificate_file, http.key_file)
    return PageSettings(http=http, stats=settings.build(StatsConfig), token=token, tls=tls)


@asynccontextmanager
async def serving_pages(host: AdminHost, wanted: PageSettings) -> AsyncIterator[HttpPlace | None]:
    """Serve during the block; where others find the admin paths, if these are served."""
    http, stats = wanted.http, wanted.stats
    async with host.opened():
        if http.enabled:
            app = Guarded(AdminApp(all_pages(host)), guard_of(wanted))
            async with serving_http(app, host=http.host, port=http.port, tls=wanted.tls) as url:
                _log.info("admin paths", url=url, token=wanted.token is not None)
                yield _place(http, url)
        else:
            app = Guarded(AdminApp(metrics_page(host)), Guard(open_paths=OPEN_PATHS))
            async with serving_http(app, host=stats.host, port=stats.port) as url:
                _log.info("metrics", url=url + METRICS)
                yield None


def all_pages(host: AdminHost) -> dict[str, Page]:
    return {
        **process_pages(host),
        **ledger_pages(host),
        **bookie_pages(host),
        **garbage_pages(host),
        **cluster_pages(host),
        **recovery_pages(host),
    }


def guard_of(wanted: PageSettings) -> Guard:
    names = own_names(wanted.http.host, *wanted.http.names)
    return Guard(token=wanted.token, names=names, open_paths=OPEN_PATHS)


def _place(http: HttpConfig, url: str) -> HttpPlace:
    port = urlsplit(url).port
    assert port is not None
    return HttpPlace(None if _is_wildcard(http.host) else http.host, port, http.tls)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
