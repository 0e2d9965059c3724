"""A cluster on this machine: a ZooKeeper, some bookies, and what is asked for beside them.

`run_cluster` starts it, says so, and stops everything when it is told to stop. Data stays in the
folder, and the next start goes on with it. What runs beside ZooKeeper is one table of programs
(`_programs`): to add one is to add a row.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from metadata.cluster import ClusterNotInitialisedError, init_new_cluster, open_cluster
from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from quire.cluster_folder import (
    ClusterFolder,
    ClusterFolderError,
    ClusterRecord,
    Plan,
    RunningBookie,
)
from quire.fleet import Fleet, running_fleet
from quire.local_console import local_console, packet_cut
from quire.processes import Child, ProcessError, Program
from runtime.config import Settings
from runtime.local_zookeeper import LocalZookeeper, free_port, running_zookeeper
from runtime.shared_options import HttpConfig
from wire.types import BookieId

BOOKIES_DEFAULT: Final = 3
BOOKIES_MAX: Final = 32
_HOST: Final = "127.0.0.1"
_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the operator asked for. None: whatever the folder has, or the default."""

    bookies: int | None = None
    zookeeper: str | None = None
    autorecovery: bool = False
    console: bool = False
    console_port: int | None = None


async def run_cluster(
    folder: ClusterFolder,
    wish: Wish,
    stop: trio.Event,
    *,
    on_ready: Callable[[ClusterRecord], None],
    on_news: Callable[[str], None],
) -> None:
    """Run until `stop` is set, also while starting; then end everything, bookies first.

    A program that ends by itself is news and no more: a cluster survives the loss of a bookie,
    and seeing that is what a local one is for. Without its ZooKeeper it is none, which is an error.
    """
    with folder.claimed():
        _refuse_leftovers(folder)
        folder.remove_record()
        plan = make_plan(folder, wish)
        packet_cut(folder).mend_all()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when, stop, nursery.cancel_scope)
            async with AsyncExitStack() as stack:
                if plan.is_embedded:
                    server = await stack.enter_async_context(_zookeeper(folder, plan))
                    nursery.start_soon(_watch_zookeeper, server)
                await _ensure_cluster(plan)
                programs = _programs(folder, plan, wish)
                fleet = await stack.enter_async_context(running_fleet(programs, nursery, on_news))
                console = None
                if wish.console:
                    console = await stack.enter_async_context(
                        local_console(
                            folder,
                            plan,
                            fleet,
                            _bookies(plan, fleet),
                            port=wish.console_port,
                            nursery=nursery,
                            on_restart=lambda: folder.write_record(_record(plan, fleet, console)),
                        )
                    )
                record = _record(plan, fleet, console)
                folder.write_record(record)
                stack.callback(folder.remove_record)
                on_ready(record)
                await trio.sleep_forever()


async def _cancel_when(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


# ---------------------------------------------------------------------- what it consists of


def make_plan(folder: ClusterFolder, wish: Wish) -> Plan:
    """The plan of the folder, grown to what is asked for; a new one in a new folder."""
    found = folder.read_plan()
    if found is None:
        _refuse_foreign(folder.path)
        address = wish.zookeeper or f"{_HOST}:{free_port()}"
        found = Plan(zookeeper=address, is_embedded=wish.zookeeper is None, bookie_ports=())
        count = wish.bookies or BOOKIES_DEFAULT
    else:
        count = wish.bookies or len(found.bookie_ports)
    if wish.zookeeper is not None and (found.is_embedded or wish.zookeeper != found.zookeeper):
        own = "its own ZooKeeper" if found.is_embedded else f"the ZooKeeper {found.zookeeper}"
        raise ClusterFolderError(
            f"{folder.path} was made with {own}: leave --zk out, or name another folder with --dir"
        )
    existing = len(found.bookie_ports)
    if count < existing:
        raise ClusterFolderError(
            f"{folder.path} has {existing} bookies, and its ledgers may need all of them: "
            f"leave --bookies out, or give at least {existing}"
        )
    parse_metadata_uri(found.uri)
    ports = list(found.bookie_ports)
    taken = _ports_of(folder, found)
    while len(ports) < count:
        ports.append(_fresh_port(taken))
    plan = Plan(zookeeper=found.zookeeper, is_embedded=found.is_embedded, bookie_ports=tuple(ports))
    folder.write_plan(plan)
    for number, port in enumerate(ports, start=1):
        place = _bookie_folder(folder, number)
        text = _BOOKIE_CONF.format(
            uri=plan.uri, folder=place, port=port, host=_HOST, http_port=_fresh_port(taken)
        )
        _write_once(place / "bk_server.conf", text)
    return plan


def _ports_of(folder: ClusterFolder, plan: Plan) -> set[int]:
    """Ports that belong to programs of the folder, whether or not they run."""
    found = {*plan.bookie_ports}
    found |= {int(port) for port in re.findall(r":(\d+)(?:$|[,/])", plan.zookeeper)}
    for path in folder.path.glob("*/*.conf"):
        found |= {int(port) for port in re.findall(r"(?m)^httpServerPort=(\d+)$", path.read_text())}
    return found


def _fresh_port(taken: set[int]) -> int:
    """One that is free and nobody's, and is taken from now on."""
    while (port := free_port()) in taken:
        pass
    taken.add(port)
    return port


def _refuse_foreign(path: Path) -> None:
    own = ("lock", "up.log")
    strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in own)
    if strangers:
        raise ClusterFolderError(
            f"{path} is not empty and no folder of a cluster (it has {strangers[0]!r}): "
            "name a new folder with --dir"
        )


