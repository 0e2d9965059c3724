"""A real bookie under hostile frames, beside a client that behaves.

Captured requests of both versions and batches are changed and sent in bursts (`hostile`).
Meanwhile a neighbour adds and reads what it added, byte for byte, the old as well as the new. At
the end the bookie still lives, has logged no traceback, has its descriptors back, had no more
memory in the second half than in the first, and stops and starts again with everything that it
promised the neighbour. Ledgers of the attackers are in no metadata, so the collector deletes them
all the while, and must leave the neighbour's alone.
"""

from __future__ import annotations

import math
import os
import random
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import trio

from tests.bookie_server.live import Process, bookie_process, daemon_process
from tests.bookie_server.live_clients import HANGS_SECONDS, LiveClient, connected
from tests.bookie_server.live_site import Site, memory_mib, stop
from tests.bookie_server.world import entry_of
from tests.fuzz.growth import MemoryLog, resident_mib
from tests.fuzz.hostile import Burst, hostile_bursts, hostile_http
from tests.fuzz.live_site import LEDGER_ID, Entrance, Plan, prepared
from wire.errors import Status

ATTACKERS = 32
HTTP_ATTACKERS = 4
ROUND = 50
LOOK_SECONDS = 1.0
TELL_SECONDS = 15.0
MEMORY_MIB_MAX = 400
#: Descriptors that a bookie may have gained by itself: entry logs, journal files, the index.
OPEN_LOGS = 40
#: A reset instead of an orderly end.
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Figures:
    """All of bounded size, however long it takes."""

    frames: int = 0
    connections: int = 0
    admitted: int = 0  # connections of attackers who know a password
    http_requests: int = 0
    answer_bytes: int = 0
    http_bytes: int = 0
    rounds: int = 0  # of the neighbour: entries added and read
    round_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    slowest_seconds: float = 0.0
    memory: MemoryLog = field(default_factory=MemoryLog)
    memory_peak_mib: float = 0.0
    seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        yield f"{self.frames:,} hostile frames over {self.connections:,} connections"
        if self.admitted:
            yield f"{self.admitted:,} of them by somebody with a password"
        if self.http_requests:
            yield f"{self.http_requests:,} hostile HTTP requests, {self.http_bytes:,} bytes back"
        yield f"{self.answer_bytes:,} bytes of answers, in {self.seconds:.0f} s"
        yield f"{self.rounds * ROUND:,} entries added and read by the neighbour, all as written"
        usual = sorted(self.round_seconds)[len(self.round_seconds) // 2] * 1e3
        yield f"{usual:.1f} ms for {ROUND} of them, {self.slowest_seconds * 1e3:.0f} ms at worst"
        yield f"{self.memory.line()}; peak {self.memory_peak_mib:.0f}"


# ---------------------------------------------------------------------- the hostile ones


@dataclass(frozen=True)
class Attack:
    """Shared by all attackers."""

    port: int
    plan: Plan
    entrance: Entrance | None
    figures: Figures
    rng: random.Random

    async def run(self, bursts: Iterator[Burst]) -> None:
        """Send so many frames, a burst a connection; whatever comes back is only counted."""
        while self.figures.frames < self.plan.frames:
            burst = next(bursts)
            self.figures.frames += burst.requests
            self.figures.connections += 1
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                if self.entrance is not None:
                    burst = await self._pass(self.entrance, stream, burst)
                answered = await send_burst(stream, burst)
                self.figures.answer_bytes += answered

    async def _pass(self, entrance: Entrance, stream: trio.SocketStream, burst: Burst) -> Burst:
        """Half of them are let in; the others send tokens that nearly are right."""
        if self.rng.randrange(2):
            self.figures.admitted += 1
            await entrance.log_in(stream, burst.version)
            return burst
        tokens = entrance.wrong_tokens(self.rng, burst.version)
        return burst._replace(data=tokens + burst.data, cuts=[len(tokens)])

    async def run_http(self, port: int, bursts: Iterator[Burst], is_over: trio.Event) -> None:
        while not is_over.is_set():
            burst = next(bursts)
            self.figures.http_requests += burst.requests
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                answered = await send_burst(stream, burst)
                self.figures.http_bytes += answered


async def send_burst(stream: trio.SocketStream, burst: Burst) -> int:
    """How many bytes came back."""
    answered = 0
    try:
        for packet in burst.packets():
            await stream.send_all(packet)
        if burst.is_deserted:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            return 0
        await stream.send_eof()
        # Long polls among them are answered at the end of the connection.
        with trio.move_on_after(HANGS_SECONDS):
            while answer := await stream.receive_some(1 << 16):
                answered += len(answer)
    except trio.BrokenResourceError:
        pass  # thrown out, as it should be
    return answered


# ---------------------------------------------------------------------- the well-behaved one


async def behave(client: LiveClient, figures: Figures, is_over: trio.Event) -> None:
    """Add and read, and read again what is older; every answer is the right one."""
    chance = random.Random(1)
    while not is_over.is_set():
        begun = time.monotonic()
        ids, payload = round_of(figures.rounds)
        assert await client.add(LEDGER_ID, ids, payload) == {Status.OK}
        await check_round(client, figures.rounds)
        took = time.monotonic() - begun
        figures.round_seconds.append(took)
        figures.slowest_seconds = max(figures.slowest_seconds, took)
        figures.rounds += 1
        await check_round(client, chance.randrange(figures.rounds))


def round_of(number: int) -> tuple[range, bytes]:
    return range(number * ROUND, (number + 1) * ROUND), b"round %d " % number * 20


async def check_round(client: LiveClient, number: int) -> None:
    ids, payload = round_of(number)
    found = await client.read(LEDGER_ID, ids)
    assert found == {entry_id: entry_of(LEDGER_ID, entry_id, payload) for entry_id in ids}


@asynccontextmanager
async def neighbour(port: int, entrance: Entrance | None) -> AsyncIterator[LiveClient]:
    async with connected(port, patience=math.inf) as client:
        if entrance is not None:
            await entrance.log_in(client.stream)
        yield client


# ---------------------------------------------------------------------- watching


async def watch(
    pid: int, figures: Figures, plan: Plan, tell: Callable[[str], None], is_over: trio.Event
) -> None:
    """Note the memory, and now and then say how far it is."""
    begun = told_at = time.monotonic()
    told_frames = 0
    tell(f"0 of {plan.frames:,} frames")
    while not is_over.is_set():
        figures.memory.note(figures.frames, resident_mib(pid))
        now = time.monotonic()
        if now - told_at >= TELL_SECONDS:
            rate = (figures.frames - told_frames) / (now - told_at)
            left = (plan.frames - figures.frames) / max(1.0, figures.frames / (now - begun))
            tell(
                f"{figures.frames:,} frames, {rate:,.0f}/s, {_clock(left)} left; "
                f"{figures.rounds * ROUND:,} entries of the neighbour; "
                f"{figures.memory.samples[-1][1]:.0f} MiB, the attack itself {resident_mib():.0f}"
            )
            told_at, told_frames = now, figures.frames
        with trio.move_on_after(LOOK_SECONDS):
            await is_over.wait()
    figures.memory.note(figures.frames, resident_mib(pid))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def first_traceback(log: Path) -> str:
    """Where a log has one, with some lines around it. A log of hours is not read at once."""
    before: deque[str] = deque(maxlen=3)
    with log.open(errors="replace") as lines:
        for line in lines:
            if "Traceback" in line:
                return "".join([*before, line, *islice(lines, 60)])
            before.append(line)
    return ""


# ---------------------------------------------------------------------- the whole


def _process(site: Site, plan: Plan, log_name: str) -> AbstractContextManager[Process]:
    """Admin paths are served by `quire bookie` only."""
    if plan.http:
        return daemon_process("quire", site.conf, site.conf.parent / log_name, "bookie")
    return bookie_process(site.conf, log_name=log_name)


async def fuzz_bookie(
    folder: Path, plan: Plan, tell: Callable[[str], None] = lambda line: None
) -> Figures:
    """Attack a fresh bookie; raises whatever it finds wrong."""
    site, entrance, http_port = await prepared(folder, plan)
    figures = Figures()
    begun = time.monotonic()
    with _process(site, plan, "bookie.log") as bookie:
        before = descriptors(bookie.pid)
        async with neighbour(site.port, entrance) as client, trio.open_nursery() as nursery:
            is_over = trio.Event()
            nursery.start_soon(behave, client, figures, is_over)
            nursery.start_soon(watch, bookie.pid, figures, plan, tell, is_over)
            rng = random.Random(plan.seed)
            attack = Attack(site.port, plan, entrance, figures, rng)
            bursts = hostile_bursts(rng)
            for _ in range(HTTP_ATTACKERS if plan.http else 0):
                nursery.start_soon(attack.run_http, http_port, hostile_http(rng), is_over)
            async with trio.open_nursery() as attackers:
                for _ in range(ATTACKERS):
                    attackers.start_soon(attack.run, bursts)
            is_over.set()
        figures.memory_peak_mib = memory_mib(bookie.pid)
        figures.seconds = time.monotonic() - begun
        tell("the attack is over; is everything as it was?")
        assert figures.memory_peak_mib < MEMORY_MIB_MAX
        figures.memory.check()
        with trio.fail_after(HANGS_SECONDS):
            while descriptors(bookie.pid) > before + OPEN_LOGS:  # noqa: ASYNC110
                await trio.sleep(0.1)
        assert await stop(bookie) == 0
        assert not (found := first_traceback(bookie.log)), found
    with _process(site, plan, "again.log") as bookie:
        async with neighbour(site.port, entrance) as client:
            for number in range(figures.rounds):
                await check_round(client, number)
        assert await stop(bookie) == 0
    return figures


def run_live(plan: Plan) -> int:
    with tempfile.TemporaryDirectory(prefix="quire-fuzz-") as folder:
        figures = trio.run(fuzz_bookie, Path(folder), plan, _say)
    print("\n".join(figures.lines()))
    return 0


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)
