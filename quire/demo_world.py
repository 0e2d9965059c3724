"""What the stages of the demo share: the cluster, a client, and the ledgers to be verified."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, Final

import trio

from ledger_client import LedgerClient
from quire.cluster_folder import ClusterRecord
from quire.output import say
from quire.processes import Lifeline, child_environment, module_command
from wire.errors import LedgerError
from wire.types import BookieId

PAYLOAD_BYTES: Final = 256


class DemoError(LedgerError):
    """The demo saw something that must not be."""


@dataclass(frozen=True, slots=True)
class Written:
    """A ledger whose content is known without having been kept."""

    ledger_id: int
    entries: int

    def payload(self, entry_id: int) -> bytes:
        return payload_of(self.ledger_id, entry_id)


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    return f"ledger {ledger_id} entry {entry_id} ".encode().ljust(PAYLOAD_BYTES, b".")


def payloads_of(ledger_id: int, entry_ids: range) -> Iterator[bytes]:
    return (payload_of(ledger_id, entry_id) for entry_id in entry_ids)


@dataclass(slots=True, kw_only=True)
class World:
    record: ClusterRecord
    client: LedgerClient
    lifeline: Lifeline
    entries: int  # of the first stage; the others take a part of it
    written: list[Written] = field(default_factory=list)
    killed: list[BookieId] = field(default_factory=list)

    def kill(self, bookie_id: BookieId) -> int:
        """End a bookie as a power cut would; its process id."""
        pid = next(bookie.pid for bookie in self.record.bookies if bookie.id == bookie_id)
        os.kill(pid, signal.SIGKILL)
        self.killed.append(bookie_id)
        return pid

    @asynccontextmanager
    async def client_process(self, *arguments: str) -> AsyncIterator[Lines]:
        """`python -m ledger_client ...` in a process of its own; what it writes, line by line."""
        uri = self.record.uri
        async with self.module_process("ledger_client", "--uri", uri, *arguments) as lines:
            yield lines

    @asynccontextmanager
    async def module_process(
        self, module: str, *arguments: str, errors: IO[bytes] | None = None
    ) -> AsyncIterator[Lines]:
        """The same for any module of ours; `errors` gets its standard error."""
        process = self._start(module, *arguments, errors=errors)
        assert process.stdout is not None
        stream = trio.lowlevel.FdStream(os.dup(process.stdout.fileno()))
        process.stdout.close()
        try:
            async with stream:
                yield Lines(process, stream)
        finally:
            process.kill()
            process.wait()

    def _start(
        self, module: str, *arguments: str, errors: IO[bytes] | None = None
    ) -> subprocess.Popen[bytes]:
        # Here and not in a thread: its end is tied to that of the thread that starts it.
        return subprocess.Popen(
            module_command(module, *arguments, lifeline=self.lifeline.reading),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=(self.lifeline.reading,),
            env=child_environment(),
        )


class Lines:
    """The output of a process."""

    def __init__(self, process: subprocess.Popen[bytes], stream: trio.abc.ReceiveStream) -> None:
        self.pid = process.pid
        self._process = process
        self._stream = stream
        self._rest = b""

    async def next(self) -> list[bytes]:
        """The next complete lines; none at the end, which must be a good one."""
        while True:
            found = await self._stream.receive_some()
            if not found:
                return self._end()
            *lines, self._rest = (self._rest + found).split(b"\n")
            if lines:
                return lines

    def _end(self) -> list[bytes]:
        code = self._process.wait()
        if code != 0:
            raise DemoError(f"the process {self.pid} failed with exit code {code}")
        return []


class Stopwatch:
    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start


def tell(text: str) -> None:
    say(f"   {text}")


def check(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise DemoError(otherwise)
