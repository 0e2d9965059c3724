"""Rows in which data, or what was promised about it, is lost, and rows of readers."""

from __future__ import annotations

from ledger_client.core.commands import RefuseAdd
from tests.simulation.inner.writer import size_of
from tests.simulation.scripts.recovery_rows import turnover
from tests.simulation.scripts.row import row
from tests.simulation.scripts.stage import Stage


def on_two(stage: Stage) -> None:
    """Entry 0 confirmed by b0 and b1; the copy for b2 never arrives."""
    stage.lose("W add b2")
    stage.append()
    stage.confirmed(0)


@row("F24", "a bookie that lost its disk proves no absence", rot=0, wipes=0)
def limbo(stage: Stage) -> None:
    on_two(stage)
    stage.wipe(1)
    stage.hold("R1 read b0")
    stage.recover("R1")
    stage.held("R1 read b0")
    stage.pause(0.05)
    stage.must("F24", not stage.store.metadata.is_closed, "closed by the word of a bookie in limbo")
    stage.release("R1 read b0")
    stage.closed()
    stage.must_end_at("F24", 0)


@row("F27", "a copy that cannot be read proves no absence", rot=0, wipes=0)
def unreadable(stage: Stage) -> None:
    on_two(stage)
    stage.until("on disk", lambda: stage.world.bookies[stage.bookie(1)].holds(0))
    stage.rot(1)
    stage.hold("R1 read b0")
    stage.recover("R1")
    stage.held("R1 read b0")
    stage.pause(0.05)
    stage.must("F27", not stage.store.metadata.is_closed, "closed by an I/O error")
    stage.release("R1 read b0")
    stage.closed()
    stage.must_end_at("F27", 0)


@row("F30", "a reader that meets a bad copy takes another, and never shows it", rot=0, wipes=0)
def rotten(stage: Stage) -> None:
    stage.written(3)
    stage.pause(0.05)
    stage.rot(0)
    reader = stage.world.follow(0)
    stage.arrived("b* get F1")
    stage.writer.close()
    stage.must_come("F30", "all read", lambda: reader.is_done)


@row("F46", "an entry with an ack quorum of copies survives the loss of one", rot=0, wipes=0)
def hole(stage: Stage) -> None:
    stage.written(1)
    stage.hold("b2 add W 1")
    stage.read_only(2)
    stage.append()
    stage.confirmed(1)
    stage.release("b2 add W 1")
    stage.pause(0.05)
    stage.writer.close()
    stage.closed()
    stage.wipe(0)
    reader = stage.world.follow(0)
    stage.must_come("F46", "all read", lambda: reader.is_done)


@row("F49", "the LAC never moves beyond what was forced", deferred_sync=True, torn=False)
def power_loss(stage: Stage) -> None:
    stage.stall(0, 1, 2)
    stage.written(2)
    stage.world.follow(0)
    stage.arrived("b[0-2] lac F1")
    stage.pause(0.03)
    stage.crash(0, 1, 2)
    stage.wake(0, 1, 2)
    stage.recover("R1")
    stage.closed()


@row("F70", "a force after a lost connection does not count", deferred_sync=True, torn=False)
def forced_in_vain(stage: Stage) -> None:
    stage.stall(0, 1)
    stage.written(2)
    stage.crash(0, 1)
    stage.wake(0, 1)
    if not stage.writer.has_failed:
        stage.writer.force()
    stage.pause(0.05)
    stage.hold("R1 read b2")
    stage.recover("R1")
    stage.closed()


@row("F50", "given ids 1, 0, 3 end at 1; an id that was taken is refused", given_ids=True,
     deferred_sync=True, crashes=0, wipes=0)  # fmt: skip
def given(stage: Stage) -> None:
    stage.writer.append_given([1, 0, 3])
    stage.confirmed(1)
    for taken in (1, 3):
        commands = stage.writer.core.add_given([taken], [size_of(taken)], now=stage.writer.now)
        stage.must("F50", isinstance(commands[0], RefuseAdd), f"entry {taken} was taken twice")
    stage.writer.close()
    stage.closed()
    stage.must_end_at("F50", 1)


@row("F51", "answers with more than was asked for are cut to it", generous=True)
def clipped(stage: Stage) -> None:
    stage.written(2)
    stage.hold("W add b[12] 2", "R1 read b0 2")
    stage.append()
    stage.arrived("W add b0 2")
    stage.world.follow(0)
    stage.arrived("b0 get F1 0")
    stage.recover("R1")
    stage.closed()
    stage.must_end_at("F51", 1)


@row("F53", "a reader follows a closed ledger to its new bookies", spares=3)
def moved_away(stage: Stage) -> None:
    stage.written(3)
    stage.writer.close()
    stage.closed()
    stage.lose("F1 get b[012]")
    reader = stage.world.follow(0)
    stage.pause(0.02)
    for number in range(3):
        name = stage.bookie(number)
        stage.world.repair(name)
        stage.until(
            f"{name} relieved",
            lambda n=name: n not in stage.store.metadata.fragments[0].ensemble,  # type: ignore[misc]
        )
    stage.crash(0, 1, 2)
    stage.must_come("F53", "all read", lambda: reader.is_done)


@row("F54", "a last fragment without entries on dead bookies is repaired by record alone", spares=5)
def empty_and_dead(stage: Stage) -> None:
    first, *_ = turnover(stage)
    stage.recover("R1")
    stage.closed()
    stage.crash(int(first[1:]))
    stage.world.repair(stage.bookie(int(first[1:])))
    stage.until("relieved", lambda: first not in stage.store.metadata.last_fragment.ensemble)


@row("F60", "a writer fenced by a bookie in limbo fails, and closes at its LAC", rot=0, wipes=0)
def fenced_by_limbo(stage: Stage) -> None:
    stage.written(2)
    stage.wipe(1)
    stage.append()
    stage.failed()
    stage.closed()
    stage.must_end_at("F60", stage.writer.confirmed)


@row("F61", "a clock that jumps changes delays and no verdict", clock_jumps=3)
def clock_jumps(stage: Stage) -> None:
    stage.written(1)
    stage.writer.skew += stage.chance.choice((-3600.0, -1.0, 1.0, 3600.0))
    stage.append(2)
    recovery = stage.recover("R1")
    recovery.skew += stage.chance.choice((-3600.0, -1.0, 1.0, 3600.0))
    stage.ended(recovery)
    stage.must("F61", recovery.metadata is not None, "the recovery failed")
