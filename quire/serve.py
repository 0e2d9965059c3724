"""`quire bookie`, `quire autorecovery`, `quire zookeeper`: servers in the foreground.

`quire bookie` is the composition root: beside the bare bookie it runs what stands above it, each
as an extension of `run_bookie`. All of them may read the same file, as with BookKeeper: what is
meant for another of them is known here, and left to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from autorecovery.config import AuditorConfig, RecoveryConfig, WorkerConfig
from bookie import settings as bookie_files
from bookie.config import BookieConfig, CompositionConfig
from bookie.identity import Resolver
from bookie.security_config import AuthenticationConfig
from bookie.server import Extension, HttpPlace, Preparation, RunningBookie, run_bookie
from bookie.storage_config import StorageConfig, UpkeepConfig
from quire.output import say, show_json
from runtime import logs
from runtime.config import Settings
from runtime.local_zookeeper import LocalZookeeper, running_zookeeper
from runtime.metrics import Registry
from runtime.process import tune_for_serving, yield_processors
from runtime.service import Readiness, run_service
from runtime.shared_options import HttpConfig, LogConfig, StatsConfig
from runtime.tls_config import SaslConfig, TlsConfig

_log = logs.get("quire.serve")

#: Every option that one of our servers has.
_KNOWN: Final = (
    *(BookieConfig, StorageConfig, UpkeepConfig, CompositionConfig),
    *(RecoveryConfig, AuditorConfig, WorkerConfig),
    *(HttpConfig, StatsConfig, LogConfig),
    *(AuthenticationConfig, TlsConfig, SaslConfig),
)

conf_option = click.option(
    "--conf",
    metavar="FILE",
    help="Configuration, as BookKeeper has it. A variable BK_<key> overrides a key.",
)
ready_option = click.option(
    "--ready-fd", type=int, metavar="N", help="Write READY to this descriptor once serving."
)


@click.command(epilog="Example: quire bookie --conf conf/bk_server.conf")
@conf_option
@click.option(
    "--check",
    is_flag=True,
    help="Look at the configuration and the directories, and do not start.",
)
@ready_option
def bookie(conf: str | None, check: bool, ready_fd: int | None) -> int:
    """Run a bookie until SIGTERM.

    Exit codes are those of Apache's bookie: 1 for a wrong configuration, 2 for a failure.
    """
    return run_service(partial(_bookie, conf, check, ready_fd), name="bookie")


async def _bookie(conf: str | None, check: bool, ready_fd: int | None, stop: trio.Event) -> None:
    read = Settings.read(conf)
    log = read.build(LogConfig)
    logs.configure(log.level, "json" if log.format == "json" else "text")
    settings, metadata = bookie_files.bookie_settings(read)
    extensions, prepare = _extensions(read), _preparation(read)
    pages = _pages(read, is_bookie=True)
    _finish(read)
    if check:
        _say_fine(bookie_files.check_settings(settings, Resolver()))
        return
    # What is here by the time the bookie is ready stays; the collector need not look at it.
    readiness = Readiness(descriptor=ready_fd, callback=tune_for_serving)
    async with pages.served() as http:
        await run_bookie(
            settings,
            bookie_files.real_shell(settings, metadata),
            stop,
            readiness=readiness,
            registry=pages.registry,
            extensions=[*extensions, *pages.extensions],
            prepare=prepare,
            http=http,
        )


def _preparation(settings: Settings) -> Preparation | None:
    if not settings.build(CompositionConfig).integrity_check:
        return None
    from quire.limbo import remember_ledgers

    return remember_ledgers


def _extensions(settings: Settings) -> list[Extension]:
    """What the configuration asks for beside the bookie."""
    above = settings.build(CompositionConfig)
    extensions = [_autorecovery_beside(settings)] if above.autorecovery else []
    if above.integrity_check:
        extensions.append(_integrity_beside(settings))
    return extensions


def _integrity_beside(settings: Settings) -> Extension:
    from autorecovery.daemon import healing_bookie
    from autorecovery.settings import process_settings
    from quire.limbo import RunningLimbo

    process = process_settings(settings)

    @asynccontextmanager
    async def extension(running: RunningBookie) -> AsyncIterator[None]:
        limbo = await RunningLimbo.of(running)
        async with healing_bookie(process, limbo, registry=running.registry):
            yield

    return extension


def _autorecovery_beside(settings: Settings) -> Extension:
    # Here, because a bookie without it would load the whole ledger client for nothing.
    from autorecovery.daemon import beside_bookie
    from autorecovery.settings import process_settings

    process = process_settings(settings)

    @asynccontextmanager
    async def extension(running: RunningBookie) -> AsyncIterator[None]:
        async with beside_bookie(
            process, bookie_id=running.identity.bookie_id, registry=running.registry
        ):
            yield

    return extension


class _Pages:
    """Admin paths and metrics over HTTP; none, if neither is asked for."""

    def __init__(
        self,
        registry: Registry,
        served: Callable[[], AbstractAsyncContextManager[HttpPlace | None]] = nullcontext,
        extensions: Sequence[Extension] = (),
    ) -> None:
        self.registry = registry
        self.served = served
        self.extensions = extensions


def _pages(settings: Settings, *, is_bookie: bool) -> _Pages:
    registry = Registry()
    stats = settings.build(StatsConfig)
    if not settings.build(HttpConfig).enabled and not (stats.enabled and stats.own_server):
        return _Pages(registry)
    # Here, because they bring the ledger client and an HTTP server into the process.
    from autorecovery.settings import process_settings
    from quire.admin import page_settings, serving_pages
    from quire.admin_host import AdminHost

    wanted = page_settings(settings)
    host = AdminHost(settings, process_settings(settings), registry, is_bookie=is_bookie)
    return _Pages(registry, partial(serving_pages, host, wanted), [host.beside])


def _finish(settings: Settings) -> None:
    for line in settings.finish(*_KNOWN):
        _log.warning("unused setting", line=line)


def _say_fine(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)
    say("the configuration is fine")


# ---------------------------------------------------------------------- autorecovery


@click.command(epilog="Example: quire autorecovery --conf conf/bk_server.conf")
@conf_option
@click.option("--check", is_flag=True, help="Look at the configuration, and do not start.")
@ready_option
def autorecovery(conf: str | None, check: bool, ready_fd: int | None) -> int:
    """Find ledgers that lack copies, and restore them, until SIGTERM.

    Run as many of these as you like: one of them audits, all of them copy. A bookie's configuration
    may be used.
    """
    return run_service(partial(_autorecovery, conf, check, ready_fd), name="autorecovery")


async def _autorecovery(
    conf: str | None, check: bool, ready_fd: int | None, stop: trio.Event
) -> None:
    from autorecovery.daemon import run_autorecovery
    from autorecovery.settings import check_settings, process_settings

    read = Settings.read(conf)
    log = read.build(LogConfig)
    logs.configure(log.level, "json" if log.format == "json" else "text")
    settings = process_settings(read)
    pages = _pages(read, is_bookie=False)
    _finish(read)
    lines = list(check_settings(settings))
    if check:
        _say_fine(lines)
        return
    yield_processors(settings.process.niceness)
    async with pages.served():
        readiness = Readiness(descriptor=ready_fd)
        await run_autorecovery(settings, stop, readiness=readiness, registry=pages.registry)


# ---------------------------------------------------------------------- zookeeper


@click.command(epilog="Example: quire zookeeper --dir zk --port 2181")
@click.option(
    "--dir",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it keeps its data, configuration and log.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=2181, show_default=True)
@ready_option
def zookeeper(folder: Path, port: int, ready_fd: int | None) -> int:
    """Run a single ZooKeeper on the loopback interface until SIGTERM.

    For one machine. A cluster that matters has an ensemble of its own.
    """
    return run_service(partial(_zookeeper, folder, port, ready_fd), name="quire zookeeper")


async def _zookeeper(folder: Path, port: int, ready_fd: int | None, stop: trio.Event) -> None:
    logs.configure("warning")
    async with running_zookeeper(LocalZookeeper(folder, port=port)) as server:
        show_json({"zookeeper": server.address, "dir": str(folder), "pid": server.pid})
        Readiness(descriptor=ready_fd).announce("zookeeper", port=port)
        await stop.wait()
