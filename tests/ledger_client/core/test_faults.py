"""Rows of the fault catalogue that cores alone can show, delivered message by message.

Random schedules reach most of these once in many thousand runs, some of them never; here each has
its own script. W is the writer, R1 and R2 recover, bookies are b0, b1, ...
"""

from __future__ import annotations

import re

from ledger_client.core.recovery import RecoveryOptions
from metadata import update
from metadata.model import LedgerState
from tests.ledger_client.core.world import RecoveringClient, World, WriterClient
from wire.types import BookieId

ONE = RecoveryOptions(window=1, window_max=1)


def world_with_entries(count: int, *, confirmed: bool = True) -> tuple[World, WriterClient]:
    world = World(1, (3, 3, 2))
    writer = WriterClient(world)
    for _ in range(count):
        writer.append(1)
        if confirmed:
            world.run(1000)
    return world, writer


def finish(world: World, writer: WriterClient) -> None:
    world.run(100_000)
    assert world.metadata.state is LedgerState.CLOSED
    world.check(writer)


def test_f1_a_negative_read_fences_the_bookie_that_the_fence_missed() -> None:
    world, writer = world_with_entries(0)
    writer.append(1)
    world.round_trip("W add b0")
    late = world.take("W add b2")
    world.take("W add b1")
    RecoveringClient(world, ONE)
    world.deliver("R1 start")
    world.round_trip("R1 fence b0", "R1 fence b1")
    world.take("R1 fence b2")
    world.round_trip("R1 read b1", "R1 read b2")
    world.deliver("R1 finish")
    late()
    world.deliver("W add b2 answer")
    assert writer.confirmed == -1
    assert writer.has_failed
    assert world.metadata.last_entry_id == -1
    finish(world, writer)


def test_f2_a_fence_that_arrives_after_the_recovery_read_changes_nothing() -> None:
    world, writer = world_with_entries(0)
    writer.append(1)
    world.round_trip("W add b0")
    late = world.take("W add b2")
    RecoveringClient(world, ONE)
    world.deliver("R1 start")
    world.round_trip("R1 fence b0", "R1 fence b1", "R1 read b1", "R1 read b2")
    world.deliver("R1 fence b2", "R1 finish")
    late()
    world.deliver("W add b2 answer")
    assert writer.has_failed
    finish(world, writer)
    assert world.metadata.last_entry_id == -1


def test_f6_a_second_recovery_reads_where_the_writer_wrote() -> None:
    """R1 replaced a bookie in memory and died; R2 must not ask the newcomer."""
    world, writer = world_with_entries(1)
    first = RecoveringClient(world, ONE)
    world.deliver("R1 start")
    world.round_trip("R1 fence b0", "R1 fence b1")
    world.round_trip("R1 read b0")
    world.take("R1 add b0")
    world.loss = 1.0
    world.deliver("R1 add b1", "R1 add b1 timeout", "R1 choose")
    world.loss = 0.0
    first.is_dead = True
    RecoveringClient(world, ONE, "R2")
    world.deliver("R2 start")
    asked = {name for name, _ in world.network if name.startswith("R2")}
    assert asked == {"R2 fence b0", "R2 fence b1", "R2 fence b2"}
    finish(world, writer)
    assert world.metadata.last_entry_id == 0


def test_f7_a_bookie_that_hangs_for_ever_does_not_hold_up_the_end() -> None:
    world, writer = world_with_entries(0)
    RecoveringClient(world, ONE)
    world.deliver("R1 start")
    world.round_trip("R1 fence b0", "R1 fence b1", "R1 read b0", "R1 read b1")
    world.deliver("R1 finish")
    assert world.metadata.state is LedgerState.CLOSED
    finish(world, writer)


def test_f14_repair_of_an_old_fragment_and_a_change_of_the_last_one_both_survive() -> None:
    world, writer = world_with_entries(1)
    world.loss = 1.0
    writer.append(1)
    world.deliver("W add b0", "W add b0 timeout")
    world.loss = 0.0
    world.deliver("W change")
    assert [f.first_entry_id for f in world.metadata.fragments] == [0, 1]
    world.loss = 1.0
    world.deliver("W add b1", "W add b1 timeout")
    world.loss = 0.0
    world.store(
        update.ReplaceBookies(first_entry_id=0, replacements={0: (BookieId("b0"), BookieId("b5"))})
    )
    world.deliver("W change")
    old, new = world.metadata.fragments
    assert old.ensemble[0] == "b5"
    assert new.ensemble[1] != "b1"


