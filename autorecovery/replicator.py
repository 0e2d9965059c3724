"""Copying entries between bookies: the shell around `core/copying.py`.

Entries are read in batches, verified, and sent on as the bytes that came: an entry names its ledger
and its id, so a copy is as good as the original, and nothing has to be packaged again. Adds carry
the recovery flag, since the ledger may be fenced at the target, and no priority, since writers
come first.

All copies of a process share one `Throttle`: what they may hold in memory, how many bytes per
second they may move, and how much each target is given at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappush
from itertools import count
from typing import Final

import trio

from autorecovery.core.copying import PIECE_BYTES, AddPiece, Command, Copy, ReadPiece
from autorecovery.core.copying_pace import Pace, Rate
from autorecovery.core.fragments import CopyJob, Run
from autorecovery.worker_statistics import WorkerStatistics
from ledger_client.core.commands import Outcome
from ledger_client.environment import Access, Environment
from ledger_client.errors import ClientClosedError
from ledger_client.requests import Adds, Answer, FoundEntries, Mailbox, Reads
from wire.batch import join_records
from wire.entry import decode_entries
from wire.types import BookieId, Flag

#: Entries that are in memory at a time, of all copies together.
IN_FLIGHT_BYTES_MAX: Final = 24 * 1024 * 1024
#: What a batch read may bring at most. Batches aim at less; entries may be larger than thought.
_READ_BYTES_MAX: Final = 4 * PIECE_BYTES
#: Longer than a client's patience: a target that is slow with us may be right to be.
_REQUEST_SECONDS: Final = 15.0

Progress = Callable[[int, int], None]  # entries and bytes that were made durable


class Throttle:
    def __init__(
        self, *, bytes_per_second: int = -1, in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    ) -> None:
        self._rate = Rate(bytes_per_second, now=trio.current_time())
        self._in_flight_bytes_max = in_flight_bytes_max
        self._in_flight_bytes = 0
        self._paces: dict[BookieId, Pace] = {}
        self._queues: dict[frozenset[BookieId], list[tuple[int, trio.Event]]] = {}
        self._released = trio.Event()

    def pace(self, bookie_id: BookieId) -> Pace:
        pace = self._paces.get(bookie_id)
        if pace is None:
            pace = self._paces[bookie_id] = Pace()
        return pace

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    def has_room(self, targets: Collection[BookieId], size: int) -> bool:
        """Whether a piece of this size may be read for these targets now."""
        now = trio.current_time()
        if self._rate.wait_seconds(now) > 0:
            return False
        if self._in_flight_bytes and self._in_flight_bytes + size > self._in_flight_bytes_max:
            return False
        return all(self.pace(target).has_room(size, now) for target in targets)

    def take(self, targets: Collection[BookieId], size: int) -> None:
        self._in_flight_bytes += size
        for target in targets:
            self.pace(target).sent(size)

    def give_back(
        self, targets: Collection[BookieId], size: int, *, seconds: float | None = None
    ) -> None:
        """`seconds`: how long a target took to make it durable; None if that is not known."""
        self._in_flight_bytes -= size
        now = trio.current_time()
        for target in targets:
            if seconds is None:
                self.pace(target).forgotten(size)
            else:
                self.pace(target).answered(size, seconds=seconds, now=now)
        self._released.set()
        self._released = trio.Event()

    def spend(self, size: int) -> None:
        self._rate.spend(size, now=trio.current_time())

    def next_room_at(self, targets: Collection[BookieId]) -> float | None:
        """When rate and pauses allow another piece; None if it is not these that are waited for."""
        now = trio.current_time()
        at = now + self._rate.wait_seconds(now)
        for target in targets:
            at = max(at, self.pace(target).resume_at)
        return at if at > now else None

    async def wait_room(self, order: int, targets: Collection[BookieId], size: int) -> None:
        """Until a piece may be read for these targets, copies with a low `order` first.

        Of all that wait for the same targets only the first looks whenever something changes, and
        what was begun first ends first.
        """
        name, turn = frozenset(targets), trio.Event()
        queue = self._queues.setdefault(name, [])
        heappush(queue, (order, turn))
        try:
            if queue[0][1] is not turn:
                await turn.wait()
            while not self.has_room(targets, size):
                released = self._released
                at = self.next_room_at(targets)
                with trio.move_on_at(trio.current_time() + 1.0 if at is None else at):
                    await released.wait()
        finally:
            queue.remove((order, turn))
            heapify(queue)
            if queue:
                queue[0][1].set()
            else:
                del self._queues[name]


@dataclass(slots=True)
class _Open:
    """What a request on its way has taken of the throttle."""

    targets: Collection[BookieId]
    size: int
    sent_at: float
    entry_ids: range
    is_add: bool


@dataclass(slots=True)
class _Running:
    """One copy with everything that it has on its way."""

    order: int  # of beginning
    core: Copy
    access: Access
    mail: Mailbox = field(default_factory=Mailbox)
    open: dict[int, _Open] = field(default_factory=dict)
    delayed: list[tuple[float, AddPiece]] = field(default_factory=list)


class Replicator:
    def __init__(
        self, client: Environment, throttle: Throttle, statistics: WorkerStatistics | None = None
    ) -> None:
        self.client = client
        self.throttle = throttle
        self._statistics = statistics
        self._order = count()

    async def copy(
        self,
        job: CopyJob,
        access: Access,
        *,
        entry_bytes: int | None = None,
        accepted: Sequence[Run] = (),
        progress: Progress | None = None,
    ) -> Copy:
        """Make the copies of a job; what came of it is in the core that is returned.

        Nothing is committed here. Cancelled, it leaves stray copies at most.
        """
        core = Copy(
            job,
            request_ids=self.client.request_ids,
            entry_bytes=entry_bytes,
            accepted=accepted,
        )
        running = _Running(next(self._order), core, access)
        try:
            with self.client.waking(running.mail):
                while not core.is_over and not core.failed:
                    copied = (core.entries_copied, core.bytes_copied)
                    self._begin(running)
                    await self._wait(running)
                    if progress is not None and core.entries_copied > copied[0]:
                        progress(core.entries_copied - copied[0], core.bytes_copied - copied[1])
        finally:
            for left in running.open.values():
                self.throttle.give_back(left.targets, left.size)
        return core

    # ------------------------------------------------------------------ asking

    def _begin(self, running: _Running) -> None:
        """Read as many pieces ahead as there is room for."""
        core = running.core
        targets = list(core.targets.values())
        while core.has_more and self.throttle.has_room(targets, core.next_bytes):
            self._obey(running, core.begin())

    def _obey(self, running: _Running, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, ReadPiece):
                self._read(running, command)
            elif command.delay_seconds > 0:
                at = trio.current_time() + command.delay_seconds
                running.delayed.append((at, command))
            else:
                self._add(running, command)

    def _read(self, running: _Running, command: ReadPiece) -> None:
        core = running.core
        targets, size = list(core.targets.values()), core.next_bytes
        self._open(running, command.request_id, targets, size, command.entry_ids, is_add=False)
        # Paid when asked for, and set right when it is here: windows are wider than most rates.
        self.throttle.spend(size)
        request = Reads(
            request_id=command.request_id,
            sink=running.mail.take,
            seconds=_REQUEST_SECONDS,
            ledger_id=running.access.ledger_id,
            entry_ids=command.entry_ids,
            bytes_max=_READ_BYTES_MAX,
        )
        self.client.pool.ask(command.bookie_id, request)

    def _add(self, running: _Running, command: AddPiece) -> None:
        targets, size = [command.bookie_id], len(command.records)
        self._open(running, command.request_id, targets, size, command.entry_ids, is_add=True)
        request = Adds(
            request_id=command.request_id,
            sink=running.mail.take,
            seconds=_REQUEST_SECONDS,
            ledger_id=running.access.ledger_id,
            entry_ids=command.entry_ids,
            records=command.records,
            master_key=running.access.master_key,
            flags=Flag.RECOVERY_ADD,
        )
        self.client.pool.ask(command.bookie_id, request)

    def _open(
        self,
        running: _Running,
        request_id: int,
        targets: Collection[BookieId],
        size: int,
        entry_ids: range,
        *,
        is_add: bool,
    ) -> None:
        self.throttle.take(targets, size)
        now = trio.current_time()
        running.open[request_id] = _Open(targets, size, now, entry_ids, is_add)

    # ------------------------------------------------------------------ answers

    async def _wait(self, running: _Running) -> None:
        core = running.core
        targets = list(core.targets.values())
        if not running.open and not running.delayed:
            if core.has_more:
                await self.throttle.wait_room(running.order, targets, core.next_bytes)
            return
        deadlines = [at for at, _ in running.delayed]
        if core.has_more and (at := self.throttle.next_room_at(targets)) is not None:
            deadlines.append(at)
        for answer in await running.mail.wait(min(deadlines, default=None)):
            self._take(running, answer)
        if running.mail.is_closed:
            raise ClientClosedError(
                f"ledger {running.access.ledger_id}: the client was closed while it was copied"
            )
        now = trio.current_time()
        due = [command for at, command in running.delayed if at <= now]
        running.delayed = [(at, command) for at, command in running.delayed if at > now]
        for command in due:
            self._add(running, command)

    def _take(self, running: _Running, answer: Answer) -> None:
        core, opened = running.core, running.open[answer.request_id]
        if not opened.is_add:
            self._close(running, answer.request_id)
            outcome, good, records = _verified(running.access, opened.entry_ids, answer)
            if self._statistics is not None:
                self._statistics.on_read(trio.current_time() - opened.sent_at, len(records))
            self.throttle.spend(len(records) - opened.size)
            self._obey(
                running, core.on_read(answer.request_id, outcome, good=good, records=records)
            )
            return
        ids = answer.content
        confirmed = len(ids) if isinstance(ids, Sequence) else None
        commands = core.on_add(answer.request_id, answer.outcome, confirmed=confirmed)
        if not core.is_open(answer.request_id):
            is_timed = answer.outcome is Outcome.OK
            if self._statistics is not None:
                seconds = trio.current_time() - opened.sent_at
                self._statistics.on_write(seconds, opened.size, is_ok=is_timed)
            self._close(running, answer.request_id, is_timed=is_timed)
        self._obey(running, commands)

    def _close(self, running: _Running, request_id: int, *, is_timed: bool = False) -> None:
        opened = running.open.pop(request_id)
        seconds = trio.current_time() - opened.sent_at if is_timed else None
        self.throttle.give_back(opened.targets, opened.size, seconds=seconds)


def _verified(access: Access, entry_ids: range, answer: Answer) -> tuple[Outcome, int, bytes]:
    """How the answer ends, how many good entries it begins with, and these as records."""
    found, outcome = answer.content, answer.outcome
    if not isinstance(found, FoundEntries) or not found.entries:
        return outcome, 0, b""
    count = min(found.entries, len(entry_ids))
    bounds = found.bounds[: count + 1]
    entries = decode_entries(
        found.data,
        bounds,
        found.skip,
        ledger_id=access.ledger_id,
        entry_ids=entry_ids[:count],
        digest=access.digest,
    )
    good = len(entries.payloads)
    if entries.error is not None:
        outcome = Outcome.CORRUPT
    if found.skip:  # a run of records already
        return outcome, good, found.data[bounds[0] : bounds[good]]
    bodies = [found.data[bounds[i] : bounds[i + 1]] for i in range(good)]
    return outcome, good, join_records(bodies) if bodies else b""
