"""Hosts of a chaos run, and what can happen between any two of them.

Where the kernel lets us, every process has a network namespace of its own behind one bridge, and
its packets are dropped, lost or answered with resets by iptables. The other form, proxies on
loopback addresses, is `proxies.py`. Callers say who shall not reach whom, and how.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

CONTROLLER: Final = "controller"  # this process; nobody is ever cut off from it
INSIDE: Final = "QUIRE_CHAOS_INSIDE"
_SUBNET: Final = "10.77.0"
_NAMESPACES: Final = (
    *("unshare", "--net", "--mount", "--pid", "--fork"),
    *("--kill-child", "--mount-proc"),
)


class Cut(Enum):
    """What becomes of the packets between two hosts."""

    SILENT = "silent"  # dropped both ways: connections stay half open
    ONE_WAY = "one way"  # what the second says does not reach the first
    RESET = "reset"  # every connection is cut, every new one refused
    LOSSY = "lossy"  # a quarter is lost, and sent again by TCP after growing pauses
    SLOW = "slow"  # every packet takes half a second longer


class Place(NamedTuple):
    host: str  # to listen on
    port: int
    public: str  # address and port for others


class Network(Protocol):
    kind: str
    cuts: frozenset[Cut]  # what this network can do

    def add_host(self, name: str) -> str:
        """Give a host its address."""

    def address(self, name: str) -> str: ...

    def prefix(self, name: str) -> Sequence[str]:
        """What goes in front of a command so that it runs on this host."""

    def environment(self, name: str) -> dict[str, str]:
        """What its Python processes need to know of the network."""

    def serve(self, name: str, port: int) -> Place:
        """Where a server on this host shall listen, and where others find it."""

    def cut(self, one: str, other: str, how: Cut) -> None: ...

    def mend(self, one: str, other: str) -> None:
        """Undo every cut between the two."""


def namespaces_permitted() -> bool:
    """Whether this user may make namespaces, with a bridge and packet filters in them."""
    script = (
        "ip link add br0 type bridge && ip link add va type veth peer name vb && "
        "iptables -A INPUT -s 10.77.0.2 -j DROP && mount -t tmpfs tmpfs /mnt"
    )
    try:
        tried = subprocess.run(
            [*_NAMESPACES, "sh", "-c", script], capture_output=True, timeout=20.0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def enter_namespaces(module: str, arguments: Sequence[str]) -> None:
    """Run this program again in namespaces of its own, in the place of this process.

    Whatever it makes there, processes, mounts, bridges, ends with it, also if it is killed.
    """
    environment = {**os.environ, INSIDE: "1"}
    command = [*_NAMESPACES, sys.executable, "-m", module, *arguments]
    os.execvpe(command[0], command, environment)


class NamespaceNetwork:
    """A bridge, and a namespace behind it for each host."""

    kind = "network namespaces"

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {CONTROLLER: f"{_SUBNET}.1"}
        # Names of namespaces are files; ours must not appear in the machine's own folder.
        os.makedirs("/run/netns", exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        _forget_names()
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "br0", "type", "bridge")
        _run("ip", "addr", "add", f"{_SUBNET}.1/24", "dev", "br0")
        _run("ip", "link", "set", "br0", "up")
        self.cuts = frozenset(Cut) if self._can_delay() else frozenset(Cut) - {Cut.SLOW}

    def add_host(self, name: str) -> str:
        number = len(self._addresses) + 10
        address = f"{_SUBNET}.{number}"
        self._addresses[name] = address
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", f"w{number}")
        _run("ip", "link", "set", f"v{number}", "master", "br0", "up")
        _run("ip", "link", "set", f"w{number}", "netns", name)
        for line in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{address}/24", "dev", f"w{number}"),
            ("link", "set", f"w{number}", "up"),
        ):
            _run(*self.prefix(name), "ip", *line)
        return address

    def address(self, name: str) -> str:
        return self._addresses[name]

    def prefix(self, name: str) -> Sequence[str]:
        # Not `ip netns exec`, which would hide later mounts from the process.
        return () if name == CONTROLLER else ("nsenter", f"--net=/run/netns/{name}", "--")

    def environment(self, name: str) -> dict[str, str]:
        return {}

    def serve(self, name: str, port: int) -> Place:
        return Place(self.address(name), port, f"{self.address(name)}:{port}")

    def cut(self, one: str, other: str, how: Cut) -> None:
        assert CONTROLLER not in (one, other), "the controller keeps its view of everybody"
        here, there = self.prefix(one), self.address(other)
        both = (("INPUT", "-s"), ("OUTPUT", "-d"))
        rules: list[tuple[str, ...]] = []
        match how:
            case Cut.SILENT:
                rules = [(chain, flag, there, "-j", "DROP") for chain, flag in both]
            case Cut.ONE_WAY:
                rules = [("INPUT", "-s", there, "-j", "DROP")]
            case Cut.RESET:
                target = ("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")
                rules = [(chain, flag, there, *target) for chain, flag in both]
            case Cut.LOSSY:
                dice = ("-m", "statistic", "--mode", "random", "--probability", "0.25")
                rules = [(chain, flag, there, *dice, "-j", "DROP") for chain, flag in both]
            case Cut.SLOW:
                number = there.rpartition(".")[2]
                device = f"w{self.address(one).rpartition('.')[2]}"
                _run(*here, "tc", "qdisc", "replace", "dev", device, "root", "handle", "1:", "prio")
                flow = ("tc", "filter", "add", "dev", device, "parent", "1:", "u32")
                netem = ("parent", "1:3", "netem", "delay", "500ms")
                _run(*here, "tc", "qdisc", "replace", "dev", device, *netem)
                match_host = ("match", "ip", "dst", f"{_SUBNET}.{number}", "flowid", "1:3")
                _run(*here, *flow, *match_host)
                return
        for rule in rules:
            _run(*here, "iptables", "-w", "-A", *rule)

    def mend(self, one: str, other: str) -> None:
        here, there = self.prefix(one), self.address(other)
        listed = subprocess.run(
            [*here, "iptables", "-w", "-S"], check=True, capture_output=True, text=True
        ).stdout
        for line in listed.splitlines():
            words = line.split()
            if words[0] == "-A" and f"{there}/32" in words:
                _run(*here, "iptables", "-w", "-D", *words[1:])
        if Cut.SLOW in self.cuts:
            device = f"w{self.address(one).rpartition('.')[2]}"
            subprocess.run([*here, "tc", "qdisc", "del", "dev", device, "root"], check=False)

    def _can_delay(self) -> bool:
        command = ["tc", "qdisc", "add", "dev", "br0", "root", "netem", "delay", "1ms"]
        if subprocess.run(command, capture_output=True).returncode != 0:
            return False
        _run("tc", "qdisc", "del", "dev", "br0", "root")
        return True


def _forget_names() -> None:
    """No name server is reachable from the inside; whoever asks for a name shall not wait."""
    folder = "/run/netns/.etc"  # the tmpfs that is ours
    os.makedirs(folder)
    for name, text in (
        ("hosts", f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n"),
        ("resolv.conf", ""),
        ("nsswitch.conf", "hosts: files\n"),
    ):
        ours = os.path.join(folder, name)
        with open(ours, "w") as file:
            file.write(text)
        if os.path.exists(f"/etc/{name}"):
            _run("mount", "--bind", ours, f"/etc/{name}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
