"""Verbs of the shell on a cluster as a whole."""

from __future__ import annotations

import json
import random
import time

import click

from ledger_client.bookie_info import BookieSpace
from metadata.cluster import (
    Cluster,
    ClusterExistsError,
    ClusterRefusedError,
    format_cluster,
    init_new_cluster,
    nuke_cluster,
    open_cluster,
)
from metadata.cookies import Cookies
from metadata.discovery import Bookies, read_bookies
from metadata.model import check_bookie_id
from metadata.underreplication import UnderReplication
from quire.access import Target, run, target_options, yes_option
from quire.cluster_info import overview, size_text
from quire.output import confirm, say, show_json
from quire.shell_lines import line
from wire.errors import LedgerError
from wire.types import BookieId


@click.command(epilog="Example: quire shell -conf bk_server.conf metaformat -n -f")
@click.option("-n", "--nonInteractive", "no_question", is_flag=True, help="Do not ask.")
@click.option("-f", "--force", is_flag=True, help="With -n: format what exists, without asking.")
@yes_option
@target_options
def metaformat(target: Target, no_question: bool, force: bool, yes: bool) -> None:
    """Forget all ledgers and cookies of a cluster, or make a new one."""
    existing = run(_root_exists, target)
    if existing and not (no_question and force):
        if no_question:
            raise ClusterRefusedError(
                f"{target.metadata_uri()} exists, nothing was changed: give -f to format it"
            )
        confirm(f"Forget every ledger of {target.metadata_uri()}? This cannot be undone.", yes=yes)
    _say_made(target, run(_format, target), "formatted")


async def _root_exists(target: Target) -> bool:
    async with target.store() as (store, uri):
        return await store.exists(uri.root) is not None


async def _format(target: Target) -> Cluster:
    async with target.store() as (store, uri):
        return await format_cluster(store, uri, confirmed=True, chance=random.Random())


@click.command(epilog="Example: quire shell --uri zk://127.0.0.1:2181/ledgers initnewcluster")
@click.option("--if-missing", is_flag=True, help="A cluster that is there already is fine.")
@target_options
def initnewcluster(target: Target, if_missing: bool) -> None:
    """Make the metadata of a new cluster."""

    async def job() -> tuple[Cluster, str]:
        async with target.store() as (store, uri):
            try:
                made = await init_new_cluster(store, uri, chance=random.Random())
            except ClusterExistsError:
                if not if_missing:
                    raise
                return await open_cluster(store, uri), "was there already"
            return made, "initialised"

    _say_made(target, *run(job))


def _say_made(target: Target, cluster: Cluster, how: str) -> None:
    if target.as_json:
        show_json({"root": cluster.root, "instanceId": cluster.instance_id, "done": how})
    else:
        line(f"Cluster {how}", instanceId=cluster.instance_id, uri=target.metadata_uri())


@click.command(
    epilog="Example: quire shell -conf bk_server.conf nukeexistingcluster -p /ledgers -i ID"
)
@click.option("-p", "--zkledgersrootpath", "root", required=True, help="The cluster's root.")
@click.option("-i", "--instanceid", help="Its instance id, to be sure.")
@click.option("-f", "--force", is_flag=True, help="Neither ask nor compare the instance id.")
@yes_option
@target_options
def nukeexistingcluster(
    target: Target, root: str, instanceid: str | None, force: bool, yes: bool
) -> None:
    """Remove the metadata of a cluster altogether. All bookies must be stopped."""
    confirm(f"Remove the cluster {target.metadata_uri()}? This cannot be undone.", yes=yes or force)

    async def job() -> bool:
        async with target.store() as (store, uri):
            return await nuke_cluster(store, uri, root=root, instance_id=instanceid, force=force)

    removed = run(job)
    if target.as_json:
        show_json({"root": root, "removed": removed})
    else:
        say(f"{root} is removed" if removed else f"there is no {root}, nothing to remove")


# ---------------------------------------------------------------------- bookies


@click.command(
    epilog="Example: quire shell listbookies -rw",
    context_settings={"help_option_names": ["--help"]},
)
@click.option("-rw", "--readwrite", "kind", flag_value="rw", help="Writable bookies.")
@click.option("-ro", "--readonly", "kind", flag_value="ro", help="Read-only bookies.")
@click.option("-a", "--all", "kind", flag_value="all", help="All bookies that have a cookie.")
@click.option("-h", "--hostnames", is_flag=True, help="Accepted; host names are always shown.")
@target_options
def listbookies(target: Target, kind: str | None, hostnames: bool) -> None:
    """Name the bookies that are in one state."""
    if kind is None:
        raise click.UsageError("one of -rw, -ro and -a is needed")
    registered, known = run(bookies_of, target)
    wanted = {"rw": registered.writable, "ro": registered.read_only, "all": frozenset(known)}[kind]
    if target.as_json:
        show_json([_address(registered, bookie_id) for bookie_id in sorted(wanted)])
        return
    if not wanted:
        say("No bookie exists!")
        return
    titles = {"rw": "ReadWrite Bookies :", "ro": "Readonly Bookies :", "all": "All Bookies :"}
    say(titles[kind])
    for bookie_id in sorted(wanted):
        line("bookie", bookieAddr=_addressed(registered, bookie_id))


