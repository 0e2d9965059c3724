"""`quire bookie`, `quire zookeeper`: servers in the foreground, for real deployments.

`quire bookie` is the composition root: beside the bare bookie it runs what stands above it, each
as an extension of `run_bookie`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
import trio

from bookie.config import CompositionConfig
from bookie.identity import Resolver
from bookie.server import Extension, run_bookie
from bookie.settings import bookie_settings, check_settings, finish, real_shell
from quire.output import say, show_json
from runtime import logs
from runtime.config import ConfigError, Settings
from runtime.local_zookeeper import LocalZookeeper, running_zookeeper
from runtime.process import tune_for_serving
from runtime.service import Readiness, run_service
from runtime.shared_options import HttpConfig, LogConfig, StatsConfig

_log = logs.get("quire.serve")

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
    settings, metadata = bookie_settings(read)
    extensions = _extensions(read)
    for line in finish(read):
        _log.warning("unused setting", line=line)
    if check:
        for line in check_settings(settings, Resolver()):
            say(line)
        say("the configuration is fine")
        return
    # What is here by the time the bookie is ready stays; the collector need not look at it.
    readiness = Readiness(descriptor=ready_fd, callback=tune_for_serving)
    await run_bookie(
        settings,
        real_shell(settings, metadata),
        stop,
        readiness=readiness,
        extensions=extensions,
    )


def _extensions(settings: Settings) -> list[Extension]:
    """What the configuration asks for beside the bookie. What is not there yet is refused."""
    above = settings.build(CompositionConfig)
    http = settings.build(HttpConfig)
    stats = settings.build(StatsConfig)
    for key, wanted in (
        ("autoRecoveryDaemonEnabled", above.autorecovery),
        ("dataIntegrityChecking", above.integrity_check),
        ("httpServerEnabled", http.enabled),
        ("statsProviderClass", stats.enabled),
    ):
        if wanted:
            raise ConfigError(f"{settings.source}: {key} is not offered yet: unset the key")
    return []


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