def test_f15_a_close_whose_answer_was_lost_is_recognised() -> None:
    world, writer = world_with_entries(2)
    writer.obey(writer.core.close())
    close = world.take("W close")
    close()
    wanted = update.Close(last_entry_id=1, length=world.metadata.length)
    assert wanted.apply(world.metadata) is None
    world.check(writer)


def test_f16_a_writer_that_closes_during_recovery_gives_way() -> None:
    """R1 has found an entry beyond W's LAC when W closes; there is one end, and it is R1's."""
    world, writer = world_with_entries(1)
    writer.append(1)
    world.round_trip("W add b1")
    RecoveringClient(world, ONE)
    world.deliver("R1 start")
    world.round_trip("R1 fence b0", "R1 fence b1", "R1 read b1")
    writer.obey(writer.core.close())
    world.deliver("W close")
    assert world.metadata.state is LedgerState.IN_RECOVERY
    finish(world, writer)
    assert world.metadata.last_entry_id == 1


def test_f17_of_two_recoveries_with_different_ends_the_slower_adopts() -> None:
    """Entry 0 is on b0 only. R1 finds it; R2 hears two denials first, and closes first."""
    world, writer = world_with_entries(0)
    writer.append(1)
    world.round_trip("W add b0")
    world.take("W add b1")
    world.take("W add b2")
    RecoveringClient(world, ONE, "R1")
    RecoveringClient(world, ONE, "R2")
    world.deliver("R1 start", "R2 start")
    world.round_trip("R1 fence b0", "R1 fence b1", "R1 read b0")
    world.round_trip("R2 fence b1", "R2 fence b2")
    # R2 found the ledger in recovery; the fences showed no LAC, so nothing is held up by a floor.
    world.round_trip("R2 read b1", "R2 read b2")
    world.deliver("R2 finish")
    finish(world, writer)
    assert world.metadata.last_entry_id == -1
    assert len(world.ends) == 2


def test_f21_a_recovery_that_follows_a_dead_one_makes_copies_that_are_recorded() -> None:
    """R1 swaps b2 for a newcomer in memory, finishes entries 0 and 1 there, and dies."""
    world, writer = world_with_entries(2, confirmed=False)
    for bookie in ("b1", "b1"):
        world.round_trip(f"W add {bookie}")
    world.network.clear()
    first = RecoveringClient(world, ONE)
    world.deliver("R1 start")
    world.round_trip("R1 fence b0", "R1 fence b2", "R1 read b1")
    world.take("R1 add b0")
    world.loss = 1.0
    world.deliver("R1 add b2", "R1 add b2 timeout", "R1 choose")
    world.loss = 0.0
    newcomer = next(name for name, _ in world.network if re.fullmatch("R1 add b[345]", name))
    world.round_trip("R1 add b1", newcomer)  # two copies, one of them on no record
    world.round_trip("R1 read b1")
    world.deliver(newcomer)
    first.is_dead = True
    world.network.clear()
    assert all(lac == -1 for lac in world.lacs_shown), "the LAC of the beginning, in all headers"
    RecoveringClient(world, ONE, "R2")
    finish(world, writer)


def test_f71_a_lac_that_a_dead_recovery_showed_is_a_floor() -> None:
    """A Java client wrote entry 1 with its advancing LAC 0, and died. Entry 0 is on b0 alone."""
    world, writer = world_with_entries(0)
    world.store(update.StartRecovery())
    world.bookies[BookieId("b0")].entries[0] = (-1, 1)
    world.add(world.bookies[BookieId("b1")], [(1, 0, 3)], recovery=True)
    RecoveringClient(world, ONE)
    world.deliver("R1 start")
    world.round_trip("R1 fence b1", "R1 fence b2", "R1 read b1", "R1 read b2")
    assert "R1 finish" not in [name for name, _ in world.network]
    finish(world, writer)
    assert (world.metadata.last_entry_id or 0) >= 0


def test_f60_a_writer_fenced_without_a_recovery_closes_at_its_lac() -> None:
    world, writer = world_with_entries(2)
    world.bookies[BookieId("b1")].is_fenced = True
    writer.append(1)
    world.round_trip("W add b1")
    assert writer.has_failed
    finish(world, writer)
    assert world.metadata.last_entry_id == 1
