"""A bookie as `python -m bookie` runs it, which also answers questions about itself.

    python -m bench.bookie_process CONF SOCKET

For each byte that arrives on the inherited socket it sends back a line of JSON; READY comes first.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from bookie.server import RunningBookie, run_bookie
from bookie.settings import bookie_settings, finish, real_shell
from runtime import logs
from runtime.config import Settings
from runtime.process import tune_for_serving
from runtime.service import Readiness, background, run_service


def statistics(running: RunningBookie) -> dict[str, float]:
    """What only the process itself knows. Asking begins a new search for the worst loop lag."""
    now = running.bookie.statistics()
    journals = [journal.statistics() for journal in running.bookie.engine.journals]
    return {
        "syncs": sum(journal.syncs for journal in journals),
        "journal_bytes": sum(journal.written_bytes for journal in journals),
        "entries_added": now.engine.entries_added,
        "generations_waiting": now.engine.generations_waiting,
        "loop_lag_worst_ms": running.loop_lag.take_worst_ms(),
    }


async def _answer(line: trio.socket.SocketType, running: RunningBookie) -> None:
    while await line.recv(1):
        await line.send(json.dumps(statistics(running)).encode() + b"\n")


async def _run(conf: str, descriptor: int, stop: trio.Event) -> None:
    logs.configure("warning")
    read = Settings.read(conf)
    settings, metadata = bookie_settings(read)
    finish(read)
    plain = socket.socket(fileno=descriptor)
    plain.setblocking(False)
    line = trio.socket.from_stdlib_socket(plain)

    @asynccontextmanager
    async def answering(running: RunningBookie) -> AsyncIterator[None]:
        async with background(partial(_answer, line, running)):
            yield

    def ready() -> None:
        tune_for_serving()
        plain.send(b"READY\n")

    await run_bookie(
        settings,
        real_shell(settings, metadata),
        stop,
        readiness=Readiness(callback=ready),
        extensions=[answering],
    )


def main() -> int:
    conf, descriptor = sys.argv[1:]
    return run_service(partial(_run, conf, int(descriptor)), name="bookie")


if __name__ == "__main__":
    sys.exit(main())
