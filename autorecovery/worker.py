"""The worker: takes marked ledgers, restores their copies, deletes the marks.

Several ledgers are in work at a time; they share one budget of bytes. A ledger that cannot be
repaired now is put back with its mark and looked at again later, each time after a longer pause, or
as soon as a bookie has come. No lock is held while nothing is done: the pauses are this process's
own, and others may try meanwhile.

Nothing here is trusted to finish. A worker may die, lose its session or be cancelled at any await;
the mark outlives it, and what it has not committed is garbage.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import trio

from autorecovery.context import RecoveryContext
from autorecovery.core.fragments import find_damage
from autorecovery.core.fragments_waiting import Absences, Deferrals, Grace
from autorecovery.core.parking import Parked, Reason, Verdict
from autorecovery.gone import judged_by_cookies
from autorecovery.replicator import Replicator, Throttle
from autorecovery.worker_batch import BATCH_LEDGERS, Batch, BatchResult
from autorecovery.worker_placement import is_asked_for, relocate
from autorecovery.worker_repair import Ending, LedgerRepair, Order, RepairResult, access_of
from autorecovery.worker_statistics import WorkerStatistics
from ledger_client.errors import NotEnoughBookiesError, RecoveryError, UnreadableEntryError
from ledger_client.recovery import LedgerRecovery
from metadata.model import LedgerMetadata
from metadata.paths import ClusterPaths
from metadata.store import SessionExpiredError, StoreUnavailableError
from metadata.underreplication import Lock
from metadata.update import LedgerGoneError, VersionedLedger
from runtime import logs
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId

_log = logs.get("autorecovery.worker")

#: Ledgers in work at a time. Small ones cost round trips to the metadata store, not bytes.
LEDGERS_AT_ONCE: Final = 64
#: Of these, open ones that are being recovered. Each reads and writes megabytes ahead, entry by
#: entry: more of them make bookies too slow to answer any of them in time.
RECOVERIES_AT_ONCE: Final = 4
#: Marks that one look at the lists brings; those that are not due are among them.
_SAMPLE_MAX: Final = 20_000
#: Of these, so many are worked on before the lists are looked at again.
_PICKED_MAX: Final = 500
#: At most this long between two looks at the switch that pauses everything.
_SWITCH_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.2
#: Before a ledger is tried again that somebody else had locked.
_TAKEN_SECONDS: Final = 5.0
#: Orders to accept a loss are noticed within this time.
_PARKED_SECONDS: Final = 15.0
#: The first pause after a failure, as a share of the longest: five doublings, as with Apache's.
_FIRST_SHARE: Final = 1 / 32


async def run_worker(context: RecoveryContext) -> None:
    """Repair marked ledgers until cancelled."""
    await Worker(context).run()


class Worker:
    def __init__(self, context: RecoveryContext, *, ledgers_at_once: int = LEDGERS_AT_ONCE) -> None:
        config = context.settings.worker
        self._context = context
        self._marks = context.marks
        self.statistics = WorkerStatistics(context.registry)
        throttle = Throttle(bytes_per_second=config.bytes_per_second)
        self._replicator = Replicator(context.client, throttle, self.statistics)
        now = trio.current_time()
        self._absences = Absences(context.client.bookies().all, now=now)
        self._grace = Grace(config.open_grace_ms / 1000)
        longest = config.failed_lock_ms / 1000
        self._deferrals = Deferrals(first_seconds=longest * _FIRST_SHARE, seconds_max=longest)
        self._parked: dict[LedgerId, Parked] = {}
        self._in_work: set[LedgerId] = set()
        self._room = trio.Semaphore(ledgers_at_once)
        self._recovering = trio.Semaphore(RECOVERIES_AT_ONCE)
        self._woken = trio.Event()
        self._looked_at_switch = -math.inf
        self._next_mark_at = -math.inf

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_bookies)
            nursery.start_soon(self._follow_parked)
            while True:
                try:
                    if not await self._start_some(nursery):
                        await self._wait_for_work()
                except StoreUnavailableError as error:
                    _log.info("waiting for the metadata store", error=error)
                    await trio.sleep(_PAUSE_SECONDS)

    # ------------------------------------------------------------------ picking

    async def _start_some(self, nursery: trio.Nursery) -> int:
        """Begin to repair what is due; how many ledgers."""
        await self._wait_enabled()
        found = await self._marks.sample(_SAMPLE_MAX)
        now = trio.current_time()
        due = [
            ledger_id
            for ledger_id in found
            if ledger_id not in self._in_work and self._deferrals.is_due(ledger_id, now=now)
        ]
        picked = deque(due[:_PICKED_MAX])
        while picked:
            count = await self._wait_room(len(picked))
            some = [picked.popleft() for _ in range(count)]
            self._in_work.update(some)
            if count > 1:
                nursery.start_soon(self._work_on_many, some)
            else:
                nursery.start_soon(self._work_on, some[0])
        return len(due)

    async def _wait_room(self, wanted: int) -> int:
        """How many ledgers may be begun now: as many as there is room for, but not too many."""
        await self._room.acquire()
        count = 1
        try:
            await self._wait_turn()
            await self._wait_enabled()
        except BaseException:
            self._room.release()
            raise
        if self._context.settings.worker.marks_per_second <= 0:
            count = max(1, min(wanted, BATCH_LEDGERS, self._room.value + 1))
            for _ in range(count - 1):
                self._room.acquire_nowait()
        return count

    async def _wait_enabled(self) -> None:
        now = trio.current_time()
        if now - self._looked_at_switch >= _SWITCH_SECONDS:
            await self._marks.settings.wait_enabled()
            self._looked_at_switch = trio.current_time()

    async def _wait_turn(self) -> None:
        per_second = self._context.settings.worker.marks_per_second
        if per_second > 0:
            await trio.sleep_until(max(self._next_mark_at, trio.current_time()))
            self._next_mark_at = trio.current_time() + 1 / per_second

    async def _wait_for_work(self) -> None:
        """Until marks or locks change, a deferred ledger is due, or bookies have come."""
        woken = self._woken

        async def wake() -> None:
            await woken.wait()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = self._deferrals.next_at(now=trio.current_time())
            nursery.start_soon(wake)
            await self._marks.wait_for_work()
            nursery.cancel_scope.cancel()
        await trio.sleep(_PAUSE_SECONDS)  # everybody's locks wake everybody: not all the time

    async def _follow_bookies(self) -> None:
        watcher = self._context.watcher
        while True:
            seen = watcher.bookies
            self._see_bookies()
            await watcher.wait_changed(seen)

    def _see_bookies(self) -> None:
        present = self._context.watcher.bookies.all
        if self._absences.see(present, now=trio.current_time()):
            self._deferrals.wake()
            self._wake()

    async def _follow_parked(self) -> None:
        """Know which ledgers are parked without asking for each."""
        parking = self._context.parking
        while True:
            try:
                found: dict[LedgerId, Parked] = {}
                async for ledger_id in parking.ledgers():
                    parked = await parking.read(ledger_id)
                    if parked is not None:
                        found[ledger_id] = parked
                        known = self._parked.get(ledger_id)
                        if parked.is_accepted and not (known and known.is_accepted):
                            self._deferrals.forget(ledger_id)
                            self._wake()
                self._parked = found
            except StoreUnavailableError as error:
                _log.info("verdicts cannot be read now", error=error)
            await trio.sleep(_PARKED_SECONDS)

    def _wake(self) -> None:
        self._woken.set()
        self._woken = trio.Event()

    # ------------------------------------------------------------------ one ledger

    async def _work_on_many(self, ledger_ids: list[LedgerId]) -> None:
        """Together as far as that goes, and what is left of them one by one."""
        locks: dict[LedgerId, Lock] = {}
        left = list(ledger_ids)
        try:
            taken = await self._marks.take_many(ledger_ids)
            if taken is not None:
                locks = {lock.ledger_id: lock for lock in taken}
                result = await self._batch_under(list(locks.values()))
                left = [lock.ledger_id for lock in result.left]
                left += [ledger_id for ledger_id in ledger_ids if ledger_id not in locks]
        except LedgerError as error:
            _log.info("trying them again", ledgers=len(ledger_ids), error=error)
            self.statistics.locks_lost += isinstance(error, SessionExpiredError)
            self._marks.doubt(locks.values())
            left = []
            for ledger_id in ledger_ids:
                self._deferrals.wait(ledger_id, _PAUSE_SECONDS, now=trio.current_time())
        finally:
            for _ in range(len(ledger_ids) - len(left)):
                self._room.release()
            self._in_work.difference_update(set(ledger_ids).difference(left))
            self._wake()
        async with trio.open_nursery() as nursery:
            for ledger_id in left:
                nursery.start_soon(self._work_on, ledger_id, locks.get(ledger_id))

    async def _batch_under(self, locks: list[Lock]) -> BatchResult:
        began, result = trio.current_time(), BatchResult()
        failure: LedgerError | None = None
        if not locks:
            return result

        async def watch() -> None:
            await self._marks.wait_lost(locks[0])
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                batch = Batch(self._context, self._replicator, self._count)
                suited = [lock for lock in locks if lock.ledger_id not in self._parked]
                result = await batch.run(suited)
                result.left += [lock for lock in locks if lock.ledger_id in self._parked]
            except LedgerError as error:  # raised below: a nursery would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if len(result.left) + len(result.done) < len(locks):
            raise SessionExpiredError("the session was lost, and the locks with it")
        took_ms = (trio.current_time() - began) * 1000
        for lock, repaired in result.done:
            self.statistics.repairs.success.record(took_ms)
            self.statistics.fragments_done += repaired.fragments
            self.statistics.ledgers_done += 1
            self._grace.forget(lock.ledger_id)
            self._deferrals.forget(lock.ledger_id)
        return result

    async def _work_on(self, ledger_id: LedgerId, lock: Lock | None = None) -> None:
        self.statistics.in_work += 1
        try:
            lock = lock or await self._marks.take(ledger_id)
            if lock is None:
                # Somebody else has it, or nothing but the directory of a mark is left.
                self._deferrals.wait(ledger_id, _TAKEN_SECONDS, now=trio.current_time())
                return
            await self._under(lock)
        except SessionExpiredError as error:
            self.statistics.locks_lost += 1
            _log.warning("lost the lock with the session", ledger=ledger_id, error=error)
        except StoreUnavailableError as error:
            self._deferrals.wait(ledger_id, _PAUSE_SECONDS, now=trio.current_time())
            _log.info("metadata store away", ledger=ledger_id, error=error)
        except LedgerError as error:
            # One bad ledger must not end the work on the others.
            seconds = self._deferrals.fail(ledger_id, now=trio.current_time())
            _log.warning("not repaired", ledger=ledger_id, again_in=seconds, error=error)
        finally:
            self.statistics.in_work -= 1
            self._in_work.discard(ledger_id)
            self._room.release()
            self._wake()

    async def _under(self, lock: Lock) -> None:
        """Work under a lock, and stop when it is worth nothing any more."""
        is_done = False
        failure: LedgerError | None = None

        async def watch() -> None:
            await self._marks.wait_lost(lock)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                await self._repair(lock)
                is_done = True
            except LedgerError as error:  # raised below: a nursery would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
        if is_done:
            return
        await self._marks.release(lock)
        if failure is not None:
            raise failure
        self.statistics.locks_lost += 1
        _log.warning("stopped, the lock was lost with the session", ledger=lock.ledger_id)

    async def _repair(self, lock: Lock) -> None:
        ledger_id, began = lock.ledger_id, trio.current_time()
        result = await self._attempt(lock)
        if result.ending is Ending.GROWING and self._grace_of(result) <= 0:
            verdict = await self._recover(result)
            if verdict is None:
                result = await self._attempt(lock)
            else:
                await self._put_back(lock, result, verdict)
                return
        took_ms = (trio.current_time() - began) * 1000
        if result.ending in (Ending.WHOLE, Ending.GONE):
            await self._finish(lock, result)
            self.statistics.repairs.success.record(took_ms)
            return
        self.statistics.repairs.failure.record(took_ms)
        if result.ending is Ending.GROWING:
            # Before the release: for a bookie that comes back meanwhile the wait has no end.
            seconds = self._grace_of(result)
            await self._marks.release(lock)
            self._deferrals.wait(ledger_id, seconds, now=trio.current_time())
        else:
            await self._put_back(lock, result, result.verdict)

    async def _attempt(self, lock: Lock) -> RepairResult:
        order = await self._order(lock)
        repair = LedgerRepair(
            self._replicator,
            lock.ledger_id,
            session=lock.session,
            order=order,
            progress=self._count,
        )
        result = await repair.run()
        self.statistics.fragments_done += result.fragments
        if result.ending is Ending.WHOLE and is_asked_for(self._context, lock):
            result, moves = await relocate(
                self._context, self._replicator, lock, result, self._count
            )
            self.statistics.relocated += moves > 0
            self.statistics.fragments_done += moves
        return result

    def _count(self, entries: int, size: int) -> None:
        self.statistics.entries_copied += entries
        self.statistics.bytes_copied += size

    async def _order(self, lock: Lock) -> Order:
        """What the mark asks for. Living bookies that it names are looked at closely.

        One that registered after the mark was made was marked for being away, and may lack what
        was written meanwhile. One that was there already was found wanting by a check: then no
        copy of it is trusted before it was read.
        """
        assert lock.mark is not None
        present = self._context.client.bookies().all
        named = frozenset(lock.mark.content.replicas) & present
        distrusted: set[BookieId] = set()
        for bookie_id in named:
            registered_ms = await self._registered_ms(bookie_id)
            if registered_ms is not None and registered_ms < lock.mark.node.stat.created_ms:
                distrusted.add(bookie_id)
        parked = self._parked.get(lock.ledger_id)
        return Order(
            suspects=named,
            distrusted=frozenset(distrusted),
            accepted=parked.verdict.lost if parked is not None and parked.is_accepted else (),
        )

    async def _registered_ms(self, bookie_id: BookieId) -> int | None:
        paths = ClusterPaths(self._context.cluster.root)
        for readonly in (False, True):
            path = paths.registration(bookie_id, readonly=readonly)
            stat = await self._context.store.exists(path)
            if stat is not None:
                return stat.created_ms
        return None

    # ------------------------------------------------------------------ open ledgers

    def _grace_of(self, result: RepairResult) -> float:
        """How long the writer may still take to help itself. Asked right after an attempt."""
        assert result.ledger is not None
        return self._grace_seconds(result.ledger.metadata, result.growing)

    def _grace_seconds(self, metadata: LedgerMetadata, growing: tuple[BookieId, ...]) -> float:
        self._see_bookies()
        return self._grace.wait_seconds(metadata, growing, self._absences, now=trio.current_time())

    async def _recover(self, result: RepairResult) -> Verdict | None:
        """Fence the ledger and close it; why not, if that cannot be done now."""
        async with self._recovering:
            return await self._recover_in_turn(result)

    async def _recover_in_turn(self, result: RepairResult) -> Verdict | None:
        """The wait for our turn may have been long, and news of bookies may be late: look again."""
        assert result.ledger is not None
        await self._context.watcher.refresh()
        ledger = await self._newest(result.ledger)
        present = self._context.client.bookies().all
        gone = find_damage(ledger.metadata, present=present).growing
        if not gone or self._grace_seconds(ledger.metadata, gone) > 0:
            return None  # the writer was faster, or the bookie is back
        _log.info(
            "recovering an open ledger",
            ledger=ledger.metadata.ledger_id,
            away=",".join(gone),
            state=ledger.metadata.state.name,
        )
        try:
            await LedgerRecovery(self._context.client, ledger, access_of(ledger.metadata)).run()
        except NotEnoughBookiesError as error:
            return Verdict(reason=Reason.NO_TARGET, detail=str(error))
        except (RecoveryError, UnreadableEntryError) as error:
            return Verdict(reason=Reason.UNDETERMINED, waits_for=gone, detail=str(error))
        self.statistics.fenced += 1
        self._grace.forget(ledger.metadata.ledger_id)
        return None

    async def _newest(self, ledger: VersionedLedger) -> VersionedLedger:
        ledgers, ledger_id = self._context.client.ledgers, ledger.metadata.ledger_id
        await self._context.store.sync(ledgers.paths.path_of(ledger_id))
        try:
            return await ledgers.read(ledger_id)
        except LedgerGoneError:
            return ledger  # the next attempt finds out

    # ------------------------------------------------------------------ the end of a repair

    async def _finish(self, lock: Lock, result: RepairResult) -> None:
        ledger_id = lock.ledger_id
        if result.unfilled:
            # Renews the mark: what follows does not delete it.
            await self._marks.mark(ledger_id, result.unfilled)
        is_deleted = await self._marks.finish(lock)
        self._grace.forget(ledger_id)
        if result.unfilled:
            self._deferrals.fail(ledger_id, now=trio.current_time())
        else:
            self._deferrals.forget(ledger_id)
        if not is_deleted:
            return
        self.statistics.ledgers_done += 1
        if self._parked.pop(ledger_id, None) is not None:
            await self._context.parking.release(ledger_id)

    async def _put_back(self, lock: Lock, result: RepairResult, verdict: Verdict | None) -> None:
        """Leave the mark, say why, and look again later."""
        ledger_id = lock.ledger_id
        if verdict is not None:
            verdict = await judged_by_cookies(self._context, verdict)
            known = self._parked.get(ledger_id)
            if known is None or known.verdict != verdict:
                self._parked[ledger_id] = await self._context.parking.park(ledger_id, verdict)
                self.statistics.parked += 1
                _log.warning("cannot be repaired", ledger=ledger_id, reason=verdict.text)
        await self._marks.release(lock)
        self.statistics.deferred += 1
        seconds = self._deferrals.fail(
            ledger_id, now=trio.current_time(), waits_for_bookies=verdict is not None
        )
        if verdict is None:
            _log.info("not repaired", ledger=ledger_id, again_in=seconds, why=result.detail)
