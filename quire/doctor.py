"""`quire doctor`: is everything here as a bookie wants it, and if not, what to do."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import click
import trio

from bookie.identity import Resolver, identify, local_cookies
from bookie.lifetimes import BookieSettings
from metadata.cluster import Cluster, open_cluster
from metadata.cookies import Cookies
from metadata.discovery import read_bookies
from metadata.store import ANY_VERSION, MetadataStore
from quire.access import Target, target_options
from quire.cluster_folder import FOLDER_DEFAULT
from quire.doctor_checks import (
    Finding,
    Verdict,
    check_disks,
    check_java,
    check_limits,
    check_port,
    check_python,
    failure,
    ok,
    read_configuration,
    warning,
)
from quire.output import say, show_json
from runtime.files import OSFileSystem
from wire.errors import LedgerError

_CLOCK_MS_MAX: Final = 1000.0

#: What can be said of a machine without any configuration. Adding a check is adding a row.
MACHINE: Final[tuple[Callable[[], Finding], ...]] = (check_python, check_java, check_limits)


@click.command(epilog="Example: quire doctor --conf conf/bk_server.conf")
@target_options
def doctor(target: Target) -> int:
    """Look at this machine, at a bookie's configuration, and at its cluster.

    Without options: the machine, and the local cluster in the current folder if there is one. The
    exit code is 1 if something is broken; warnings do not count.
    """
    findings = []
    for finding in _findings(target):
        findings.append(finding)
        if not target.as_json:
            _say(finding)
    failed = [finding for finding in findings if finding.verdict is Verdict.FAILURE]
    if target.as_json:
        show_json(
            {
                "healthy": not failed,
                "findings": [
                    {
                        "subject": finding.subject,
                        "verdict": finding.verdict.value,
                        "found": finding.found,
                        "advice": finding.advice,
                    }
                    for finding in findings
                ],
            }
        )
    else:
        say(f"{len(failed)} of {len(findings)} checks failed" if failed else "nothing is broken")
    return 1 if failed else 0


def _say(finding: Finding) -> None:
    say(f"{finding.verdict.value:<8} {finding.subject}: {finding.found}")
    if finding.advice:
        say(f"{'':<8} -> {' '.join(finding.advice.split())}")


def _findings(target: Target) -> Iterator[Finding]:
    for check in MACHINE:
        yield check()
    bookies = []
    for conf in _configurations(target):
        settings, findings = read_configuration(conf)
        yield from findings
        if settings is not None:
            bookies.append(settings)
            yield check_port(settings)
            yield from check_disks(settings)
    if target.uri is None and target.conf is None and not bookies:
        return
    yield from trio.run(_cluster_findings, target, bookies)


def _configurations(target: Target) -> Iterable[str]:
    """The file that was named, or those of a local cluster."""
    if target.conf is not None:
        return [target.conf]
    if target.uri is not None:
        return []
    folder = target.folder or Path(FOLDER_DEFAULT)
    return [str(path) for path in sorted(folder.glob("bookie-*/bk_server.conf"))]


# ---------------------------------------------------------------------- the cluster


async def _cluster_findings(target: Target, bookies: list[BookieSettings]) -> list[Finding]:
    uri = bookies[0].metadata_uri if bookies and target.uri is None else None
    asked = target if uri is None else Target(uri=str(uri), conf=target.conf)
    findings: list[Finding] = []
    try:
        begin = time.perf_counter()
        async with asked.store() as (store, found_uri):
            spent_ms = (time.perf_counter() - begin) * 1000
            servers = found_uri.connect_string
            findings.append(ok("zookeeper", f"{servers} answers after {spent_ms:.0f} ms"))
            findings.append(await _check_clock(store))
            cluster = await open_cluster(store, found_uri)
            findings.append(ok("cluster", f"{found_uri}, instance {cluster.instance_id}"))
            findings.append(await _check_bookies(store, cluster))
            findings += [finding async for finding in _check_cookies(store, cluster, bookies)]
    except LedgerError as error:
        subject = "cluster" if findings else "zookeeper"
        findings.append(failure(subject, "cannot be used", str(error)))
    return findings


async def _check_clock(store: MetadataStore) -> Finding:
    """Hold our clock against ZooKeeper's, which stamps whatever is made there."""
    path = f"/quire-doctor-{os.getpid()}-{time.time_ns()}"
    before_ms = time.time_ns() / 1e6
    try:
        await store.create(path, b"", ephemeral=True)
        after_ms = time.time_ns() / 1e6
        stat = await store.exists(path)
        await store.delete(path, version=ANY_VERSION)
    except LedgerError as error:
        return warning("clock", "could not be compared", str(error))
    if stat is None:
        return warning("clock", "could not be compared", "run it again")
    # Somewhere in between it was made; only what lies outside is a difference.
    ahead_ms = max(before_ms - 1 - stat.created_ms, stat.created_ms - after_ms, 0.0)
    if ahead_ms > _CLOCK_MS_MAX:
        found = f"{ahead_ms / 1000:.1f} s apart from ZooKeeper's"
        return warning("clock", found, "let both machines follow the same time (NTP)")
    return ok("clock", f"within {max(ahead_ms, after_ms - before_ms):.0f} ms of ZooKeeper's")


async def _check_bookies(store: MetadataStore, cluster: Cluster) -> Finding:
    registered = await read_bookies(store, cluster.root)
    known = await Cookies(store, cluster.root).bookies()
    absent = sorted(set(known) - registered.all)
    found = f"{len(registered.writable)} writable, {len(registered.read_only)} read-only"
    if absent:
        advice = "start them, or decommission those that will not come back"
        return warning("bookies", f"{found}; absent: {', '.join(absent)}", advice)
    if not registered.writable:
        return warning("bookies", found, "nobody can write: start bookies, or free their disks")
    return ok("bookies", found)


async def _check_cookies(
    store: MetadataStore, cluster: Cluster, bookies: list[BookieSettings]
) -> AsyncIterator[Finding]:
    cookies = Cookies(store, cluster.root)
    for settings in bookies:
        bookie_id = identify(settings.bookie, settings.bookie.port, Resolver()).bookie_id
        directories = (*settings.storage.journals, *settings.storage.ledger_directories)
        local = local_cookies(OSFileSystem(), directories)
        stored = await cookies.find(bookie_id)
        subject = f"cookie of {bookie_id}"
        if stored is None and not local:
            yield ok(subject, "none yet: a new bookie")
        elif stored is None:
            advice = "the cluster was formatted, or the cookie deleted: see docs/operations.md"
            yield failure(subject, "on disk, and not in the cluster", advice)
        elif len(local) < len(set(directories)):
            missing = next(path for path in directories if path not in local)
            advice = "its data is lost or not mounted: do not start it before you know which"
            yield failure(subject, f"in the cluster, and not in {missing}", advice)
        elif any(cookie != stored.cookie for cookie in local.values()):
            yield failure(
                subject,
                "different on disk and in the cluster",
                "another bookie's directories, or another cluster's: correct the configuration",
            )
        else:
            yield ok(subject, "the same on disk and in the cluster")
