"""Load by our client, in a process of its own: `python -m bench.peers.our_load`.

A line on standard input is a command, `name key=value ...`; a line of JSON on standard output is
its answer. The Java twin is `bench/java/Load.java`: the same commands, the same keys, the same
figures. An entry counts as outstanding from its append to its confirmation, there and here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Final

import trio

from ledger_client import LedgerClient, LedgerError, LedgerWriter

PASSWORD: Final = b"secret"
_AT_ONCE: Final = 32

Given = dict[str, str]
Answer = dict[str, float]


@dataclass
class Load:
    stack: AsyncExitStack
    clients: dict[tuple[str, str], LedgerClient] = field(default_factory=dict)
    #: Around what is timed, for somebody who watches: making and closing ledgers is not in it.
    watch: Callable[[], AbstractContextManager[None]] = nullcontext

    async def client(self, given: Given, role: str) -> LedgerClient:
        """The same role always gets the same client, with connections of its own."""
        key = (given["uri"], role)
        if key not in self.clients:
            self.clients[key] = await self.stack.enter_async_context(LedgerClient(given["uri"]))
        return self.clients[key]

    async def create(self, given: Given) -> LedgerWriter:
        ensemble, write, ack = map(int, given.get("shape", "3-3-2").split("-"))
        client = await self.client(given, "writer")
        return await client.create(
            ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, password=PASSWORD
        )

    async def add(self, given: Given) -> Answer:
        """Adds to one or many ledgers in turn, so many outstanding, for a time or up to a count."""
        writers: list[LedgerWriter] = []
        await self.client(given, "writer")  # here, since it belongs to the task that opens it

        async def create(number: int) -> None:
            writers.append(await self.create(given))

        await for_each(int(given.get("ledgers", "1")), create)
        turn = _Turn(
            payload=bytes(int(given["size"])),
            left=float(given.get("entries", "inf")),
            until=time.perf_counter() + float(given.get("seconds", "inf")),
        )
        # Two tasks take turns, so that one fills the pipe while the other waits.
        share = max(1, int(given["outstanding"]) // 2)
        cpu, start = time.process_time(), time.perf_counter()
        with self.watch():
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    if len(writers) == 1:
                        nursery.start_soon(turn.fill_one, writers[0], share)
                    else:
                        nursery.start_soon(turn.fill_many, writers, share)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        await for_each(len(writers), lambda number: writers[number].close())
        return {
            "entries": turn.entries, "seconds": seconds, "cpu_seconds": cpu, "ledger": writers[0].id
        }  # fmt: skip

    async def add_singly(self, given: Given) -> Answer:
        writer = await self.create(given)
        payload = bytes(int(given["size"]))
        took: list[float] = []
        until = time.perf_counter() + float(given["seconds"])
        with self.watch():
            while (before := time.perf_counter()) < until:
                await writer.append(payload)
                took.append(time.perf_counter() - before)
        await writer.close()
        return _times(took)

    async def read(self, given: Given) -> Answer:
        """From the first entry to the last, again and again, for a time."""
        client = await self.client(given, "reader")
        reader = await client.open(int(given["ledger"]), password=PASSWORD)
        entries = size = 0
        cpu, start = time.process_time(), time.perf_counter()
        until = start + float(given["seconds"])
        with self.watch():
            while time.perf_counter() < until:
                found = reader.read(0, reader.last_confirmed)
                while batch := await found.next_batch():
                    entries += len(batch)
                    size += sum([len(entry.payload) for entry in batch])
        return {
            "entries": entries,
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu,
            "bytes": size,
        }

    async def recover(self, given: Given) -> Answer:
        """Opening ledgers that their writers left open, one after the other."""
        payloads = [bytes(int(given["size"]))] * int(given["entries"])
        writers = [await self.create(given) for _ in range(int(given["ledgers"]))]
        for writer in writers:
            await writer.append_many(payloads)
        client = await self.client(given, "reader")
        took = []
        for writer in writers:
            before = time.perf_counter()
            reader = await client.open(writer.id, password=PASSWORD)
            took.append(time.perf_counter() - before)
            if reader.last_confirmed != len(payloads) - 1:
                raise RuntimeError(f"recovered to {reader.last_confirmed}")
        return _times(took)

    async def tail(self, given: Given) -> Answer:
        """From the call of an append to the entry in the hands of a reader that follows."""
        writer = await self.create(given)
        payload, count = bytes(int(given["size"])), int(given["entries"])
        await writer.append(payload)
        client = await self.client(given, "reader")
        sent: list[float] = []
        took: list[float] = []
        async with trio.open_nursery() as nursery:

            async def follow() -> None:
                tail = await client.tail(writer.id, password=PASSWORD, first=1)
                async for entry in tail:
                    took.append(time.perf_counter() - sent[entry.id - 1])
                    if len(took) == count:
                        await tail.close()
                        return

            nursery.start_soon(follow)
            for _ in range(count):
                await trio.sleep(int(given["pause_ms"]) / 1000)
                sent.append(time.perf_counter())
                await writer.append(payload)
        await writer.close()
        return _times(took)


@dataclass
class _Turn:
    payload: bytes
    left: float
    until: float
    entries: int = 0

    def take(self, share: int) -> int:
        count = int(min(share, self.left)) if time.perf_counter() < self.until else 0
        self.left -= count
        self.entries += count
        return count

    async def fill_one(self, writer: LedgerWriter, share: int) -> None:
        while count := self.take(share):
            await writer.append_many([self.payload] * count)

    async def fill_many(self, writers: list[LedgerWriter], share: int) -> None:
        while count := self.take(share):
            first = self.entries - count
            waits: list[Callable[[], Awaitable[int]]] = [
                writers[number % len(writers)].put(self.payload)
                for number in range(first, first + count)
            ]
            for wait in waits:
                await wait()


async def for_each(count: int, job: Callable[[int], Awaitable[None]]) -> None:
    """A job for each number, some at a time: thousands of ledgers are not made one by one."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await job(number)

    async with trio.open_nursery() as nursery:
        for _ in range(min(count, _AT_ONCE)):
            nursery.start_soon(work)


def _times(took: list[float]) -> Answer:
    ordered = sorted(took)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000

    return {"count": len(ordered), "p50_ms": at(0.5), "p99_ms": at(0.99)}


async def _commands() -> AsyncIterator[tuple[str, Given]]:
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        name, *words = line.split()
        yield name, dict(word.split("=", 1) for word in words)


async def main() -> None:
    async with AsyncExitStack() as stack:
        load = Load(stack)
        async for name, given in _commands():
            try:
                answer = json.dumps(await getattr(load, name)(given))
            except LedgerError as error:
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
                answer = "failed"
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
