"""Finding out where bookies stand: from a table in a file, or from an operator's script.

Both speak of hosts, as BookKeeper's do: `net.topology.table.file.name` and the topology script.
Placement does not wait for an answer: until there is one, a bookie stands at the default place.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

import trio

from ledger_client.core.topology import DEFAULT_RACK, Location, Locations, parse_location
from metadata.discovery import Bookies
from wire.errors import BadRequestError
from wire.types import BookieId

_log = logging.getLogger(__name__)

#: Hosts that one run of the script is asked about.
_HOSTS_PER_RUN: Final = 100
_SCRIPT_SECONDS: Final = 30.0
_OUTPUT_LIMIT: Final = 1024 * 1024
#: Places that could not be found are asked for again after this long.
_RETRY_SECONDS: Final = 60.0


class Resolver(Protocol):
    """Something that knows where hosts are."""

    async def resolve(self, hosts: Collection[str]) -> Mapping[str, Location]:
        """The places of those that it knows."""


class TopologyTable:
    """A file with one `host /region/rack` in each line; `#` starts a comment.

    The name may be a bookie's id or the host it listens on. The file is read anew whenever a
    bookie is looked for, so that it can be edited while clients run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    async def resolve(self, hosts: Collection[str]) -> Mapping[str, Location]:
        try:
            text = await trio.to_thread.run_sync(self._path.read_text, "utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequestError(
                f"the topology table {self._path} cannot be read: {error}"
            ) from error
        table = parse_table(text, str(self._path))
        return {host: table[host] for host in hosts if host in table}


def parse_table(text: str, name: str) -> dict[str, Location]:
    table: dict[str, Location] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise BadRequestError(
                f"{name}, line {number}: {line.strip()!r} is not a host and its location"
            )
        try:
            table[words[0]] = parse_location(words[1])
        except BadRequestError as error:
            raise BadRequestError(f"{name}, line {number}: {error}") from error
    return table


class TopologyScript:
    """A program that is given hosts as arguments and prints the location of each, one a line."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    async def resolve(self, hosts: Collection[str]) -> Mapping[str, Location]:
        wanted = sorted(hosts)
        found: dict[str, Location] = {}
        for first in range(0, len(wanted), _HOSTS_PER_RUN):
            batch = wanted[first : first + _HOSTS_PER_RUN]
            found.update(zip(batch, await self._ask(batch), strict=True))
        return found

    async def _ask(self, hosts: list[str]) -> list[Location]:
        try:
            with trio.fail_after(_SCRIPT_SECONDS):
                ran = await trio.run_process(
                    [self._path, *hosts], capture_stdout=True, capture_stderr=True, check=False
                )
        except trio.TooSlowError:
            raise BadRequestError(
                f"the topology script {self._path} did not answer within {_SCRIPT_SECONDS:.0f} s"
            ) from None
        except (OSError, subprocess.SubprocessError) as error:
            raise BadRequestError(
                f"the topology script {self._path} cannot be run: {error}"
            ) from error
        if ran.returncode:
            complaint = ran.stderr[:_OUTPUT_LIMIT].decode(errors="replace").strip()
            raise BadRequestError(
                f"the topology script {self._path} ended with {ran.returncode}: {complaint[:200]}"
            )
        lines = ran.stdout[:_OUTPUT_LIMIT].decode(errors="replace").split()
        if len(lines) != len(hosts):
            raise BadRequestError(
                f"the topology script {self._path} printed {len(lines)} locations for "
                f"{len(hosts)} hosts: it must print one a line for each argument"
            )
        return [parse_location(line) for line in lines]


class Topology:
    """The places of a cluster's bookies, followed as bookies come.

    topology = Topology(TopologyTable("racks.table"))
    client = LedgerClient(uri, topology=topology, policy=RackAware(topology.locations))
    """

    def __init__(self, resolver: Resolver, *, default: Location = DEFAULT_RACK) -> None:
        self.locations = Locations(default=default)
        self._resolver = resolver

    async def learn(self, bookies: Bookies) -> None:
        """Look up whoever is not placed yet. A resolver that fails leaves them at the default."""
        hosts = {
            bookie_id: host_of(bookie_id, bookies)
            for bookie_id in bookies.all
            if not self.locations.is_known(bookie_id)
        }
        if not hosts:
            return
        try:
            found = await self._resolver.resolve({*hosts, *hosts.values()})
        except BadRequestError as error:
            _log.warning("%s; its bookies count as one rack meanwhile", error)
            return
        places: dict[BookieId, Location] = {}
        for bookie_id, host in hosts.items():
            place = found.get(bookie_id) or found.get(host)
            if place is not None:
                places[bookie_id] = place
        self.locations.learn(places)
        for bookie_id in sorted(hosts.keys() - places.keys()):
            _log.warning("bookie %s has no known location: it counts as unplaced", bookie_id)

    async def follow(
        self,
        present: Callable[[], Bookies],
        wait_changed: Callable[[Bookies], Awaitable[Bookies]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Learn until cancelled; started once those present were looked up."""
        seen = present()
        await self.learn(seen)
        task_status.started()
        while True:
            with trio.move_on_after(_RETRY_SECONDS):
                seen = await wait_changed(seen)
            await self.learn(seen)


def host_of(bookie_id: BookieId, bookies: Bookies) -> str:
    """The host that a bookie listens on; its id's, while it announces none."""
    info = bookies.info.get(bookie_id)
    if info is not None and info.rpc is not None:
        return info.rpc.host
    return bookie_id.rpartition(":")[0] or bookie_id
