"""The console of a local cluster: served by the parent of the bookies, with fault buttons.

Port and token are chosen once and kept in the folder, in console.json, which only its owner may
read: a page that was left open finds the cluster again after a restart. The token is in the part of
the address that a browser keeps to itself, and nowhere in what we print for programs or log.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from metadata.connect import open_store
from metadata.uri import parse_metadata_uri
from quire.cluster_folder import ClusterFolder, ClusterFolderError, Plan
from quire.fleet import Fleet
from quire.processes import Child
from runtime.local_zookeeper import free_port
from runtime.logs import Secret
from wire.types import BookieId

if TYPE_CHECKING:
    from quire.packet_cut import PacketCut


@asynccontextmanager
async def local_console(
    folder: ClusterFolder,
    plan: Plan,
    fleet: Fleet,
    bookies: Mapping[BookieId, Child],
    *,
    port: int | None,
    nursery: trio.Nursery,
    on_restart: Callable[[], None],
) -> AsyncIterator[str]:
    """Served during the block, at the address that is yielded."""
    # Here, because a cluster without a console needs nothing of this.
    try:
        from quire.console.serving import ConsoleSettings, running_console
        from quire.local_faults import LocalFaults
    except ModuleNotFoundError as error:
        raise ClusterFolderError(
            f"--console needs {error.name}, which is not installed: run pip install 'quire[all]'"
        ) from error

    port, token = _port_and_token(folder, port)
    uri = parse_metadata_uri(plan.uri)
    settings = ConsoleSettings(
        uri=uri, open_metadata=partial(open_store, uri), port=port, token=token
    )
    cut = packet_cut(folder)
    panel = LocalFaults(fleet, nursery, cut, on_restart)
    await panel.open(bookies)
    with ExitStack() as stack:
        stack.callback(cut.mend_all)
        async with running_console(settings, panel) as url:
            yield url


def packet_cut(folder: ClusterFolder) -> PacketCut:
    from quire.packet_cut import PacketCut

    return PacketCut(folder.path / "cut-off")


def console_link(folder: ClusterFolder, url: str) -> str:
    """The address with the token, for whoever may read it; without, for others."""
    try:
        found = _read(folder)
    except PermissionError:
        found = None
    return url if found is None else f"{url}#token={found[1].reveal()}"


def _port_and_token(folder: ClusterFolder, port: int | None) -> tuple[int, Secret]:
    known = _read(folder)
    known_port, token = known or (None, Secret(secrets.token_urlsafe(24)))
    chosen = port or known_port or free_port()
    if chosen != known_port:
        mode = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(_path(folder), mode, 0o600), "w") as file:
            json.dump({"port": chosen, "token": token.reveal()}, file)
    return chosen, token


def _read(folder: ClusterFolder) -> tuple[int, Secret] | None:
    path = _path(folder)
    try:
        found = json.loads(path.read_text())
        return int(found["port"]), Secret(str(found["token"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterFolderError(
            f"{path} cannot be understood ({error!r}): remove it, and another will be made"
        ) from None


def _path(folder: ClusterFolder) -> Path:
    return folder.path / "console.json"
