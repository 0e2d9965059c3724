"""The clients of the outer ring: a process each, with the real `LedgerClient` inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from ledger_client.client import LedgerClient
from ledger_client.core.commands import Command, Confirm, FailAdds
from ledger_client.errors import DuplicateEntryIdError
from ledger_client.reader import LedgerReader
from ledger_client.writer import LedgerWriter
from tests.simulation.history import ViolationError
from wire.errors import LedgerError

if TYPE_CHECKING:
    from ledger_client.core.writer import Writer
    from tests.simulation.outer.world import OuterWorld

#: Of whoever opens the ledger while faults go on.
ATTEMPTS = 4
PAUSE_SECONDS = 0.5


class ClientProcess(ABC):
    def __init__(self, world: OuterWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.is_done = False
        self._scope = trio.CancelScope()
        world.clients[name] = self

    async def live(self) -> None:
        with self._scope:
            while not self.is_done:
                client = LedgerClient(
                    f"zk://{self.name}/ledgers",
                    network=self.world.network.host(self.name),
                    chance=Random(f"{self.world.plan.seed} {self.name}"),
                )
                try:
                    async with client:
                        await self.work(client)
                except LedgerError as error:  # the store was away
                    self.world.tell(f"{self.name}: {error}")
                    await trio.sleep(PAUSE_SECONDS)

    @abstractmethod
    async def work(self, client: LedgerClient) -> None: ...

    def die(self) -> None:
        if not self.is_done:
            self.world.tell(f"{self.name} dies")
            self.is_dead = True
            self.world.network.crash(self.name, silent=self.world.plan.silent)
            self._scope.cancel()


class WriterProcess(ClientProcess):
    """Creates the ledger, writes as the plan says, closes it or leaves it."""

    def __init__(self, world: OuterWorld) -> None:
        super().__init__(world, "W")
        self.created = trio.Event()
        self.confirmed = -1
        self.forced = -1
        self.submitted = 0
        self.core: Writer
        self._waiting = 0

    async def work(self, client: LedgerClient) -> None:
        if self.created.is_set():  # it gave up with the handle, and nobody can have it again
            self.is_done = True
            return
        size, write_quorum, ack_quorum = self.world.plan.shape
        writer = await client.create(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            deferred_sync=self.world.plan.deferred_sync,
            given_entry_ids=self.world.plan.given_ids,
        )
        self.core = writer._core
        self._listen_to(writer)
        self.world.on_created(writer.id)
        self.created.set()
        await self.world.begun.wait()
        async with trio.open_nursery() as nursery:
            await self._write(writer, nursery)
        if self.world.plan.closes:
            await self._close(writer)
        self.is_done = True
        if self._waiting:
            await trio.sleep_forever()

    def _listen_to(self, writer: LedgerWriter) -> None:
        """What callers are told, in the order in which they are told."""
        obey, emit, any_writer = writer._obey, self.world.history.emit, self._any(writer)

        def obeying(commands: list[Command]) -> None:
            for command in commands:
                obey([command])
                if isinstance(command, Confirm) and command.through > self.confirmed:
                    first, self.confirmed = self.confirmed + 1, command.through
                    self.world.tell(f"W confirms up to {self.confirmed}")
                    emit("acked", first, self.confirmed)
                elif isinstance(command, FailAdds):
                    self.world.tell(f"W fails: {command.failure.message}")
                    emit("writer_failed")

        any_writer._obey = obeying

    @staticmethod
    def _any(writer: LedgerWriter) -> Any:
        return writer

    async def _write(self, writer: LedgerWriter, nursery: trio.Nursery) -> None:
        plan, chance = self.world.plan, self.world.chance
        for _ in range(plan.appends):
            try:
                self._put_some(writer, nursery, chance.randint(1, plan.batch_max))
            except LedgerError as error:
                self.world.tell(f"W cannot append: {type(error).__name__}")
                return
            seconds = plan.tempo * chance.choice((0.0, 0.1, 0.5)) + plan.pace
            await trio.sleep(seconds * chance.random())
            if plan.deferred_sync and chance.random() < 0.4:
                nursery.start_soon(self._force, writer)
        if plan.late:
            await trio.sleep(plan.tempo * (1 + 4 * chance.random()))
            try:
                self._put_some(writer, nursery, 1)
            except LedgerError as error:
                self.world.tell(f"W cannot append any more: {type(error).__name__}")
        if plan.given_ids and chance.random() < 0.5:
            with suppress(LedgerError):  # nobody waits for it: the gap before it stays
                self._put(writer, self.submitted + 1)

    def _put_some(self, writer: LedgerWriter, nursery: trio.Nursery, count: int) -> None:
        """The next ids, in the order of nature or in any."""
        ids = list(range(self.submitted, self.submitted + count))
        if self.world.plan.given_ids:
            self.world.chance.shuffle(ids)
        for entry_id in ids:
            wait = self._put(writer, entry_id)
            nursery.start_soon(self._wait, wait, entry_id)
        self.submitted += count
        if self.world.plan.given_ids and self.world.chance.random() < 0.3:
            taken = self.world.chance.randrange(self.submitted)
            with suppress(DuplicateEntryIdError):
                writer.put(b"another", entry_id=taken)
                raise ViolationError("I3", f"entry {taken} is taken a second time")

    def _put(self, writer: LedgerWriter, entry_id: int) -> Callable[[], Awaitable[int]]:
        payload = self.world.payload_of(entry_id)
        wait = writer.put(payload, entry_id=entry_id if self.world.plan.given_ids else None)
        self.world.history.emit("submitted", entry_id, payload.decode())
        return wait

    async def _wait(self, wait: Callable[[], Awaitable[int]], wanted: int) -> None:
        self._waiting += 1
        try:
            found = await wait()
        except LedgerError:
            pass
        else:
            assert found == wanted, f"the append of entry {wanted} was told {found}"
            assert found <= self.confirmed, f"entry {found} was confirmed to its caller alone"
        self._waiting -= 1

    async def _force(self, writer: LedgerWriter) -> None:
        try:
            through = await writer.force()
        except LedgerError as error:
            self.world.tell(f"W cannot force: {type(error).__name__}")
        else:
            self.forced = max(self.forced, through)
            self.world.tell(f"W has forced up to {through}")
            self.world.history.emit("forced", through)

    async def _close(self, writer: LedgerWriter) -> None:
        self.world.tell("W closes")
        try:
            await writer.close()
        except LedgerError as error:
            self.world.tell(f"W cannot close: {type(error).__name__}")
        else:
            self.world.history.emit("opened", "W", writer.metadata)


class RecoveringProcess(ClientProcess):
    """Opens the ledger with recovery, and reads all of it."""

    def __init__(self, world: OuterWorld, name: str, attempts: int = ATTEMPTS) -> None:
        super().__init__(world, name)
        self.has_opened = False
        self.why = "it hangs"
        self._attempts = attempts

    async def work(self, client: LedgerClient) -> None:
        while not self.is_done:
            self._attempts -= 1
            self.world.tell(f"{self.name} opens the ledger")
            try:
                reader = await client.open(self.world.ledger_id)
                if not self.has_opened:
                    self.has_opened = True
                    self.world.tell(f"{self.name} opened: it ends at {reader.last_confirmed}")
                    self.world.history.emit("opened", self.name, reader.metadata)
                await read_all(self.world, self.name, reader, 0)
                self.is_done = True
            except LedgerError as error:
                self.why = str(error)
                self.world.tell(f"{self.name}: {error}")
                self.is_done = self._attempts <= 0
                await trio.sleep(PAUSE_SECONDS)


class CrowdProcess(ClientProcess):
    """Writes small ledgers of its own, so that bookies have more than one to think of."""

    async def work(self, client: LedgerClient) -> None:
        for _ in range(self.world.plan.crowd):
            try:
                async with await client.create(
                    ensemble_size=1, write_quorum=1, ack_quorum=1
                ) as writer:
                    await writer.append(b"of the crowd")
            except LedgerError as error:
                self.world.tell(f"{self.name}: {type(error).__name__}")
            await trio.sleep(0.1 * self.world.plan.tempo * self.world.chance.random())
        self.is_done = True


class FollowingProcess(ClientProcess):
    """Reads the ledger from its first entry to its end, however many handles that takes."""

    def __init__(self, world: OuterWorld, name: str) -> None:
        super().__init__(world, name)
        self._next = 0
        self._handles = 0

    def _new_handle(self) -> str:
        self._handles += 1
        return f"{self.name}.{self._handles}"


class TailProcess(FollowingProcess):
    """Follows the ledger to its end: entries as they are confirmed."""

    async def work(self, client: LedgerClient) -> None:
        handle = self._new_handle()
        async with await client.tail(self.world.ledger_id, first=self._next) as tail:
            while batch := await tail.next_batch():
                self.world.history.emit("lac_shown", handle, tail.last_confirmed)
                for entry in batch:
                    assert entry.id == self._next, f"{handle}: entry {entry.id}, not {self._next}"
                    self._next = entry.id + 1
                    self.world.history.emit("read", handle, entry.id, entry.payload.decode())
                self.world.tell(f"{handle} has read up to {self._next - 1}")
            self.world.tell(f"{handle} is at the end")
        self.is_done = True


class PollingProcess(FollowingProcess):
    """Asks now and then how far the ledger is, and reads what is new."""

    async def work(self, client: LedgerClient) -> None:
        handle = self._new_handle()
        reader = await client.open_no_recovery(self.world.ledger_id)
        while True:
            self.world.history.emit("lac_shown", handle, reader.last_confirmed)
            self._next = await read_all(self.world, handle, reader, self._next)
            if reader.is_closed and self._next > reader.last_confirmed:
                self.world.tell(f"{handle} is at the end")
                self.is_done = True
                return
            await trio.sleep(self.world.plan.tempo * self.world.chance.random() + 0.01)
            await reader.reread()
            await reader.read_last_confirmed()


async def read_all(world: OuterWorld, handle: str, reader: LedgerReader, first: int) -> int:
    """Read what is confirmed, from `first` on; the entry behind the last one."""
    async for entry in reader.read(first, reader.last_confirmed):
        assert entry.id == first, f"{handle}: entry {entry.id} where {first} was due"
        world.history.emit("read", handle, entry.id, entry.payload.decode())
        first += 1
    if first:
        world.tell(f"{handle} has read up to {first - 1}")
    return first
