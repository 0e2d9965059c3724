"""A worker on a cluster in memory: what it repairs, what it leaves alone, what it says."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from autorecovery.config import WorkerConfig
from autorecovery.context import RecoveryContext
from autorecovery.core.copying import PIECE_BYTES
from autorecovery.core.parking import Reason
from ledger_client.core.commands import Outcome
from ledger_client.requests import Adds, Request
from metadata.faults import Fault
from metadata.model import LedgerState
from metadata.paths import LayoutType, LedgerPaths
from metadata.update import ChangeEnsemble
from tests.autorecovery.auditor_world import ROOT, spoilt
from tests.autorecovery.worker_world import RepairWorld, bookie, until
from wire.types import BookieId, LedgerId

Clock = trio.testing.MockClock

SHAPES = [((0, 1, 2), 3), ((0, 1, 2), 2), ((0, 1, 2, 3), 2), ((0, 1, 2, 3, 4), 3)]


@pytest.mark.parametrize(("ensemble", "quorum"), SHAPES)
async def test_lost_bookie_is_replaced_and_holds_what_it_must(
    autojump_clock: Clock, ensemble: tuple[int, ...], quorum: int
) -> None:
    world = RepairWorld(7)
    world.ledger(1, (0, ensemble), (40, ensemble[::-1]), entries=100, write_quorum=quorum)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    worker = await world.heal()
    assert world.is_whole(1)
    record = world.record(1)
    assert (record.last_entry_id, record.length, len(record.fragments)) == (99, 10_000, 2)
    assert worker.statistics.ledgers_done == 1
    assert worker.statistics.fragments_done == 2


async def test_two_lost_bookies_of_one_ensemble_are_both_replaced(autojump_clock: Clock) -> None:
    world = RepairWorld(6)
    world.ledger(1, (0, (0, 1, 2, 3)), entries=50, write_quorum=3)
    world.leave(bookie(0), bookie(2))
    world.mark(1, [bookie(0), bookie(2)])
    await world.heal()
    assert world.is_whole(1)


async def test_many_ledgers_are_repaired_side_by_side(autojump_clock: Clock) -> None:
    world = RepairWorld(5)
    for ledger_id in range(60):
        world.ledger(ledger_id, (0, (0, 1, 2)), entries=ledger_id % 7)
        world.mark(ledger_id, [bookie(1)])
    world.leave(bookie(1))
    await world.heal()
    assert all(world.is_whole(ledger_id) for ledger_id in range(60))


async def test_closed_empty_last_fragment_is_repaired_by_metadata_alone(
    autojump_clock: Clock,
) -> None:
    """F54: also an empty ledger; nothing keeps the name of a bookie that is gone."""
    world = RepairWorld(5)
    world.ledger(1, (0, (1, 2, 3)), (10, (0, 2, 3)), entries=10)
    world.ledger(2, (0, (0, 1, 2)), entries=0)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    world.mark(2, [bookie(0)])
    await world.heal()
    assert world.is_whole(1)
    assert world.is_whole(2)
    assert not world.bookies.requests


async def test_deleted_ledger_loses_its_mark(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.mark(5, [bookie(0)])
    await world.heal()


async def test_ledger_that_is_deleted_in_mid_copy_loses_its_mark(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.ledger(1, entries=20)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])

    def delete(bookie_id: BookieId, request: Request) -> None:
        world.bookies.on_request = lambda bookie_id, request: None
        world.delete_ledger(1)

    world.bookies.on_request = delete
    await world.heal()


async def test_bookie_that_came_back_whole_keeps_its_slot(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    before = world.ledger(1, entries=20)
    world.mark(1, [bookie(0)])
    world.leave(bookie(0))
    world.now_ms += 60_000
    world.join(bookie(0))
    await world.heal()
    assert world.record(1) == before
    assert all(type(request).__name__ == "Question" for _, request in world.bookies.requests)


async def test_living_bookie_gets_its_missing_entries_back(autojump_clock: Clock) -> None:
    """F47: holes in the middle, first and last are there; the record does not change."""
    world = RepairWorld(5)
    before = world.ledger(1, (0, (0, 1, 2, 3)), entries=100, write_quorum=3)
    for entry_id in (*range(20, 50), 77):
        world.pool.entries[bookie(1)].pop((LedgerId(1), entry_id), None)
    world.now_ms += 1000
    world.mark(1, [bookie(1)])
    await world.heal()
    assert world.record(1) == before
    assert not world.incomplete(1)


async def test_corrupt_copies_of_a_living_bookie_are_replaced(autojump_clock: Clock) -> None:
    """F30: found by a check while the bookie was there, so every copy of it is read."""
    world = RepairWorld(4)
    world.ledger(1, entries=50)
    stored = world.pool.entries[bookie(2)]
    stored[LedgerId(1), 17] = spoilt(stored[LedgerId(1), 17])
    world.now_ms += 1000
    world.mark(1, [bookie(2)])
    await world.heal()
    assert not world.incomplete(1)


async def test_corrupt_source_is_not_passed_on_and_is_made_good(autojump_clock: Clock) -> None:
    """F30."""
    world = RepairWorld(4)
    world.ledger(1, entries=50)
    for name in (bookie(1), bookie(2)):
        entry_id = 10 if name == bookie(1) else 30
        stored = world.pool.entries[name]
        stored[LedgerId(1), entry_id] = spoilt(stored[LedgerId(1), entry_id])
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    await world.heal()
    (new,) = world.record(1).bookies() - {bookie(1), bookie(2)}
    bad = world.incomplete(1)
    assert len(bad) == 1, "the copies that nobody read are the full check's to find"
    assert str(new) not in bad[0]


async def test_hole_behind_the_ack_quorum_is_filled_when_another_copy_is_lost(
    autojump_clock: Clock,
) -> None:
    """F46: the entry is on one bookie only by now, and nowhere else."""
    world = RepairWorld(4)
    world.ledger(1, entries=30)
    del world.pool.entries[bookie(1)][LedgerId(1), 12]  # the one that is read first
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    await world.heal()
    assert world.is_whole(1)


async def test_source_with_a_hole_that_takes_nothing_keeps_the_mark(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.ledger(1, entries=30)
    for source in (1, 2):
        del world.pool.entries[bookie(source)][LedgerId(1), 12 + source]
        world.bookies.refuses[bookie(source)] = Outcome.READ_ONLY
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    await world.work_until(lambda: bookie(0) not in world.record(1).bookies())
    mark = world.mark_of(1)
    assert mark is not None


# ---------------------------------------------------------------------- things that happen


async def test_source_that_dies_in_mid_copy_is_replaced_by_another(autojump_clock: Clock) -> None:
    world = RepairWorld(5)
    world.ledger(1, entries=3000)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    seen = 0

    def die(bookie_id: BookieId, request: Request) -> None:
        nonlocal seen
        seen += 1
        if seen == 5:
            world.pool.entries.pop(bookie(1))

    world.bookies.on_request = die
    await world.work_until(lambda: bookie(0) not in world.record(1).bookies())
    assert not [wrong for wrong in world.incomplete(1) if str(bookie(1)) not in wrong]


async def test_target_that_dies_in_mid_copy_is_replaced_by_another(autojump_clock: Clock) -> None:
    world = RepairWorld(5)
    world.ledger(1, entries=3000)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    seen = 0

    def die(bookie_id: BookieId, request: Request) -> None:
        nonlocal seen
        if bookie_id in (bookie(3), bookie(4)):
            seen += 1
            if seen == 2:
                world.pool.entries[bookie_id] = {}
                world.bookies.refuses[bookie_id] = Outcome.NOT_CONNECTED

    world.bookies.on_request = die
    await world.heal()
    assert world.is_whole(1)
    assert len(world.bookies.refuses) == 1
    assert not world.bookies.refuses.keys() & world.record(1).bookies()


async def test_target_that_acknowledged_half_of_a_piece_is_not_taken_for_complete(
    autojump_clock: Clock,
) -> None:
    """Bookies without batches answer every entry by itself; the client passes on runs of them."""
    world = RepairWorld(5)
    world.ledger(1, (0, (0, 1, 2)), entries=60, write_quorum=3)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])

    def begin(bookie_id: BookieId, request: Request) -> None:
        if isinstance(request, Adds) and not world.bookies.piecemeal:
            world.bookies.piecemeal.add(bookie_id)

    world.bookies.on_request = begin
    await world.heal()
    assert world.is_whole(1)
    assert world.bookies.piecemeal
    assert not world.bookies.piecemeal & world.record(1).bookies()


async def test_second_loss_during_the_copy_keeps_the_mark_until_it_is_repaired_too(
    autojump_clock: Clock,
) -> None:
    """F41."""
    world = RepairWorld(6)
    world.ledger(1, entries=200)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    lost = False

    async def lose_another(context: RecoveryContext) -> None:
        nonlocal lost
        await until(lambda: "Adds before" in world.steps)
        world.leave(bookie(1))
        await context.marks.mark(LedgerId(1), [bookie(1)])
        lost = True

    await world.work_until(lambda: lost and not world.marked(), beside=lose_another)
    assert world.is_whole(1)


async def test_writer_and_worker_change_one_record_and_both_changes_survive(
    autojump_clock: Clock,
) -> None:
    """F14: the commit meets another version, is decided anew, and takes nothing back."""
    world = RepairWorld(6)
    world.ledger(1, (0, (0, 1, 2)), (50, (3, 1, 2)), entries=60, state=LedgerState.OPEN)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    record_path = LedgerPaths(ROOT, LayoutType.HIERARCHICAL).path_of(LedgerId(1))
    world.script.add(Fault(request_seconds=1.0), verb="set", path=record_path)

    async def change(context: RecoveryContext) -> None:
        await until(lambda: f"store set {record_path}" in world.steps)
        await context.client.ledgers.update(
            LedgerId(1),
            ChangeEnsemble(first_entry_id=60, failed={0: bookie(3)}, replacements={0: bookie(5)}),
        )

    await world.work_until(lambda: not world.marked(), beside=change)
    record = world.record(1)
    assert [fragment.first_entry_id for fragment in record.fragments] == [0, 50, 60]
    assert record.fragments[2].ensemble[0] == bookie(5)
    assert bookie(0) not in record.bookies()
    assert record.state is LedgerState.OPEN
    assert not world.bookies.fenced


# ---------------------------------------------------------------------- what cannot be done


async def parked(world: RepairWorld, ledger_id: int) -> tuple[Reason, str]:
    async with world.context(8) as context:
        found = await context.parking.read(LedgerId(ledger_id))
        assert found is not None
        result = found.verdict.reason, found.verdict.text
    await world.close(context)
    return result


async def test_quorum_of_one_gets_a_verdict_and_keeps_its_mark(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    before = world.ledger(1, (0, (0, 1)), entries=10, write_quorum=1, ack_quorum=1)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    await world.work_until(lambda: _has_verdict(world))
    assert await parked(world, 1) == (
        Reason.NO_SOURCE,
        f"no source: waiting for {bookie(0)}: the only copies of some entries are there",
    )
    assert world.record(1) == before
    assert world.marked() == {1: {bookie(0)}}


async def test_entries_that_nobody_has_are_named_and_given_up_by_order_only(
    autojump_clock: Clock,
) -> None:
    world = RepairWorld(4)
    world.ledger(1, entries=30)
    for name in (bookie(0), bookie(1), bookie(2)):
        for entry_id in (4, 5, 20):
            del world.pool.entries[name][LedgerId(1), entry_id]
    world.now_ms += 1000
    world.mark(1, [bookie(0)])
    await world.work_until(lambda: _has_verdict(world))
    assert await parked(world, 1) == (
        Reason.LOST,
        "unrecoverable: these entries are lost: 4-5, 20",
    )

    async def accept(context: RecoveryContext) -> None:
        await trio.sleep(30)
        await context.parking.accept(LedgerId(1))

    await world.work_until(lambda: not world.marked() and not _has_verdict(world), beside=accept)
    assert world.record(1).last_entry_id == 29


async def test_no_writable_bookie_to_take_the_copy_is_a_verdict_until_one_comes(
    autojump_clock: Clock,
) -> None:
    world = RepairWorld(3)
    world.ledger(1, entries=10)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])

    async def come(context: RecoveryContext) -> None:
        await until(lambda: _has_verdict(world))
        world.join(bookie(7))
        world.metadata.publish()

    await world.work_until(lambda: not world.marked() and not _has_verdict(world), beside=come)
    assert bookie(7) in world.record(1).bookies()
    assert world.is_whole(1)


async def test_read_only_bookie_is_no_target_and_no_loss(autojump_clock: Clock) -> None:
    world = RepairWorld(3)
    world.join(bookie(5), read_only=True)
    world.ledger(1, (0, (0, 1, 5)), entries=10)
    world.mark(1, [bookie(5)])
    before = world.record(1)
    await world.heal()
    assert world.record(1) == before


async def test_silent_source_is_tried_again_and_not_taken_for_a_loss(
    autojump_clock: Clock,
) -> None:
    """F48: no verdict, no commit, while nothing is known."""
    world = RepairWorld(3)
    world.ledger(1, (0, (0, 1)), entries=10)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    world.bookies.mute = {bookie(1)}

    async def speak(context: RecoveryContext) -> None:
        await trio.sleep(100)
        assert not _has_verdict(world)
        world.bookies.mute = set()

    await world.work_until(lambda: not world.marked(), beside=speak)
    assert world.is_whole(1)


async def test_unreadable_record_does_not_stop_the_others(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.plant_record(1, b"no record")
    world.ledger(2, entries=10)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    world.mark(2, [bookie(0)])
    await world.work_until(lambda: set(world.marked()) == {1} and _has_verdict(world))
    assert (await parked(world, 1))[0] is Reason.UNREADABLE


async def test_disabled_worker_takes_nothing_until_enabled(autojump_clock: Clock) -> None:
    world = RepairWorld(4)
    world.ledger(1, entries=10)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    async with world.context(8) as context:
        await context.marks.settings.disable()
    await world.close(context)

    is_enabled = False

    async def enable(context: RecoveryContext) -> None:
        nonlocal is_enabled
        await trio.sleep(100)
        assert not world.bookies.requests
        await context.marks.settings.enable()
        is_enabled = True

    await world.work_until(lambda: is_enabled and not world.marked(), beside=enable)
    assert world.is_whole(1)


async def test_rate_of_bytes_is_kept(autojump_clock: Clock) -> None:
    world = RepairWorld(4, worker=WorkerConfig(bytes_per_second=50_000))
    world.ledger(1, entries=6000)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    began = trio.current_time()
    await world.heal()
    assert world.is_whole(1)
    allowed = 1 + trio.current_time() - began
    assert 50_000 * allowed + 2 * PIECE_BYTES >= 6000 * 140


def _has_verdict(world: RepairWorld) -> bool:
    tree = world.metadata.tree
    root = tree.find("/ledgers/underreplication/quireparked")
    if root is None:
        return False
    return any(
        tree.get(f"/ledgers/underreplication/quireparked/{name}").children for name in root.children
    )
