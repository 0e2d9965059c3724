"""A ZooKeeper of three servers, each on a host of its own."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Final

from runtime.java import find_java
from runtime.local_zookeeper import _LOGGING, _jvm
from tests.chaos.network import Network
from tests.chaos.processes import Process

CLIENT_PORT: Final = 2181
_PEER_PORT: Final = 2888
_ELECTION_PORT: Final = 3888
_TICK_MS: Final = 500
_READY_SECONDS: Final = 120.0


class ZookeeperServer(Process):
    def __init__(self, name: str, folder: Path, network: Network, number: int) -> None:
        super().__init__(name, folder, network)
        self.number = number
        self.address = network.address(name)
        self.place = network.serve(name, CLIENT_PORT)

    def configure(self, members: list[ZookeeperServer]) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "data" / "myid").write_text(f"{self.number}\n")
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        servers = [
            f"server.{one.number}={one.address}:{_PEER_PORT}:{_ELECTION_PORT};"
            f"{one.place.host}:{one.place.port}"
            for one in members
        ]
        lines = [
            f"dataDir={self.folder.absolute() / 'data'}",
            f"tickTime={_TICK_MS}",
            "maxSessionTimeout=60000",
            "maxClientCnxns=0",
            "initLimit=40",
            "syncLimit=10",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,srvr,mntr",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
            *servers,
        ]
        (self.folder / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def begin(self) -> None:
        """Start it without waiting: members wait for each other."""
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        jvm = _jvm(find_java(), self.folder, (), durable=False)
        self.launch([*jvm, main, str(self.folder / "zoo.cfg")])

    def mode(self) -> str:
        """`leader`, `follower`, or nothing while it is neither."""
        answer = b""
        try:
            place = (self.place.host, self.place.port)  # not by a proxy: it may be cut
            with socket.create_connection(place, timeout=1.0) as connection:
                connection.sendall(b"srvr")
                while chunk := connection.recv(65536):
                    answer += chunk
        except OSError:
            return ""
        for line in answer.decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""


def wait_quorum(members: list[ZookeeperServer]) -> None:
    """Until all that run serve, one of them as leader."""
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        modes = [one.mode() for one in members if one.is_running]
        if modes and all(modes) and any(mode in ("leader", "standalone") for mode in modes):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"ZooKeeper has no quorum after {_READY_SECONDS:g} s: {modes}")
        time.sleep(0.1)
