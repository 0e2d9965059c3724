"""Many small ledgers at once: the same promises as for one, in a tenth of the requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio.testing

from autorecovery.core.copying_pace import Rate
from metadata import mark_walk
from metadata.faults import Fault, Outcome
from metadata.model import LedgerState
from metadata.store import ANY_VERSION, SessionId
from tests.autorecovery.worker_world import PATHS, RepairWorld, bookie
from wire.types import LedgerId

Clock = trio.testing.MockClock
COUNT = 12


@pytest.fixture(autouse=True)
def _few_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_walk, "_SIBLINGS_MIN", 1)


def small_world() -> RepairWorld:
    world = RepairWorld(5)
    for ledger_id in range(1, COUNT + 1):
        world.ledger(ledger_id, (0, (0, 1, 2)), entries=3)
        world.mark(ledger_id, [bookie(1)])
    world.leave(bookie(1))
    return world


def is_whole(world: RepairWorld) -> bool:
    return all(world.is_whole(ledger_id) for ledger_id in range(1, COUNT + 1))


def check_sound(world: RepairWorld) -> None:
    marked = set(world.marked())
    for ledger_id in range(1, COUNT + 1):
        assert not world.incomplete(ledger_id), f"{ledger_id} names a bookie that lacks entries"
        assert world.is_whole(ledger_id) or ledger_id in marked


async def test_small_ledgers_share_their_transactions(autojump_clock: Clock) -> None:
    world = small_world()
    worker = await world.heal()
    assert is_whole(world)
    assert worker.statistics.ledgers_done == COUNT
    writes = [step for step in world.steps if step.startswith(("store set", "store transact"))]
    assert len(writes) == 2, "one for the locks, one for records, marks and locks"
    assert not world.metadata.tree.get(PATHS.locks).children


async def test_ledgers_that_are_not_simple_are_done_each_for_itself(
    autojump_clock: Clock,
) -> None:
    world = small_world()
    world.ledger(50, (0, (0, 1, 2)), entries=2, state=LedgerState.IN_RECOVERY)
    world.ledger(51, (0, (0, 1, 2)), (1, (2, 3, 4)), entries=3)
    for ledger_id in (50, 51, 99):  # 99 was deleted
        world.mark(ledger_id, [bookie(1)])
    await world.heal()
    assert is_whole(world)
    assert world.is_whole(50)
    assert world.is_whole(51)


async def test_a_record_that_changed_meanwhile_spoils_nobody_elses_repair(
    autojump_clock: Clock,
) -> None:
    world = small_world()
    path = world.record_path(3)
    world.script.add(Fault(), verb="transact")  # the locks
    world.script.add(world.metadata.conflict(path), verb="transact")
    await world.heal()
    assert world.script.is_played_out
    assert is_whole(world)


async def test_a_mark_that_was_extended_meanwhile_survives_the_transaction(
    autojump_clock: Clock,
) -> None:
    """F41: the second loss was not looked at by whoever repaired the first."""
    world = small_world()
    mark = PATHS.mark(LedgerId(3))
    seen: list[int] = []

    def extend() -> None:
        world.metadata.tree.set(mark, world.metadata.tree.get(mark).data, ANY_VERSION)
        seen.append(len(world.marked()))

    world.script.add(Fault(), verb="transact")
    world.script.add(Fault(meanwhile=extend), verb="transact")
    await world.work_until(lambda: set(world.marked()) <= {3})
    check_sound(world)
    assert seen == [COUNT]
    await world.heal(number=8)
    assert is_whole(world)


async def test_a_ledger_that_somebody_has_locked_is_left_to_them(autojump_clock: Clock) -> None:
    world = small_world()

    def lock() -> None:
        world.metadata.tree.create(PATHS.lock(LedgerId(3)), b"", owner=SessionId(1))

    world.script.add(Fault(meanwhile=lock), verb="transact")
    await world.work_until(lambda: set(world.marked()) == {3})
    check_sound(world)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_a_transaction_without_an_answer_is_found_out_about(
    autojump_clock: Clock, number: int, outcome: Outcome
) -> None:
    world = small_world()
    world.script.add(Fault(outcome=outcome), verb="transact", skip=number)
    await world.heal()
    assert world.script.is_played_out
    assert is_whole(world)
    assert not world.metadata.tree.get(PATHS.locks).children


async def test_worker_killed_at_any_step_of_many_leaves_sound_ledgers(
    autojump_clock: Clock,
) -> None:
    """F45: one transaction for many is still all or nothing for each."""
    world = small_world()
    await world.heal()
    steps = [i for i, name in enumerate(world.steps) if "store get" not in name or i % 7 == 0]
    for step in steps[::2]:
        world = small_world()
        world.crash_at = step
        await world.work_until(lambda w=world: not w.marked())  # type: ignore[misc]
        check_sound(world)
        world.crash_at = None
        await world.heal(number=8)
        assert is_whole(world)


async def test_session_lost_at_any_step_of_many_leaves_sound_ledgers(
    autojump_clock: Clock,
) -> None:
    world = small_world()
    await world.heal()
    for step in range(0, len(world.steps), 5):
        world = small_world()
        world.on_step = _expire_at(world, step)
        await world.work_until(lambda w=world: not w.marked())  # type: ignore[misc]
        assert is_whole(world)


def _expire_at(world: RepairWorld, step: int) -> Callable[[int], None]:
    def expire(number: int) -> None:
        if number == step and world.worker_session is not None:
            world.metadata.expire(SessionId(world.worker_session))
            check_sound(world)

    return expire


def test_a_wait_for_a_small_debt_is_long_enough_for_any_clock() -> None:
    rate = Rate(100_000, now=0.0)
    rate.spend(100_000, now=0.0)
    rate.spend(1, now=1e-5)
    now = 1e-5 - 1e-17
    assert now + rate.wait_seconds(now) > now + 1e-7