async def bookies_of(target: Target) -> tuple[Bookies, list[BookieId]]:
    """Those that are registered, and all that have a cookie."""
    async with target.cluster() as (store, cluster):
        registered = await read_bookies(store, cluster.root)
        return registered, await Cookies(store, cluster.root).bookies()


def _address(registered: Bookies, bookie_id: BookieId) -> dict[str, object]:
    try:
        endpoint = registered.endpoint(bookie_id)
    except LedgerError:
        return {"id": bookie_id, "host": None, "port": None}
    return {"id": bookie_id, "host": endpoint.host, "port": endpoint.port}


def _addressed(registered: Bookies, bookie_id: BookieId) -> str:
    found = _address(registered, bookie_id)
    host, port = found["host"] or "UNKNOWN", found["port"] or 0
    return f"BookieID:{bookie_id}, IP:{host}, Port:{port}, Hostname:{host}"


@click.command(epilog="Example: quire shell bookieinfo")
@target_options
def bookieinfo(target: Target) -> None:
    """Show the free and total space of every bookie."""
    spaces = run(spaces_of, target)
    free = sum(space.free_bytes for space in spaces)
    total = sum(space.total_bytes for space in spaces)
    if target.as_json:
        bookies = {s.bookie_id: {"free": s.free_bytes, "total": s.total_bytes} for s in spaces}
        show_json({"bookies": bookies, "free": free, "total": total})
        return
    registered, _ = run(bookies_of, target)
    say("Free disk space info:")
    for space in spaces:
        line(
            "Free disk space info",
            bookie=_addressed(registered, space.bookie_id),
            free=size_text(space.free_bytes),
            total=size_text(space.total_bytes),
        )
    line("Total free disk space in the cluster", free=size_text(free))
    line("Total disk capacity in the cluster", total=size_text(total))


async def spaces_of(target: Target) -> list[BookieSpace]:
    """What every registered bookie says about its disks."""
    registered, _ = await bookies_of(target)
    async with target.client() as client:
        return [await client.bookie_info(bookie_id) for bookie_id in sorted(registered.all)]


@click.command(epilog="Example: quire shell clusterinfo")
@target_options
def clusterinfo(target: Target) -> None:
    """Count bookies, and say how re-replication stands."""
    found = run(_cluster_info, target)
    if target.as_json:
        show_json(found)
        return
    say("--------- Cluster Info ---------")
    say(json.dumps(found, indent=2, separators=(",", " : ")))


async def _cluster_info(target: Target) -> dict[str, object]:
    async with target.cluster() as (store, cluster):
        marks = UnderReplication(
            store,
            cluster.root,
            owner="quire shell",
            chance=random.Random(),
            now_ms=lambda: time.time_ns() // 1_000_000,
        )
        return await overview(store, cluster.root, marks)


@click.command(epilog="Example: quire shell whatisinstanceid")
@target_options
def whatisinstanceid(target: Target) -> None:
    """Show the instance id of the cluster."""

    async def job() -> str | None:
        async with target.cluster() as (_, cluster):
            return cluster.instance_id

    found = run(job)
    if target.as_json:
        show_json({"instanceId": found})
    else:
        uri = target.metadata_uri()
        line(
            "Metadata Service Uri: InstanceId",
            metadataServiceUriUnchecked=uri,
            readInstanceId=found,
        )


@click.command(epilog="Example: quire shell endpointinfo -b 127.0.0.1:3181")
@click.option("-b", "--bookieid", required=True, help="The bookie.")
@target_options
def endpointinfo(target: Target, bookieid: str) -> None:
    """Show what a bookie announces about itself."""
    bookie_id = check_bookie_id(BookieId(bookieid))
    registered, _ = run(bookies_of, target)
    if bookie_id not in registered.all:
        live = ", ".join(sorted(registered.all)) or "none"
        raise LedgerError(f"bookie {bookie_id} is not registered; registered are: {live}")
    info = registered.info.get(bookie_id)
    if info is None:
        raise LedgerError(f"the registration of bookie {bookie_id} cannot be read")
    endpoints = sorted(info.endpoints)
    if target.as_json:
        shown = [
            {"id": e.id, "protocol": e.protocol, "host": e.host, "port": e.port} for e in endpoints
        ]
        properties = dict(info.properties)
        show_json({"bookie": bookie_id, "endpoints": shown, "properties": properties})
        return
    line("BookiedId", bookieId=bookie_id)
    for name, value in sorted(info.properties.items()):
        line("Property", key=name, value=value)
    for endpoint in endpoints:
        line("Endpoint", id=endpoint.id)
        line("Protocol", protocol=endpoint.protocol)
        line("Address", host=endpoint.host, port=endpoint.port)
        line("Auth", auth=endpoint.auth)
        line("Extensions", extensions=endpoint.extensions)
