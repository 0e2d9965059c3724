"""`quire up`, `quire down`, `quire status`: a cluster on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from metadata.connect import open_store
from metadata.discovery import Bookies, read_bookies
from metadata.uri import parse_metadata_uri
from quire.cluster import BOOKIES_MAX, Wish, run_cluster
from quire.cluster_folder import (
    FOLDER_DEFAULT,
    ClusterFolder,
    ClusterFolderError,
    ClusterRecord,
    RunningBookie,
)
from quire.local_console import console_link
from quire.output import news, say, show_json, show_table
from quire.processes import child_environment, is_alive
from runtime import logs
from runtime.service import signals_into

_STOP_SECONDS: Final = 90.0
_ASK_SECONDS: Final = 5.0

folder_option = click.option(
    "--dir",
    "folder",
    default=FOLDER_DEFAULT,
    show_default=True,
    envvar="QUIRE_DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the cluster; QUIRE_DIR sets it, too.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value, for scripts.")


@click.command(epilog="Example: quire up --bookies 4 --dir quire-data --detach")
@folder_option
@click.option(
    "--bookies",
    type=click.IntRange(1, BOOKIES_MAX),
    help="How many bookies; by default 3, or as many as the folder has.",
)
@click.option(
    "--zk",
    metavar="HOST:PORT",
    help="Use this ZooKeeper instead of an embedded one; a path behind it is the cluster's root.",
)
@click.option("--autorecovery", is_flag=True, help="Restore copies that are lost with a bookie.")
@click.option("--console", is_flag=True, help="Serve a page that shows the cluster live.")
@click.option(
    "--console-port",
    type=click.IntRange(1, 65535),
    help="Its port; by default a free one, and the same again at the next start.",
)
@click.option("--detach", is_flag=True, help="Return when it is ready and leave it running.")
@click.option("--ready-fd", type=int, hidden=True)
def up(
    folder: Path,
    bookies: int | None,
    zk: str | None,
    autorecovery: bool,
    console: bool,
    console_port: int | None,
    detach: bool,
    ready_fd: int | None,
) -> None:
    """Run a cluster on this machine: ZooKeeper, bookies, autorecovery.

    Prints one JSON line when it is ready, the same as in cluster.json of its folder. Data stays in
    the folder; the next start goes on with it. Ctrl-C, SIGTERM or `quire down` stop it.
    """
    wish = Wish(
        bookies=bookies,
        zookeeper=zk,
        autorecovery=autorecovery,
        console=console or console_port is not None,
        console_port=console_port,
    )
    if detach:
        _detach(ClusterFolder(folder), wish)
        return
    logs.configure("warning")
    trio.run(partial(_up, ClusterFolder(folder), wish, ready_fd))


async def _up(folder: ClusterFolder, wish: Wish, ready_fd: int | None) -> None:
    def announce(record: ClusterRecord) -> None:
        say(record.to_json())
        if ready_fd is not None:
            os.write(ready_fd, b"READY\n")
            os.close(ready_fd)
        else:  # else standard error is a file, which is no place for a token
            _say_console(folder, record)

    stop = trio.Event()
    with signals_into(stop):
        await run_cluster(
            folder, wish, stop, on_ready=announce, on_news=lambda text: news(f"quire: {text}")
        )


def _detach(folder: ClusterFolder, wish: Wish) -> None:
    """The same command again, in a session of its own, with its output in a file."""
    with folder.claimed():
        pass  # made, and free: better said here than in a log
    arguments = ["up", "--dir", str(folder.path)]
    if wish.bookies is not None:
        arguments += ["--bookies", str(wish.bookies)]
    if wish.zookeeper is not None:
        arguments += ["--zk", wish.zookeeper]
    if wish.autorecovery:
        arguments.append("--autorecovery")
    if wish.console:
        arguments.append("--console")
    if wish.console_port is not None:
        arguments += ["--console-port", str(wish.console_port)]
    log_path = folder.path / "up.log"
    reading, writing = os.pipe()
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "quire", *arguments, "--ready-fd", str(writing)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writing,),
            env=child_environment(),
            start_new_session=True,
        )
    os.close(writing)
    with open(reading) as ready:
        said = ready.read()
    if said:
        record = folder.read_record()
        say(record.to_json())
        _say_console(folder, record)
        return
    child.wait()
    lines = log_path.read_text(errors="replace").splitlines() or ["it ended and said nothing"]
    raise ClusterFolderError(lines[-1].removeprefix("quire: "))


def _say_console(folder: ClusterFolder, record: ClusterRecord) -> None:
    if record.console is not None:
        news(f"quire: console: {console_link(folder, record.console)}")


# ---------------------------------------------------------------------- down


@click.command(epilog="Example: quire down --dir quire-data")
@folder_option
@json_option
def down(folder: Path, as_json: bool) -> None:
    """Stop the cluster of a folder, and wait until it has stopped. Its data stays."""
    place = ClusterFolder(folder)
    owner = place.require_owner()
    os.kill(owner, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while place.owner() is not None:
        if time.monotonic() > deadline:
            raise ClusterFolderError(
                f"process {owner} did not stop within {_STOP_SECONDS:g} s: "
                f"look at the logs in {folder}, or end it with `kill -9 {owner}`"
            )
        time.sleep(0.05)
    if as_json:
        show_json({"dir": str(folder), "stopped": True})
    else:
        say(f"the cluster in {folder} has stopped; its data is kept")


# ---------------------------------------------------------------------- status


@click.command(epilog="Example: quire status --dir quire-data --json")
@folder_option
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Say what runs in the folder of a cluster, and what ZooKeeper knows of it."""
    record = ClusterFolder(folder).read_record()
    registered = trio.run(_registered, record)
    rows = [
        {
            "id": bookie.id,
            "pid": bookie.pid,
            "running": is_alive(bookie.pid),
            "state": _state(bookie, registered),
            "dir": bookie.dir,
            "http": bookie.http,
        }
        for bookie in record.bookies
    ]
    if as_json:
        show_json(
            {
                "metadataServiceUri": record.uri,
                "zookeeper": record.zookeeper,
                "bookies": rows,
                "console": record.console,
            }
        )
    else:
        say(f"metadata service: {record.uri}")
        if record.console is not None:
            say(f"console: {console_link(ClusterFolder(folder), record.console)}")
        show_table(
            ["bookie", "pid", "state", "folder"],
            [[row["id"], row["pid"], row["state"], row["dir"]] for row in rows],
        )


async def _registered(record: ClusterRecord) -> Bookies:
    uri = parse_metadata_uri(record.uri)
    with trio.move_on_after(_ASK_SECONDS):
        async with open_store(uri) as store:
            return await read_bookies(store, uri.root)
    raise ClusterFolderError(
        f"ZooKeeper on {record.zookeeper} does not answer: look at its log in the cluster's folder"
    )


def _state(bookie: RunningBookie, registered: Bookies) -> str:
    is_listed = bookie.id in registered.all
    if not is_alive(bookie.pid):
        return "ended, still registered" if is_listed else "ended"
    if not is_listed:
        return "running, not registered"
    return "writable" if bookie.id in registered.writable else "read-only"
