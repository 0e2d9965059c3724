"""Open ledgers: who is fenced, when, and who never is."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.testing

from autorecovery.context import RecoveryContext
from autorecovery.core.fragments_waiting import Absences, Deferrals, Grace
from autorecovery.core.parking import Reason
from autorecovery.worker import RECOVERIES_AT_ONCE, Worker
from ledger_client.recovery import LedgerRecovery
from ledger_client.requests import FenceReads, Request
from metadata.faults import Fault
from metadata.faults import Outcome as StoreOutcome
from metadata.memory import MemoryStore
from metadata.model import LedgerState
from metadata.underreplication import Lock, UnderReplication
from metadata.update import ChangeEnsemble, VersionedLedger
from tests.autorecovery.test_worker import _has_verdict, parked
from tests.autorecovery.worker_world import PATHS, RepairWorld, bookie, until
from wire.types import BookieId, LedgerId

Clock = trio.testing.MockClock
GRACE = 30.0


def open_world(*fragments: tuple[int, tuple[int, ...]], entries: int = 20) -> RepairWorld:
    world = RepairWorld(6)
    world.ledger(1, *fragments, entries=entries, state=LedgerState.OPEN)
    return world


async def test_idle_writer_is_fenced_after_the_grace_period_and_not_before(
    autojump_clock: Clock,
) -> None:
    """F37."""
    world = open_world((0, (0, 1, 2)))
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    began, fenced_at = trio.current_time(), []

    def note(bookie_id: BookieId, request: Request) -> None:
        if isinstance(request, FenceReads):
            fenced_at.append(trio.current_time() - began)

    world.bookies.on_request = note
    worker = await world.heal()
    assert world.is_whole(1)
    assert world.record(1).last_entry_id == 19
    assert worker.statistics.fenced == 1
    assert min(fenced_at) >= GRACE


async def test_writer_that_replaces_the_bookie_itself_is_not_fenced(autojump_clock: Clock) -> None:
    """F38."""
    world = open_world((0, (0, 1, 2)))
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])

    async def change(context: RecoveryContext) -> None:
        await trio.sleep(GRACE / 2)
        await context.client.ledgers.update(
            LedgerId(1),
            ChangeEnsemble(first_entry_id=20, failed={0: bookie(0)}, replacements={0: bookie(4)}),
        )

    await world.work_until(lambda: not world.marked(), beside=change)
    record = world.record(1)
    assert record.state is LedgerState.OPEN
    assert bookie(0) not in record.bookies()
    assert not world.incomplete(1)
    assert not world.bookies.fenced


async def test_bookie_of_an_older_fragment_is_replaced_without_fencing(
    autojump_clock: Clock,
) -> None:
    """F39: no LAC is visible in the last ensemble, which holds nothing yet."""
    world = open_world((0, (0, 1, 2)), (20, (3, 1, 2)))
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    await world.heal()
    record = world.record(1)
    assert record.state is LedgerState.OPEN
    assert bookie(0) not in record.bookies()
    assert not world.bookies.fenced


async def test_read_only_bookie_of_the_last_ensemble_is_no_reason_to_fence(
    autojump_clock: Clock,
) -> None:
    """F40."""
    world = open_world((0, (0, 1, 2)))
    world.leave(bookie(0))
    world.join(bookie(0), read_only=True)
    world.mark(1, [bookie(0)])
    await world.heal()
    assert world.record(1).state is LedgerState.OPEN
    assert not world.bookies.fenced


async def test_bookie_that_comes_and_goes_starts_the_grace_period_anew(
    autojump_clock: Clock,
) -> None:
    """I22: away all the time, or the writer is not to blame."""
    world = open_world((0, (0, 1, 2)))
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    came = trio.current_time()

    async def flap(context: RecoveryContext) -> None:
        nonlocal came
        for _ in range(5):
            await trio.sleep(GRACE * 0.8)
            world.join(bookie(0))
            world.metadata.publish()
            await trio.sleep(0.01)
            came = trio.current_time()
            assert not world.bookies.fenced
            world.leave(bookie(0))
            # The worker may have found it whole meanwhile.
            await context.marks.mark(LedgerId(1), [bookie(0)])

    await world.work_until(lambda: bool(world.bookies.fenced), beside=flap)
    assert trio.current_time() - came >= GRACE


async def test_bookie_that_is_back_saves_the_writer_although_the_watch_is_late(
    autojump_clock: Clock,
) -> None:
    """I22: what cannot be taken back is not decided on a list that a late watch left behind."""
    world = open_world((0, (0, 1, 2)))
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])

    async def come_unheard(context: RecoveryContext) -> None:
        await trio.sleep(GRACE / 2)
        cast(MemoryStore, context.store).hold_watches()
        world.join(bookie(0))
        world.metadata.publish()

    await world.work_until(lambda: not world.marked(), beside=come_unheard)
    assert world.record(1).state is LedgerState.OPEN
    assert not world.bookies.fenced


async def test_no_writer_is_fenced_while_nobody_can_say_who_is_there(
    autojump_clock: Clock,
) -> None:
    world = open_world((0, (0, 1, 2)))
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    failures, asked = 20, f"store sync {PATHS.available}"
    for _ in range(failures):
        world.script.add(Fault(outcome=StoreOutcome.UNAVAILABLE), verb="sync", path=PATHS.available)
    asked_before: list[int] = []

    def note(bookie_id: BookieId, request: Request) -> None:
        if isinstance(request, FenceReads):
            asked_before.append(world.steps.count(asked))

    world.bookies.on_request = note
    await world.heal()
    assert world.is_whole(1)
    assert asked_before[0] == failures + 1


async def test_bookie_that_comes_back_while_recoveries_wait_for_their_turn_saves_the_writers(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I22. A turn may come minutes after the grace is over."""
    world = RepairWorld(6)
    count = 2 * RECOVERIES_AT_ONCE
    for number in range(1, count + 1):
        world.ledger(number, (0, (0, 1, 2)), entries=9, state=LedgerState.OPEN)
        world.mark(number, [bookie(0)])
    world.leave(bookie(0))
    begun: list[LedgerRecovery] = []
    run, go_on = LedgerRecovery.run, trio.Event()

    async def held_up(recovery: LedgerRecovery) -> VersionedLedger:
        begun.append(recovery)
        await go_on.wait()
        return await run(recovery)

    async def come(context: RecoveryContext) -> None:
        await until(lambda: len(begun) == RECOVERIES_AT_ONCE)
        await trio.sleep(GRACE)
        world.join(bookie(0))
        world.metadata.publish()
        await trio.sleep(1)
        go_on.set()

    monkeypatch.setattr(LedgerRecovery, "run", held_up)
    await world.work_until(lambda: not world.marked(), beside=come)
    assert len(begun) == RECOVERIES_AT_ONCE
    states = [world.record(number).state for number in range(1, count + 1)]
    assert states.count(LedgerState.OPEN) == count - RECOVERIES_AT_ONCE


