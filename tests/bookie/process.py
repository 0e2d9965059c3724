"""A bookie's storage in a process of its own, to be killed: real files, RocksDB and threads.

Each life is a fork of a process that has everything imported. It gets one line of JSON (an
`Order`): where the directories are and what must be in them. It opens the store, checks, and then
adds until it dies. It tells what it does, one short line each, in capital letters what is certain:

    S                      opening begins
    O replayed             the store is open
    C entries              everything that must be here is here
    X text                 it is not, or something else went wrong
    a ledger first last    about to add these entries      A ...   they are acknowledged
    f ledger               about to fence                  F ...   acknowledged
    l ledger lac           about to set the explicit LAC   L ...   acknowledged
    Q                      stopped cleanly

What an entry holds follows from its ledger and id alone, so the checker needs no copy.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

import trio

from bookie.storage.engine import Engine
from bookie.storage.engine_values import EngineCallbacks, EngineOptions
from bookie.storage.index import IndexOptions, open_index
from bookie.storage.journal_format import JournalError
from bookie.storage.journal_options import JournalOptions
from bookie.storage.reads import Cold
from bookie.storage.start import Shell, Store, StoreOptions, open_store
from runtime.files import OSFileSystem
from runtime.workers import ThreadWorkers
from tests.bookie.machine import KEY, entry_of
from wire.batch import encode_batch, join_records
from wire.build_v2 import add_requests
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.scan_v2 import AddBatch, AddRun, scan_requests
from wire.types import Flag

LEDGERS_OPEN: Final = 6
COMMITS_OUTSTANDING: Final = 6
_LONG_KEY: Final = b"a key of another length than twenty bytes"


@dataclass
class LedgerOrder:
    """What the parent knows of one ledger."""

    ledger_id: int
    check: list[tuple[int, int]]  # ranges of entries to look at now, all of them acknowledged
    acknowledged: int = -1  # the highest
    asked: int = -1  # the highest that may be there
    fenced: bool = False
    fence_asked: bool = False
    lac: int = -1  # the explicit one, acknowledged
    lac_asked: int = -1

    @property
    def is_known(self) -> bool:
        """Whether the bookie has acknowledged anything about it."""
        return self.acknowledged >= 0 or self.fenced or self.lac >= 0


@dataclass
class Order:
    journals: list[str]
    directories: list[str]
    seed: int
    ledgers: list[LedgerOrder] = field(default_factory=list)
    commits: int = 0  # stop cleanly after this many; 0: never

    def encode(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def decode_order(text: str) -> Order:
    order = Order(**json.loads(text))
    order.ledgers = [LedgerOrder(**ledger) for ledger in order.ledgers]  # type: ignore[arg-type]
    return order


def key_of(ledger_id: int) -> bytes:
    return _LONG_KEY if ledger_id % 5 == 4 else KEY


def entry_for(ledger_id: int, entry_id: int) -> bytes:
    """The entry with this id: mostly small, now and then of some pages."""
    text = f"{ledger_id}/{entry_id} ".encode()
    size = 9000 if entry_id % 101 == 100 else (ledger_id * 31 + entry_id * 17) % 400
    return entry_of(ledger_id, entry_id, (text * (size // len(text) + 1))[:size], lac=entry_id - 1)


def lac_body(ledger_id: int, lac: int) -> bytes:
    return ledger_id.to_bytes(8, "big") + lac.to_bytes(8, "big") + b"with a digest"


#: So small that generations, logs and journal files turn over several times in one life.
OPTIONS: Final = StoreOptions(
    engine=EngineOptions(
        generation_bytes=96 << 10,
        write_cache_bytes=2 << 20,
        read_cache_bytes=1 << 20,
        log_bytes=512 << 10,
        ledgers_in_memory=16,
        flush_interval_seconds=0.05,
        reader_count=1,
    ),
    journal=JournalOptions(file_bytes=512 << 10, payload_bytes_max=128 << 10),
)
SMALL_INDEX: Final = IndexOptions(
    write_buffer_bytes=64 << 10, block_cache_bytes=1 << 20, background_jobs=1
)


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")  # at once, and whole: shorter than a pipe's atomic size


class WrongError(Exception):
    """The store does not hold what it promised."""


class Life:
    """One life of the bookie."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.random = random.Random(order.seed)
        self.workers = ThreadWorkers()
        self.outstanding = 0
        self.room = trio.Event()
        self.store: Store | None = None
        self.next_ids = {
            ledger.ledger_id: ledger.acknowledged + 1
            for ledger in order.ledgers
            if not (ledger.fenced or ledger.fence_asked)
        }
        self.fenced = [ledger.ledger_id for ledger in order.ledgers if ledger.fenced]
        self.lacs = {ledger.ledger_id: ledger.lac_asked for ledger in order.ledgers}
        self.recovered = {ledger.ledger_id: ledger.acknowledged for ledger in order.ledgers}
        self.last_id = max((ledger.ledger_id for ledger in order.ledgers), default=0)

    @property
    def engine(self) -> Engine:
        assert self.store is not None
        return self.store.engine

    def open(self) -> None:
        tell("S")
        shell = Shell(
            files=OSFileSystem(),
            open_index=partial(open_index, options=SMALL_INDEX),
            workers=self.workers,
        )
        self.store = open_store(
            self.order.journals,
            self.order.directories,
            shell,
            OPTIONS,
            EngineCallbacks(on_durable=self._on_durable),
            on_journal_failure=_raise,
        )
        tell(f"O {self.store.replayed.entries}")

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.workers.run)
            nursery.start_soon(self._tick)
            count = 0
            for ledger in self.order.ledgers:
                count += await self._check(ledger)
            tell(f"C {count}")
            commits = 0
            while not self.order.commits or commits < self.order.commits:
                await self._wait_for_room()
                self._do_something()
                commits += 1
            closed = trio.Event()
            self.engine.close(closed.set)
            await closed.wait()
            nursery.cancel_scope.cancel()
        self.workers.stop()
        assert self.store is not None
        self.store.finish_close()
        tell("Q")

    # Checking.

    async def _check(self, ledger: LedgerOrder) -> int:
        ledger_id = ledger.ledger_id
        count = 0
        for first, last in ledger.check:
            for entry_id in range(first, last + 1):
                await self._expect(ledger_id, entry_id, entry_for(ledger_id, entry_id))
                count += 1
        absent = {Status.NO_ENTRY} if ledger.is_known else {Status.NO_ENTRY, Status.NO_LEDGER}
        for entry_id in range(ledger.acknowledged + 1, ledger.asked + 1):
            # Nobody was promised these; but if they are here, they are right.
            await self._expect(ledger_id, entry_id, entry_for(ledger_id, entry_id), *absent)
        await self._expect(ledger_id, ledger.asked + 1, *absent)
        state = self.engine.ledger(ledger_id)
        if (ledger.fenced and not state.fenced) or (state.fenced and not ledger.fence_asked):
            raise WrongError(f"ledger {ledger_id}: fenced is {state.fenced}")
        if ledger.fenced:
            status = self._add_batch(ledger_id, [ledger.asked + 1], flags=0)
            if status is not Status.FENCED:
                raise WrongError(f"fenced ledger {ledger_id} answers an add with {status}")
        body = state.explicit_lac
        lac = -1 if body is None else int.from_bytes(body[8:16], "big")
        whole = body is None or body == lac_body(ledger_id, lac)
        if not (whole and ledger.lac <= lac <= ledger.lac_asked):
            raise WrongError(f"ledger {ledger_id}: explicit LAC is {body!r}, not {ledger.lac}")
        return count

    async def _expect(self, ledger_id: int, entry_id: int, *wanted: bytes | Status) -> None:
        found = await self._read(ledger_id, entry_id)
        if found not in wanted:
            raise WrongError(f"{ledger_id}/{entry_id}: {found!r:.80} is none of {wanted!r:.160}")

    async def _read(self, ledger_id: int, entry_id: int) -> bytes | Status:
        while True:
            found = self.engine.read(ledger_id, entry_id)
            if not isinstance(found, Cold):
                return found
            fetched = trio.Event()
            self.engine.fetch(found, fetched.set)
            await fetched.wait()

    # Working.

    def _do_something(self) -> None:
        roll = self.random.random()
        if len(self.next_ids) < LEDGERS_OPEN:
            self.last_id += 1
            self.next_ids[self.last_id] = 0
        if roll < 0.01 and len(self.next_ids) > 2:
            self._fence(self.random.choice(list(self.next_ids)))
        elif roll < 0.06:
            self._write_lac(self.random.choice(list(self.next_ids)))
        elif roll < 0.08 and self.fenced:
            self._recover(self.random.choice(self.fenced))
        else:
            self._add()

    def _add(self) -> None:
        """What one receive buffer might bring: several ledgers, single frames and batches."""
        told = []
        count = min(self.random.randint(1, 3), len(self.next_ids))
        for ledger_id in self.random.sample(list(self.next_ids), count):
            first = self.next_ids[ledger_id]
            last = first + self.random.choice((0, 0, 1, 3, 15, 60))
            told.append(f"{ledger_id} {first} {last}")
            tell(f"a {told[-1]}")
            status = self._take(ledger_id, range(first, last + 1))
            if status is Status.FENCED:  # a fence that the last life never heard back of
                del self.next_ids[ledger_id]
                told.pop()
                continue
            if status is not Status.OK:
                raise WrongError(f"add to {ledger_id} answered {status}")
            self.next_ids[ledger_id] = last + 1
        self._commit([f"A {line}" for line in told])

    def _take(self, ledger_id: int, ids: Sequence[int]) -> Status:
        key = key_of(ledger_id)
        if len(key) != len(KEY):
            flags = self.random.choice((0, Flag.DEFERRED_SYNC))
            statuses = {
                self.engine.add_entry(
                    ledger_id, entry_id, entry_id - 1, key, entry_for(ledger_id, entry_id), flags
                )
                for entry_id in ids
            }
            [status] = statuses
            return status
        if len(ids) > 1 and self.random.random() < 0.5:
            flags = self.random.choice((0, 0, Flag.DEFERRED_SYNC))
            return self._add_batch(ledger_id, ids, flags=flags)
        frames = FrameBuffer()
        frames.feed(add_requests([entry_for(ledger_id, n) for n in ids], master_key=key))
        for item in scan_requests(frames):
            assert isinstance(item, AddRun)
            status = self.engine.add_run(item)
        return status

    def _add_batch(self, ledger_id: int, ids: Sequence[int], *, flags: int) -> Status:
        key = key_of(ledger_id)
        if len(key) != len(KEY):
            entry = entry_for(ledger_id, ids[0])
            return self.engine.add_entry(ledger_id, ids[0], ids[0] - 1, key, entry, flags)
        frames = FrameBuffer()
        frames.feed(
            encode_batch(
                join_records([entry_for(ledger_id, entry_id) for entry_id in ids]),
                request_id=1,
                ledger_id=ledger_id,
                first_entry_id=ids[0],
                last_entry_id=ids[-1],
                count=len(ids),
                master_key=key,
                flags=flags,
            )
        )
        [item] = scan_requests(frames)
        assert isinstance(item, AddBatch)
        return self.engine.add_batch(item)

    def _fence(self, ledger_id: int) -> None:
        tell(f"f {ledger_id}")
        del self.next_ids[ledger_id]
        token = [f"F {ledger_id}"]
        status, waits = self.engine.fence(ledger_id, key_of(ledger_id), token)
        if status is not Status.OK:
            raise WrongError(f"fence of {ledger_id} answered {status}")
        if waits:
            self.outstanding += 1

    def _write_lac(self, ledger_id: int) -> None:
        lac = self.lacs[ledger_id] = self.lacs.get(ledger_id, -1) + 1
        tell(f"l {ledger_id} {lac}")
        body, token = lac_body(ledger_id, lac), [f"L {ledger_id} {lac}"]
        status = self.engine.write_lac(ledger_id, key_of(ledger_id), body, token)
        if status is not Status.OK:
            raise WrongError(f"explicit LAC of {ledger_id} answered {status}")
        self.outstanding += 1

    def _recover(self, ledger_id: int) -> None:
        """A recovering client adds behind the fence."""
        first = self.recovered[ledger_id] = self.recovered[ledger_id] + 1
        tell(f"a {ledger_id} {first} {first}")
        status = self._add_batch(ledger_id, [first], flags=Flag.RECOVERY_ADD)
        if status is not Status.OK:
            raise WrongError(f"recovery add to {ledger_id} answered {status}")
        self._commit([f"A {ledger_id} {first} {first}"])

    def _commit(self, lines: list[str]) -> None:
        if self.engine.commit(lines):
            self.outstanding += 1

    def _on_durable(self, tokens: Iterable[object]) -> None:
        for token in tokens:
            assert isinstance(token, list)
            tell("\n".join(token))
            self.outstanding -= 1
        self.room.set()

    async def _wait_for_room(self) -> None:
        while self.outstanding >= COMMITS_OUTSTANDING or self.engine.is_full:
            self.room = trio.Event()
            with trio.move_on_after(0.005):
                await self.room.wait()
        await trio.lowlevel.checkpoint()

    async def _tick(self) -> None:
        while True:
            self.engine.tick()
            await trio.sleep(0.005)


def _raise(error: JournalError) -> None:
    raise error


def live(order: Order) -> None:
    life = Life(order)
    try:
        life.open()
        trio.run(life.run)
    except BaseException as error:
        cause = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        tell(f"X {cause!r}"[:4000].replace("\n", " "))
        traceback.print_exc()
        sys.stderr.flush()


def main(commands: socket.socket) -> None:
    """Fork a child for every pair of pipes that comes in; answer with a handle of the child.

    A fork has everything imported, so a life costs what its store costs and not a second more.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        _, pipes, _, _ = socket.recv_fds(commands, 1, 2)
        if not pipes:
            return
        pid = os.fork()
        if not pid:
            os.dup2(pipes[1], 1)
            with open(pipes[0]) as order:
                live(decode_order(order.readline()))
            os._exit(0)  # at once: threads may be waiting for a loop that is gone
        handle = os.pidfd_open(pid)
        socket.send_fds(commands, [b"."], [handle])
        for descriptor in (handle, *pipes):
            os.close(descriptor)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _commands:
        main(_commands)
