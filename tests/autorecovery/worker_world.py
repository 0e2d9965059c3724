"""A cluster in memory for workers: bookies answer after a moment, and every step can be the last.

The metadata store is real, bookies are dictionaries. Each request, to the store or to a bookie, is
a step; `crash_at` names the step at which the worker dies, just before or just after it is done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from autorecovery.config import WorkerConfig
from autorecovery.context import RecoveryContext
from autorecovery.worker import Worker
from ledger_client.core.commands import Outcome
from ledger_client.core.distribution import Distribution
from ledger_client.environment import Access
from ledger_client.requests import Adds, Answer, FenceReads, Question, Reads, Request
from metadata.codec import decode_ledger_metadata
from metadata.faults import Fault
from metadata.faults import Outcome as StoreOutcome
from metadata.faults import Request as StoreRequest
from metadata.model import LedgerMetadata, LedgerState
from metadata.paths import LayoutType, LedgerPaths
from metadata.records import UnderreplicationMark, encode_mark
from metadata.store import ANY_VERSION
from tests.autorecovery.auditor_world import (
    NOW_MS,
    PASSWORD,
    PATHS,
    ROOT,
    AuditWorld,
    FakeBookies,
    bookie,
)
from tests.metadata.places import planted
from wire.batch import RECORD_HEAD_BYTES, split_records
from wire.entry import decode_entry
from wire.errors import CorruptionError, Status
from wire.messages import BookieInfoRequest, BookieInfoResponse, ListEntriesRequest
from wire.types import BookieId, DigestType, LedgerId

__all__ = ["PATHS", "RepairWorld", "bookie", "until"]

ANSWER_SECONDS = 0.001
#: Of simulated time. A worker that is not done by then never will be.
PATIENCE_SECONDS = 3600.0


async def until(is_true: Callable[[], bool]) -> None:
    """Look after every moment of simulated time, and less often the longer it takes."""
    pause = ANSWER_SECONDS / 2
    while not is_true():
        await trio.sleep(pause)
        pause = min(1.0, pause * 1.01)


class SlowBookies(FakeBookies):
    """Answers come after a moment, in the order of asking."""

    def __init__(self, step: Callable[[str], bool]) -> None:
        super().__init__()
        self._step = step
        self.nursery: trio.Nursery | None = None
        self.fenced: set[tuple[BookieId, int]] = set()
        self.refuses: dict[BookieId, Outcome] = {}  # adds only
        self.mute: set[BookieId] = set()
        self.piecemeal: set[BookieId] = set()  # acknowledge adds one by one, and die half way
        self.forgot: set[BookieId] = set()  # deny ledgers of which they have nothing
        self.disk_bytes = 1_000_000
        self.on_request: Callable[[BookieId, Request], None] = lambda bookie_id, request: None

    def ask(self, bookie_id: BookieId, request: Request) -> None:
        assert self.nursery is not None
        self.requests.append((bookie_id, request))
        self.nursery.start_soon(self._answer, bookie_id, request)

    async def _answer(self, bookie_id: BookieId, request: Request) -> None:
        await trio.sleep(ANSWER_SECONDS)
        if self._step(f"{type(request).__name__} before"):
            return
        self.on_request(bookie_id, request)
        answer = self._answered(bookie_id, request)
        if self._step(f"{type(request).__name__} after"):
            return
        if bookie_id in self.mute:
            await trio.sleep(request.seconds)
            answer = Answer(request.request_id, Outcome.TIMEOUT)
        if bookie_id in self.piecemeal and isinstance(request, Adds):
            half = request.entry_ids[: len(request.entry_ids) // 2]
            for entry_id in request.entry_ids[len(half) :]:
                del self.entries[bookie_id][request.ledger_id, entry_id]
            request.sink([Answer(request.request_id, Outcome.OK, half)])
            await trio.sleep(ANSWER_SECONDS)
            answer = Answer(request.request_id, Outcome.NOT_CONNECTED)
        request.sink([answer])

    def _answered(self, bookie_id: BookieId, request: Request) -> Answer:
        stored = self.entries.get(bookie_id)
        if stored is None:
            return Answer(request.request_id, Outcome.NOT_CONNECTED)
        if isinstance(request, Adds):
            if bookie_id in self.refuses:
                return Answer(request.request_id, self.refuses[bookie_id])
            bounds = split_records(request.records, 0, len(request.records))
            for entry_id, start, end in zip(
                request.entry_ids, bounds[:-1], bounds[1:], strict=True
            ):
                body = request.records[start + RECORD_HEAD_BYTES : end]
                stored[request.ledger_id, entry_id] = body
            return Answer(request.request_id, Outcome.OK)
        if isinstance(request, Reads):
            return self._read(stored, request)
        if isinstance(request, FenceReads):
            self.fenced.add((bookie_id, request.ledger_id))
            return self._fence(stored, request)
        assert isinstance(request, Question)
        if isinstance(request.message, BookieInfoRequest):
            return self._space(bookie_id, request.request_id)
        assert isinstance(request.message, ListEntriesRequest)
        if bookie_id in self.forgot:
            known = {ledger for ledger, _ in stored}
            if request.message.ledger_id not in known:
                return Answer(request.request_id, Outcome.NO_SUCH_LEDGER)
        return self._list(stored, request.request_id, request.message)

    def _space(self, bookie_id: BookieId, request_id: int) -> Answer:
        used = sum(map(len, self.entries[bookie_id].values()))
        response = BookieInfoResponse(
            status=Status.OK, total_bytes=self.disk_bytes, free_bytes=self.disk_bytes - used
        )
        return Answer(request_id, Outcome.OK, response)


class RepairWorld(AuditWorld):
    def __init__(self, bookies: int = 4, *, worker: WorkerConfig | None = None) -> None:
        self.steps: list[str] = []
        self._stepped_at: list[float] = []
        self.crash_at: int | None = None
        self.on_step: Callable[[int], None] = lambda number: None
        self.worker_session: int | None = None
        self.store_is_away = False
        self._crash: trio.CancelScope | None = None
        super().__init__(bookies)
        self.bookies = SlowBookies(self._step)
        self.bookies.entries = self.pool.entries
        self.pool = self.bookies
        self.settings = replace(self.settings, worker=worker or WorkerConfig())

    # ------------------------------------------------------------------ steps

    def _step(self, name: str) -> bool:
        """Count a step; whether the worker dies at it."""
        self.steps.append(name)
        self._stepped_at.append(trio.current_time())
        self.on_step(len(self.steps) - 1)
        is_last = len(self.steps) - 1 == self.crash_at
        if is_last and self._crash is not None:
            self._crash.cancel()
        return is_last

    def steps_since(self, moment: float) -> list[str]:
        pairs = zip(self.steps, self._stepped_at, strict=True)
        return [name for name, at in pairs if at >= moment]

    def _faults(self, request: StoreRequest) -> Fault | None:
        if self._step(f"store {request.verb} {request.path}"):
            # Applied, and nobody is told: what has died knows nothing of it.
            return Fault(answer_seconds=PATIENCE_SECONDS)
        if self.store_is_away:
            return Fault(outcome=StoreOutcome.UNAVAILABLE, request_seconds=1.0)
        return self.script(request)

    # ------------------------------------------------------------------ processes

    @asynccontextmanager
    async def context(self, number: int = 9) -> AsyncIterator[RecoveryContext]:
        async with self.context_and_store(number) as (context, _):
            self.bookies.nursery = context.client.nursery
            yield context

    async def work_until(
        self,
        is_done: Callable[[], bool],
        *,
        number: int = 9,
        beside: Work | None = None,
    ) -> Worker:
        """Run a worker until this holds (looked at after every step), or it dies."""
        async with self.context(number) as context:
            worker = Worker(context)
            self.worker_session = context.store.session
            self.steps.clear()  # those of the start count for nothing
            self._stepped_at.clear()
            with trio.move_on_after(PATIENCE_SECONDS) as patience:
                async with trio.open_nursery() as nursery:
                    self._crash = nursery.cancel_scope
                    nursery.start_soon(worker.run)
                    if beside is not None:
                        nursery.start_soon(beside, context)
                    await until(is_done)
                    nursery.cancel_scope.cancel()
            self._crash = None
            self.worker_session = None
            assert not patience.cancelled_caught, f"never done; last steps {self.steps[-20:]}"
        await self.close(context)
        return worker

    async def close(self, context: RecoveryContext) -> None:
        """The process ends: its session, and its locks with it."""
        with trio.CancelScope(shield=True):
            await context.store.close()

    async def heal(self, *, number: int = 9) -> Worker:
        """Run a worker until no mark is left."""
        return await self.work_until(lambda: not self.marked(), number=number)

    async def second_worker(self, number: int) -> None:
        """Another worker, with a session of its own, until cancelled."""
        async with self.context_and_store(number) as (context, store):
            try:
                await Worker(context).run()
            finally:
                with trio.CancelScope(shield=True):
                    await store.close()

    def mark(self, ledger_id: int, missing: Iterable[BookieId]) -> None:
        path = PATHS.mark(LedgerId(ledger_id))
        if self.metadata.tree.find(path) is not None:
            self.metadata.tree.delete(path, ANY_VERSION)
        planted(self.metadata, [path], encode_mark(UnderreplicationMark(tuple(missing), NOW_MS)))

    # ------------------------------------------------------------------ looking

    def record_path(self, ledger_id: int) -> str:
        return LedgerPaths(ROOT, LayoutType.HIERARCHICAL).path_of(LedgerId(ledger_id))

    def record(self, ledger_id: int) -> LedgerMetadata:
        path = self.record_path(ledger_id)
        return decode_ledger_metadata(
            self.metadata.tree.get(path).data, ledger_id=LedgerId(ledger_id)
        )

    def incomplete(self, ledger_id: int, *, present_only: bool = True) -> list[str]:
        """Copies that the record promises and that are not there, by living bookies."""
        metadata = self.record(ledger_id)
        shape = Distribution.of(metadata)
        alive = self.alive()
        wrong: list[str] = []
        for found in metadata.ranges():
            last = found.last_entry_id
            if last is None:
                continue
            for slot, name in enumerate(found.fragment.ensemble):
                if present_only and name not in alive:
                    continue
                ids = shape.entries_of(slot=slot, first=found.fragment.first_entry_id, last=last)
                wrong += [
                    f"entry {entry_id} on {name}"
                    for entry_id in ids
                    if not self.has(name, ledger_id, entry_id)
                ]
        return wrong

    def alive(self) -> set[BookieId]:
        tree = self.metadata.tree
        writable = set(tree.get(PATHS.available).children) - {"readonly"}
        return {BookieId(name) for name in writable | set(tree.get(PATHS.readonly).children)}

    def has(self, name: BookieId, ledger_id: int, entry_id: int) -> bool:
        body = self.pool.entries.get(name, {}).get((LedgerId(ledger_id), entry_id))
        if body is None:
            return False
        access = Access.of(LedgerId(ledger_id), DigestType.CRC32C, PASSWORD)
        try:
            decode_entry(body, ledger_id=ledger_id, entry_id=entry_id, digest=access.digest)
        except CorruptionError:
            return False
        return True

    def is_whole(self, ledger_id: int) -> bool:
        """Whether all named bookies are alive and hold what they must."""
        metadata = self.record(ledger_id)
        return (
            metadata.state is LedgerState.CLOSED
            and metadata.bookies() <= self.alive()
            and not self.incomplete(ledger_id)
        )


Work = Callable[[RecoveryContext], Awaitable[None]]