def _refuse_leftovers(folder: ClusterFolder) -> None:
    pids = folder.leftover_pids()
    if pids:
        raise ClusterFolderError(
            f"{folder.path}: processes of an earlier run may still be there "
            f"({', '.join(map(str, pids))}): wait a moment, and look at them if they stay"
        )


def _bookie_folder(folder: ClusterFolder, number: int) -> Path:
    return folder.path.absolute() / f"bookie-{number}"


def _write_once(path: Path, text: str) -> None:
    """What the operator changes in it afterwards counts."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


_BOOKIE_CONF: Final = """\
# A bookie of a local cluster, written once by `quire up`; changes are kept.
metadataServiceUri={uri}
journalDirectories={folder}/journal
ledgerDirectories={folder}/ledgers
bookiePort={port}
advertisedAddress={host}
allowLoopback=true

# A small footprint.
journalMaxSizeMB=32
journalMaxBackups=1
quire_reserveMb=64
dbStorage_writeCacheMaxSizeMb=64
dbStorage_readAheadCacheMaxSizeMb=16

# The disks of laptops are fuller than those of servers.
diskUsageWarnThreshold=0.97
diskUsageLwmThreshold=0.97
diskUsageThreshold=0.99
minUsableSizeForHighPriorityWrites=67108864

# A bookie that was killed is forgotten soon.
zkTimeout=4000

# Admin paths and metrics: docs/http.md.
httpServerEnabled=true
httpServerPort={http_port}
statsProviderClass=org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider
"""

_AUTORECOVERY_CONF: Final = """\
# Autorecovery of a local cluster, written once by `quire up`; changes are kept.
metadataServiceUri={uri}
bookieId=autorecovery
zkTimeout=4000
httpServerEnabled=true
httpServerPort={http_port}
statsProviderClass=org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider
"""


def _programs(folder: ClusterFolder, plan: Plan, wish: Wish) -> list[Program]:
    """The table: every process of the cluster beside ZooKeeper, in the order of starting."""
    rows = []
    for number in range(1, len(plan.bookie_ports) + 1):
        place = _bookie_folder(folder, number)
        conf = str(place / "bk_server.conf")
        rows.append(
            Program(
                name=f"bookie-{number}",
                folder=place,
                module="quire",
                arguments=("bookie", "--conf", conf),
            )
        )
    if wish.autorecovery:
        place = folder.path.absolute() / "autorecovery"
        path = place / "autorecovery.conf"
        port = _fresh_port(_ports_of(folder, plan))
        _write_once(path, _AUTORECOVERY_CONF.format(uri=plan.uri, http_port=port))
        rows.append(
            Program(
                name="autorecovery",
                folder=place,
                module="quire",
                arguments=("autorecovery", "--conf", str(path)),
            )
        )
    return rows


def _http_of(place: Path) -> str | None:
    """Where a bookie serves its admin paths, as its configuration has it."""
    http = Settings.read(str(place / "bk_server.conf")).build(HttpConfig)
    if not http.enabled or not http.port:
        return None
    return f"http{'s' if http.tls else ''}://{http.host}:{http.port}"


def _bookies(plan: Plan, fleet: Fleet) -> dict[BookieId, Child]:
    ports = zip(plan.bookie_ports, fleet.children, strict=False)  # bookies are the first rows
    return {BookieId(f"{_HOST}:{port}"): child for port, child in ports}


def _record(plan: Plan, fleet: Fleet, console: str | None) -> ClusterRecord:
    return ClusterRecord(
        uri=plan.uri,
        zookeeper=plan.zookeeper.partition("/")[0],
        bookies=tuple(
            RunningBookie(
                id=bookie_id,
                pid=child.pid,
                dir=str(child.program.folder),
                http=_http_of(child.program.folder),
            )
            for bookie_id, child in _bookies(plan, fleet).items()
        ),
        console=console,
    )


# ---------------------------------------------------------------------- running it


@asynccontextmanager
async def _zookeeper(folder: ClusterFolder, plan: Plan) -> AsyncIterator[LocalZookeeper]:
    port = int(plan.zookeeper.rpartition(":")[2])
    async with running_zookeeper(LocalZookeeper(folder.path / "zookeeper", port=port)) as server:
        yield server


async def _watch_zookeeper(server: LocalZookeeper) -> None:
    while server.is_running:  # noqa: ASYNC110 - a process ends without setting events
        await trio.sleep(_LOOK_SECONDS)
    raise ProcessError(f"ZooKeeper on {server.address} ended: see {server.log_path}")


async def _ensure_cluster(plan: Plan) -> None:
    uri = parse_metadata_uri(plan.uri)
    async with open_store(uri) as store:
        try:
            await open_cluster(store, uri)
        except ClusterNotInitialisedError:
            await init_new_cluster(store, uri, chance=random.Random())