async def test_grace_of_one_bookie_is_not_used_up_by_another(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I22: the writer replaced the one it had time for while its ledger waited for its turn."""
    world = open_world((0, (0, 1, 2)))
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    began, fenced_at = trio.current_time(), []
    newest = Worker._newest

    async def one_change_later(worker: Worker, ledger: VersionedLedger) -> VersionedLedger:
        if ledger.metadata.last_fragment.first_entry_id == 0:
            await worker._context.client.ledgers.update(
                LedgerId(1),
                ChangeEnsemble(
                    first_entry_id=20, failed={0: bookie(0)}, replacements={0: bookie(4)}
                ),
            )
        return await newest(worker, ledger)

    async def lose_another(context: RecoveryContext) -> None:
        await trio.sleep(GRACE - 1)
        world.leave(bookie(1))

    def note(bookie_id: BookieId, request: Request) -> None:
        if isinstance(request, FenceReads):
            fenced_at.append(trio.current_time() - began)

    monkeypatch.setattr(Worker, "_newest", one_change_later)
    world.bookies.on_request = note
    await world.work_until(lambda: not world.marked(), beside=lose_another)
    assert world.is_whole(1)
    assert min(fenced_at) >= 2 * GRACE


async def test_bookie_that_comes_back_while_its_ledger_is_put_back_does_not_leave_the_mark(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = open_world((0, (0, 1, 2)))
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    release = UnderReplication.release

    async def release_late(marks: UnderReplication, lock: Lock) -> None:
        if bookie(0) not in world.alive():
            world.join(bookie(0))
            world.metadata.publish()
            await trio.sleep(1)
        await release(marks, lock)

    monkeypatch.setattr(UnderReplication, "release", release_late)
    await world.heal()
    assert world.record(1).state is LedgerState.OPEN
    assert not world.bookies.fenced


async def test_bookie_that_left_a_moment_ago_does_not_leave_its_ledger_waiting_for_ever(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that notes who leaves may be the last to run; here it never does."""
    monkeypatch.setattr(Worker, "_follow_bookies", _sleep_for_ever)
    world = open_world((0, (0, 1, 2)))

    async def lose(context: RecoveryContext) -> None:
        await trio.sleep(1)
        world.leave(bookie(0))
        await context.marks.mark(LedgerId(1), [bookie(0)])
        marked.set()

    marked = trio.Event()
    await world.work_until(lambda: marked.is_set() and not world.marked(), beside=lose)
    assert world.is_whole(1)


async def _sleep_for_ever(worker: Worker) -> None:
    await trio.sleep_forever()


async def test_end_that_cannot_be_found_is_a_verdict(autojump_clock: Clock) -> None:
    """F55: (2,2,1) with one bookie away; its answer could be the only acknowledgement."""
    world = RepairWorld(4)
    world.ledger(1, (0, (0, 1)), entries=5, ack_quorum=1, state=LedgerState.OPEN)
    world.leave(bookie(0))
    world.pool.entries.pop(bookie(0))
    world.mark(1, [bookie(0)])
    await world.work_until(lambda: _has_verdict(world))
    assert (await parked(world, 1))[0] is Reason.UNDETERMINED
    assert world.record(1).state is LedgerState.IN_RECOVERY
    assert world.marked()


async def test_recovery_that_somebody_left_half_done_is_finished(autojump_clock: Clock) -> None:
    """F56, as far as a worker meets it: the mark is there, the recovering client is not."""
    world = RepairWorld(6)
    world.ledger(1, (0, (0, 1, 2)), entries=9, state=LedgerState.IN_RECOVERY)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    await world.heal()
    assert world.is_whole(1)
    assert world.record(1).last_entry_id == 8


async def test_recovery_meets_trouble_and_is_tried_again(autojump_clock: Clock) -> None:
    world = open_world((0, (0, 1, 2)))
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    world.bookies.mute = {bookie(1), bookie(2)}

    async def speak(context: RecoveryContext) -> None:
        await trio.sleep(200)
        world.bookies.mute = set()

    await world.work_until(lambda: not world.marked(), beside=speak)
    assert world.is_whole(1)


# ---------------------------------------------------------------------- the values behind it


def test_absence_counts_from_when_it_was_seen() -> None:
    a, b = BookieId("a:1"), BookieId("b:1")
    absences = Absences({a}, now=10.0)
    assert absences.since(b) == 10.0
    assert absences.since(a) == float("inf")
    assert absences.see({b}, now=20.0) == {b}
    assert absences.since(a) == 20.0
    assert absences.see({a, b}, now=30.0) == {a}
    assert absences.since(a) == float("inf")


def test_grace_belongs_to_one_bookie_in_one_fragment() -> None:
    world = open_world((0, (0, 1, 2)))
    metadata = world.record(1)
    absences, grace = Absences(set(), now=0.0), Grace(30.0)
    zero, one = bookie(0), bookie(1)
    assert grace.wait_seconds(metadata, [zero], absences, now=100.0) == 30.0
    assert grace.wait_seconds(metadata, [zero, one], absences, now=120.0) == 10.0
    assert grace.wait_seconds(metadata, [one], absences, now=130.0) == 20.0
    changed = metadata.with_ensemble_change(first_entry_id=20, replacements={0: bookie(4)})
    assert grace.wait_seconds(changed, [one], absences, now=160.0) == 30.0
    assert grace.wait_seconds(changed, [one], absences, now=190.0) == 0.0
    grace.forget(LedgerId(1))
    assert grace.wait_seconds(changed, [one], absences, now=190.0) == 30.0


def test_deferral_doubles_and_bookies_that_come_end_it() -> None:
    deferrals = Deferrals(first_seconds=10.0, seconds_max=35.0)
    one, two = LedgerId(1), LedgerId(2)
    assert [deferrals.fail(one, now=0.0) for _ in range(4)] == [10.0, 20.0, 35.0, 35.0]
    deferrals.fail(two, now=0.0, waits_for_bookies=True)
    assert not deferrals.is_due(two, now=5.0)
    assert deferrals.next_at(now=0.0) == 10.0
    deferrals.wake()
    assert deferrals.is_due(two, now=5.0)
    assert not deferrals.is_due(one, now=5.0)
    deferrals.forget(one)
    assert deferrals.is_due(one, now=5.0)
    assert deferrals.fail(one, now=5.0) == 10.0


async def test_few_ledgers_are_recovered_at_a_time(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds megabytes, and bookies that are asked for too much answer nobody in time."""
    world = RepairWorld(6)
    for number in range(1, 21):
        world.ledger(number, (0, (0, 1, 2)), entries=9, state=LedgerState.OPEN)
        world.mark(number, [bookie(0)])
    world.leave(bookie(0))
    world.pool.entries.pop(bookie(0))
    running: list[int] = [0]
    run = LedgerRecovery.run

    async def counted(recovery: LedgerRecovery) -> VersionedLedger:
        running.append(running[-1] + 1)
        try:
            return await run(recovery)
        finally:
            running.append(running[-1] - 1)

    monkeypatch.setattr(LedgerRecovery, "run", counted)
    await world.heal()
    assert all(world.is_whole(number) for number in range(1, 21))
    assert max(running) == RECOVERIES_AT_ONCE
