"""Cutting a local bookie off from its clients: the kernel drops packets of its port on loopback.

Needs iptables and the right to use it; `obstacle` says what is missing. Rules outlive whoever made
them, so a list of the ports that are cut is in a file first: the next start of the cluster mends
what a killed one left behind.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from quire.console.faults import FaultRefusedError

_SECONDS: Final = 10.0
_COMMENT: Final = "quire-cut"


class PacketCut:
    """Cuts of one cluster. The calls are short and block."""

    def __init__(self, list_path: Path) -> None:
        self._list_path = list_path

    def obstacle(self) -> str | None:
        """Why nothing can be cut here; None if it can."""
        if shutil.which("iptables") is None:
            return "iptables is not installed"
        try:
            _iptables("-n", "-L", "INPUT")
        except FaultRefusedError as error:
            return str(error)
        return None

    def cut(self, port: int) -> None:
        self._remember({*self._ports(), port})
        try:
            for rule in _rules(port):
                _iptables("-I", *rule)
        except FaultRefusedError:
            self.mend(port)
            raise

    def mend(self, port: int) -> None:
        for rule in _rules(port):
            while _has(rule):
                _iptables("-D", *rule)
        self._remember(self._ports() - {port})

    def mend_all(self) -> None:
        for port in self._ports():
            self.mend(port)

    def _ports(self) -> set[int]:
        try:
            return set(map(int, self._list_path.read_text().split()))
        except (FileNotFoundError, ValueError):
            return set()

    def _remember(self, ports: set[int]) -> None:
        if ports:
            self._list_path.write_text("".join(f"{port}\n" for port in sorted(ports)))
        else:
            self._list_path.unlink(missing_ok=True)


def _rules(port: int) -> Iterator[tuple[str, ...]]:
    """Neither what clients say nor what the bookie says arrives; connections stay half open."""
    for side in ("--dport", "--sport"):
        yield (
            *("INPUT", "-i", "lo", "-p", "tcp", side, str(port)),
            *("-m", "comment", "--comment", _COMMENT, "-j", "DROP"),
        )


def _has(rule: tuple[str, ...]) -> bool:
    return _run("-C", *rule).returncode == 0


def _iptables(*arguments: str) -> None:
    done = _run(*arguments)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise FaultRefusedError(f"iptables: {said[0]}")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ("iptables", "-w", "5", *arguments)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise FaultRefusedError(f"iptables cannot be run: {error}") from None
