"""A real bookie under hostile frames, beside a client that behaves.

Captured requests of both versions and batches are changed and sent in bursts; each burst ends with
something that ends its connection. Meanwhile a neighbour adds and reads what
it added, byte for byte. At the end the bookie still lives, has logged no traceback, has its
descriptors back, holds no more memory than it may, and stops and starts again with everything
that it promised the neighbour.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import trio

from tests.bookie_server.live import bookie_process
from tests.bookie_server.live_clients import HANGS_SECONDS, LiveClient, connected
from tests.bookie_server.live_site import Site, memory_mib, stop
from tests.bookie_server.world import entry_of
from tests.fuzz.target import mutations
from tests.fuzz.targets_wire import TARGETS
from tests.support.zookeeper import opened_store, shared_zookeeper
from tests.wire.v2 import load, probes
from wire import codec_v2, codec_v3
from wire.errors import ProtocolError, Status

ATTACKERS = 32
BURST = 100
POOL = 20_000
WATCH_SECONDS = 15.0
#: The neighbour's ledger: no captured frame names it, and it has a key of its own.
LEDGER_ID = 0x5EED_0000_0001
MEMORY_MIB_MAX = 400
#: Descriptors that a bookie may have gained by itself: entry logs, journal files, the index.
OPEN_LOGS = 40


@dataclass
class Figures:
    frames: int = 0
    connections: int = 0
    answer_bytes: int = 0
    rounds: int = 0  # of the neighbour: 50 entries added and read
    memory_mib: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        yield f"{self.frames:,} hostile frames over {self.connections:,} connections"
        yield f"{self.answer_bytes:,} bytes of answers to them, in {self.seconds:.0f} s"
        yield f"{self.rounds * 50:,} entries added and read by the neighbour, all as written"
        yield "memory in MiB: " + " ".join(f"{mib:.0f}" for mib in self.memory_mib)


class Pool:
    """Frames of one version that the bookie has to understand, ever renewed by changing them.

    Whatever ends its connection hides the frames behind it. So it stands at the end of a burst.
    """

    def __init__(self, seeds: list[bytes], decode: Callable[[bytes], object]) -> None:
        self._seeds = seeds
        self._decode = decode
        self._frames = list(seeds)
        self._endings = [sent for sent in probes().values() if len(sent) <= 4096]

    def burst(self, rng: random.Random) -> bytes:
        for data in mutations(
            [*self._seeds, *rng.choices(self._frames, k=50)], 20, rng.randbytes(8)
        ):
            frame = max(0, len(data) - 4).to_bytes(4, "big") + data[4:]
            if _ends(self._decode, frame):
                self._endings[rng.randrange(len(self._endings))] = rng.choice((data, frame))
            elif len(frame) <= 4096:
                self._keep(frame, rng)
        return b"".join(rng.choices(self._frames, k=BURST)) + rng.choice(self._endings)

    def _keep(self, frame: bytes, rng: random.Random) -> None:
        if len(self._frames) < POOL:
            self._frames.append(frame)
        else:
            self._frames[rng.randrange(POOL)] = frame


def hostile_bursts(rng: random.Random) -> Iterator[bytes]:
    """Without end; of one version each, as a connection speaks only one."""
    v2 = Pool([*_requests("wire-v2.json"), *TARGETS[2].seeds()], codec_v2.decode_request)
    v3 = Pool(_requests("wire-v3.json"), codec_v3.decode_request)
    while True:
        yield v2.burst(rng)
        yield v3.burst(rng)


def _requests(name: str) -> list[bytes]:
    found = (v["frame_hex"] for v in load(name) if v["direction"] == "request")
    return [bytes.fromhex(text) for text in dict.fromkeys(found) if len(text) < 4096]


def _ends(decode: Callable[[bytes], object], frame: bytes) -> bool:
    try:
        decode(frame[4:])
    except ProtocolError:
        return True
    return False


async def attack(port: int, bursts: Iterator[bytes], count: int, figures: Figures) -> None:
    """Send so many frames, a burst a connection; whatever comes back is only counted."""
    while figures.frames < count:
        burst = next(bursts)
        figures.frames += BURST
        figures.connections += 1
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            try:
                await stream.send_all(burst)
                await stream.send_eof()
                # Long polls among them are answered at the end of the connection.
                with trio.move_on_after(HANGS_SECONDS):
                    while answer := await stream.receive_some(1 << 16):
                        figures.answer_bytes += len(answer)
            except trio.BrokenResourceError:
                pass  # thrown out, as it should be


async def behave(client: LiveClient, figures: Figures, is_over: trio.Event) -> None:
    """Add and read; every answer is the right one."""
    while not is_over.is_set():
        ids = range(figures.rounds * 50, figures.rounds * 50 + 50)
        payload = b"round %d " % figures.rounds * 20
        assert await client.add(LEDGER_ID, ids, payload) == {Status.OK}
        await check_round(client, ids, payload)
        figures.rounds += 1


async def check_round(client: LiveClient, ids: range, payload: bytes) -> None:
    found = await client.read(LEDGER_ID, ids)
    assert found == {entry_id: entry_of(LEDGER_ID, entry_id, payload) for entry_id in ids}


async def watch(
    pid: int, figures: Figures, tell: Callable[[str], None], is_over: trio.Event
) -> None:
    """Now and then, note the memory and say how far it is."""
    every = WATCH_SECONDS
    while not is_over.is_set():
        figures.memory_mib.append(memory_mib(pid))
        tell(
            f"{figures.frames:,} frames, {figures.rounds * 50:,} entries of the neighbour, "
            f"{figures.memory_mib[-1]:.0f} MiB"
        )
        with trio.move_on_after(every):
            await is_over.wait()


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def fuzz_bookie(
    folder: Path, count: int, seed: int, tell: Callable[[str], None] = lambda line: None
) -> Figures:
    """Attack a fresh bookie with so many frames; raises whatever it finds wrong."""
    site = Site(folder, shared_zookeeper().address)
    async with opened_store() as store:
        await site.initialise(store)
    figures = Figures()
    begun = time.monotonic()
    with bookie_process(site.conf) as bookie:
        before = descriptors(bookie.pid)
        async with (
            connected(site.port, patience=math.inf) as client,
            trio.open_nursery() as nursery,
        ):
            is_over = trio.Event()
            nursery.start_soon(behave, client, figures, is_over)
            nursery.start_soon(watch, bookie.pid, figures, tell, is_over)
            bursts = hostile_bursts(random.Random(seed))
            async with trio.open_nursery() as attackers:
                for _ in range(ATTACKERS):
                    attackers.start_soon(attack, site.port, bursts, count, figures)
            is_over.set()
        figures.memory_mib.append(memory_mib(bookie.pid))
        assert figures.memory_mib[-1] < MEMORY_MIB_MAX
        with trio.fail_after(HANGS_SECONDS):
            while descriptors(bookie.pid) > before + OPEN_LOGS:  # noqa: ASYNC110
                await trio.sleep(0.1)
        assert await stop(bookie) == 0
        assert "Traceback" not in bookie.log.read_text()
    figures.seconds = time.monotonic() - begun
    with bookie_process(site.conf, log_name="again.log") as bookie:
        async with connected(site.port, patience=math.inf) as client:
            for number in range(figures.rounds):
                ids = range(number * 50, number * 50 + 50)
                await check_round(client, ids, b"round %d " % number * 20)
        assert await stop(bookie) == 0
    return figures


def run_live(count: int, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="quire-fuzz-") as folder:
        figures = trio.run(fuzz_bookie, Path(folder), count, seed, print)
    print("\n".join(figures.lines()))
    return 0
