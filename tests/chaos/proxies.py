"""Where namespaces are not permitted: loopback addresses, and a proxy before each server.

Every host has an address in 127.0.0.0/8. A server listens behind a proxy on its address; a Python
process says who it is by connecting from its own address (`sources.py`, loaded by
`sitecustomize`). So a proxy knows both ends and can drop, cut, delay or half-open any pair of
them. What it cannot do is come between ZooKeepers, which are Java: they are stopped instead.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from runtime.local_zookeeper import free_port
from tests.chaos.network import CONTROLLER, Cut, Place
from tests.chaos.processes import HOOKS

SOURCE: Final = "QUIRE_CHAOS_SOURCE"
_DELAY_SECONDS: Final = 0.5
_CHUNK: Final = 65536


def guard_children() -> None:
    """Have every process of this run end with this one, even if it is killed.

    Namespaces do that by themselves. Here a watchdog holds the other end of a pipe, and ends our
    process group when nobody holds this one any more.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    reading, writing = os.pipe()
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(reading), str(os.getpgrp())],
        pass_fds=(reading,),
        start_new_session=True,
    )
    os.close(reading)
    os.set_inheritable(writing, False)


_WATCHDOG: Final = """
import os, signal, sys
os.read(int(sys.argv[1]), 1)
try:
    os.killpg(int(sys.argv[2]), signal.SIGKILL)
except ProcessLookupError:
    pass
"""


class ProxyNetwork:
    kind = "proxies on loopback"
    cuts = frozenset({Cut.SILENT, Cut.ONE_WAY, Cut.RESET, Cut.SLOW})

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {CONTROLLER: "127.0.0.1"}
        self._cuts: dict[tuple[str, str], Cut] = {}
        self._lock = threading.Lock()

    def add_host(self, name: str) -> str:
        number = len(self._addresses) + 10
        # A subnet of our own: two runs on one machine must not share ports.
        pid = os.getpid()
        subnet = f"127.{64 + (pid >> 8) % 128}.{pid % 256}"
        address = self._addresses[name] = f"{subnet}.{number}"
        return address

    def address(self, name: str) -> str:
        return self._addresses[name]

    def prefix(self, name: str) -> Sequence[str]:
        return ()

    def environment(self, name: str) -> dict[str, str]:
        return {SOURCE: self._addresses[name], "PYTHONPATH": str(HOOKS)}

    def serve(self, name: str, port: int) -> Place:
        """Behind a proxy, on 127.0.0.1 and the proxy's port number: bookies advertise it."""
        proxy = _Proxy(self, name, self._addresses[name])
        threading.Thread(target=proxy.run, name=f"proxy-{name}", daemon=True).start()
        return Place("127.0.0.1", proxy.port, f"{self._addresses[name]}:{proxy.port}")

    def cut(self, one: str, other: str, how: Cut) -> None:
        with self._lock:
            self._cuts[one, other] = how

    def mend(self, one: str, other: str) -> None:
        with self._lock:
            self._cuts.pop((one, other), None)

    def fate(self, source: str, server: str, *, is_answer: bool) -> Cut | None:
        """What happens to bytes between a client's address and a server's name now."""
        names = {address: name for name, address in self._addresses.items()}
        client = names.get(source, CONTROLLER)
        with self._lock:
            for (one, other), how in self._cuts.items():
                if {one, other} != {client, server}:
                    continue
                # One way: the first does not hear the second.
                hears = client if is_answer else server
                if how is not Cut.ONE_WAY or hears == one:
                    return how
        return None


class _Proxy:
    """One thread for all connections to one server."""

    def __init__(self, network: ProxyNetwork, server: str, address: str) -> None:
        self._network = network
        self._server = server
        self.port = free_port()  # on 127.0.0.1, where the server will want it
        self._listening = socket.create_server((address, self.port), backlog=128)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, tuple[socket.socket, str, bool]] = {}
        self._waiting: deque[tuple[float, socket.socket, bytes]] = deque()

    def run(self) -> None:
        self._selector.register(self._listening, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(0.02):
                if key.fileobj is self._listening:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._pass(key.fileobj)
            self._send_due()
            self._cut_what_is_reset()

    def _accept(self) -> None:
        client, (source, _) = self._listening.accept()
        if self._network.fate(source, self._server, is_answer=False) is Cut.RESET:
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.port), timeout=5.0)
        except OSError:
            client.close()
            return
        for end, other, is_answer in ((client, server, False), (server, client, True)):
            end.settimeout(5.0)
            self._peers[end] = (other, source, is_answer)
            self._selector.register(end, selectors.EVENT_READ)

    def _pass(self, end: socket.socket) -> None:
        if end not in self._peers:
            return
        other, source, is_answer = self._peers[end]
        try:
            data = end.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._close(end)
            return
        match self._network.fate(source, self._server, is_answer=is_answer):
            case None:
                self._send(other, data)
            case Cut.SLOW:
                self._waiting.append((time.monotonic() + _DELAY_SECONDS, other, data))
            case Cut.RESET:
                self._close(end)
            case _:
                # A TCP connection that lost bytes is over; both ends learn that much later.
                self._selector.unregister(end)

    def _send_due(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, other, data = self._waiting.popleft()
            self._send(other, data)

    def _send(self, other: socket.socket, data: bytes) -> None:
        try:
            other.sendall(data)
        except OSError:
            self._close(other)

    def _cut_what_is_reset(self) -> None:
        for end, (_, source, is_answer) in list(self._peers.items()):
            if self._network.fate(source, self._server, is_answer=is_answer) is Cut.RESET:
                self._close(end)

    def _close(self, end: socket.socket) -> None:
        other, _, _ = self._peers.pop(end, (end, "", False))
        self._peers.pop(other, None)
        for one in {end, other}:
            if one.fileno() >= 0:
                if one in {key.fileobj for key in self._selector.get_map().values()}:
                    self._selector.unregister(one)
                one.close()
