"""A bookie that lost data is healed ledger by ledger; limbo ends where nothing is missing."""

from __future__ import annotations

from collections.abc import Collection

import trio
import trio.testing

from autorecovery.context import RecoveryContext
from autorecovery.core.parking import Reason
from autorecovery.integrity import PASS_SECONDS, IntegrityCheck
from metadata.model import LedgerState
from tests.autorecovery.worker_world import RepairWorld, bookie
from wire.types import LedgerId

Clock = trio.testing.MockClock


class Local:
    """Bookie 0, as its own process sees it."""

    def __init__(self, world: RepairWorld, *in_limbo: int) -> None:
        self._world = world
        self.bookie_id = bookie(0)
        self.needs_check = True
        self.started_ms = world.now_ms + 1
        self.in_limbo = {LedgerId(number) for number in in_limbo}
        self.events: list[str] = []

    async def ledgers_in_limbo(self) -> Collection[LedgerId]:
        return set(self.in_limbo)

    async def put_in_limbo(self, ledger_id: LedgerId) -> None:
        self.in_limbo.add(ledger_id)
        self.events.append(f"into limbo {ledger_id}")

    async def end_limbo(self, ledger_id: LedgerId) -> None:
        missing = [wrong for wrong in self._missing(ledger_id) if str(self.bookie_id) in wrong]
        assert not missing, f"limbo of ledger {ledger_id} ended without {missing[:3]}"
        self.in_limbo.remove(ledger_id)
        self.events.append(f"healed {ledger_id}")

    async def end_check(self) -> None:
        assert not self.in_limbo
        self.needs_check = False

    def _missing(self, ledger_id: LedgerId) -> list[str]:
        try:
            return self._world.incomplete(ledger_id)
        except Exception:  # deleted
            return []


def lose(world: RepairWorld, ledger_id: int, *entry_ids: int) -> None:
    for entry_id in entry_ids:
        world.pool.entries[bookie(0)].pop((LedgerId(ledger_id), entry_id), None)


async def check(world: RepairWorld, local: Local) -> IntegrityCheck:
    async with world.context() as context:
        integrity = IntegrityCheck(context, local)
        with trio.fail_after(3600):
            await integrity.run()
    await world.close(context)
    return integrity


async def test_missing_entries_come_back_before_limbo_ends(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.ledger(1, entries=40)
    world.ledger(2, (0, (0, 1, 2, 3)), entries=40, write_quorum=2)
    world.ledger(3, (0, (1, 2, 3)), entries=5)
    lose(world, 1, *range(10, 30))
    lose(world, 2, *range(40))
    local = Local(world, 1, 2)
    integrity = await check(world, local)
    assert not local.needs_check
    assert local.events == ["healed 1", "healed 2"]
    assert not world.incomplete(1)
    assert not world.incomplete(2)
    assert integrity.statistics.entries_fetched == 40


async def test_forgotten_ledger_goes_into_limbo_and_is_fetched(autojump_clock: Clock) -> None:
    """F24: the bookie would deny a ledger that it was wiped of."""
    world = RepairWorld(4)
    world.ledger(1, entries=10)
    lose(world, 1, *range(10))
    world.bookies.forgot = {bookie(0)}
    local = Local(world)
    await check(world, local)
    assert local.events == ["into limbo 1", "healed 1"]
    assert not world.incomplete(1)


async def test_ledger_younger_than_this_life_is_left_alone(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.bookies.forgot = {bookie(0)}
    local = Local(world)
    world.now_ms += 1000
    world.ledger(1, entries=0, state=LedgerState.OPEN)
    await check(world, local)
    assert local.events == []
    assert not world.bookies.fenced


async def test_open_ledger_is_recovered_before_it_is_compared(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.ledger(1, entries=12, state=LedgerState.OPEN)
    lose(world, 1, 11)
    local = Local(world, 1)
    await check(world, local)
    assert world.record(1).is_closed
    assert world.record(1).last_entry_id == 11
    assert not world.incomplete(1)


async def test_ledger_that_is_elsewhere_or_deleted_has_nothing_to_lose(
    autojump_clock: Clock,
) -> None:
    world = RepairWorld(4)
    world.ledger(1, (0, (1, 2, 3)), entries=10)
    local = Local(world, 1, 77)
    await check(world, local)
    assert not local.needs_check


async def test_ledger_whose_peers_are_away_stays_in_limbo_until_they_come(
    autojump_clock: Clock,
) -> None:
    world = RepairWorld(4)
    world.ledger(1, (0, (0, 1)), entries=10)
    lose(world, 1, 3)
    world.leave(bookie(1))
    local = Local(world, 1)
    async with world.context() as context:
        with trio.move_on_after(10 * PASS_SECONDS):
            await IntegrityCheck(context, local).run()
        assert local.in_limbo == {1}
        found = await context.parking.read(LedgerId(1))
        assert found is not None
        assert found.verdict.reason is Reason.NO_SOURCE
        assert found.verdict.lost == ((3, 3),)
        assert world.marked() == {1: {bookie(0)}}
        world.join(bookie(1))
        world.metadata.publish()
        with trio.fail_after(3600):
            await IntegrityCheck(context, local).run()
    await world.close(context)
    assert not local.needs_check


async def test_unregistered_bookie_is_not_taken_for_whole(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.ledger(1, entries=10)
    lose(world, 1, 3)
    world.leave(bookie(0))
    local = Local(world, 1)
    async with world.context() as context:
        with trio.move_on_after(3 * PASS_SECONDS):
            await IntegrityCheck(context, local).run()
        assert local.in_limbo == {1}
    await world.close(context)


async def test_ledger_under_another_lock_waits(autojump_clock: Clock) -> None:
    """F33: whoever has the lock may be replacing this very bookie."""
    world = RepairWorld(4)
    world.ledger(1, entries=10)
    lose(world, 1, 3)
    local = Local(world, 1)

    async def hold(context: RecoveryContext) -> None:
        lock = await context.marks.lock(LedgerId(1))
        assert lock is not None
        await trio.sleep(2.5 * PASS_SECONDS)
        assert local.in_limbo == {1}
        await context.marks.release(lock)

    async with world.context(8) as other, trio.open_nursery() as nursery:
        nursery.start_soon(hold, other)
        await trio.testing.wait_all_tasks_blocked()
        await check(world, local)
    await world.close(other)
    assert not local.needs_check


async def test_nothing_is_done_where_nothing_was_lost(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.ledger(1, entries=10)
    local = Local(world)
    local.needs_check = False
    await check(world, local)
    assert not world.bookies.requests
