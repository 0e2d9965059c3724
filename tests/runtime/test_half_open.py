"""A peer whose machine vanished, for real: its network namespace loses the cable between us.

Nothing is sent when a machine loses power, so only the kernel's questions tell. Namespaces need
root on Linux.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support import needs

HERE, THERE = "10.211.7.1", "10.211.7.2"
#: The near end: accepts one connection, says its port and how the connection ended.
NEAR = f"""
import trio
from runtime.sockets import KeepAlive, SocketNetwork

async def main():
    listener = await SocketNetwork(KeepAlive(1, 1, 2)).listen({HERE!r}, 0)
    print(listener.port, flush=True)
    stream = await listener.accept()
    print("connected", flush=True)
    try:
        print("ended" if not await stream.receive_some(1) else "data", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)

trio.run(main)
"""
FAR = """
import socket, sys, time
connected = socket.create_connection((sys.argv[1], int(sys.argv[2])))
time.sleep(600)
"""


def ip(*arguments: str) -> None:
    program = needs.program("ip", "install iproute2")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        needs.absent("a network namespace", f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def two_machines(name: str) -> Iterator[tuple[str, str]]:
    """Two namespaces with a cable between them, and nothing else."""
    near, far = f"{name}n", f"{name}f"
    with ExitStack() as undo:
        for namespace in (near, far):
            ip("netns", "add", namespace)
            undo.callback(ip, "netns", "delete", namespace)
        ip("link", "add", near, "netns", near, "type", "veth", "peer", far, "netns", far)
        for namespace, address in ((near, HERE), (far, THERE)):
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", namespace)
            ip("-n", namespace, "link", "set", namespace, "up")
        yield near, far


@contextmanager
def running(namespace: str, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_connection_to_a_machine_that_vanished_ends_by_itself() -> None:
    with (
        two_machines(f"q{os.getpid()}") as (near, far),
        running(near, NEAR) as listening,
        running(far, FAR, HERE, line_of(listening)),
    ):
        assert line_of(listening) == "connected"
        ip("-n", far, "link", "set", far, "down")
        assert line_of(listening) in ("TimeoutError", "OSError")
