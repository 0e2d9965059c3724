"""Rows in which somebody recovers the ledger while its writer is still about."""

from __future__ import annotations

from metadata.model import LedgerState
from tests.simulation.scripts.row import row
from tests.simulation.scripts.stage import Stage


@row("F1", "a bookie that denied the entry refuses its late copy: it is never confirmed")
def negative_read_fences(stage: Stage) -> None:
    stage.lose("W add b1", "R1 fence b2")
    stage.hold("W add b2", "R1 read b0")
    stage.append()
    stage.arrived("W add b0 0")
    stage.recover("R1")
    stage.closed()
    stage.must_end_at("F1", -1)
    stage.release("W add b2")
    stage.failed()
    stage.must("F1", stage.writer.confirmed == -1, "entry 0 was confirmed")


@row("F2", "a fence that arrives after the recovery read changes nothing")
def late_fence(stage: Stage) -> None:
    stage.lose("W add b1")
    stage.hold("W add b2", "R1 fence b2", "R1 read b0", "R1 FinishRecovery store")
    stage.append()
    stage.arrived("W add b0 0")
    stage.recover("R1")
    stage.held("R1 FinishRecovery store")
    stage.release("R1 fence b2", "R1 FinishRecovery store")
    stage.closed()
    stage.release("W add b2")
    stage.failed()
    stage.must_end_at("F2", -1)


def turnover(stage: Stage) -> tuple[str, ...]:
    """Two entries written, then every bookie replaced: the last ensemble has nothing."""
    stage.written(2)
    stage.lose("W add b[012] 2")
    stage.hold("W add b[3-9] 2")
    stage.append()
    old = {"b0", "b1", "b2"}
    stage.until("three new bookies", lambda: not old & set(stage.writer.core.ensemble))
    return stage.store.metadata.last_fragment.ensemble


@row(
    "F3", "recovery of an ensemble that is almost empty succeeds, its fragments are valid", spares=4
)
def empty_ensemble_with_a_failure(stage: Stage) -> None:
    first, second, third = turnover(stage)
    stage.release(f"W add {first} 2")
    stage.arrived(f"W add {first} 2")
    stage.lose(f"R1 add {second}")
    if stage.chance.random() < 0.5:
        stage.lose(f"R1 add {third}")
    recovery = stage.recover("R1")
    stage.ended(recovery)
    stage.must("F3", recovery.metadata is not None, "the recovery failed")


@row("F4", "the length is that of the last entry of the fragment before, not 0", spares=4)
def nothing_to_recover(stage: Stage) -> None:
    turnover(stage)
    stage.recover("R1")
    stage.closed()
    stage.must_end_at("F4", 1)


@row("F5", "an entry behind a gap is dropped, and its length is not counted")
def gap(stage: Stage) -> None:
    stage.written(stage.chance.randint(1, 6))
    hole = stage.writer.confirmed + 1
    stage.hold(f"W add b[12] {hole}", f"W add b[02] {hole + 1}", f"R1 read b0 {hole}")
    stage.append()
    stage.append()
    stage.arrived(f"W add b0 {hole}", f"W add b1 {hole + 1}")
    stage.recover("R1")
    stage.closed()
    stage.must_end_at("F5", hole - 1)


@row(
    "F6", "recovery reads where the writer wrote, not from bookies that joined", spares=3, window=1
)
def newcomers(stage: Stage) -> None:
    stage.append(3)
    stage.confirmed(2)
    stage.lose("R1 add b[12] 0")
    first = stage.recover("R1")
    if stage.chance.random() < 0.5:
        stage.hold("R1 add b[3-9]")
        stage.held("R1 add b[3-9]")
        stage.kill(first)
        stage.recover("R2")
    stage.closed()
    stage.must_end_at("F6", 2)


@row("F7", "a bookie that hangs for ever holds up nothing")
def hanging(stage: Stage) -> None:
    stage.written(stage.chance.randint(0, 2))
    stage.world.bookies[stage.bookie(2)].pause()
    stage.recover("R1")
    stage.closed()
    stage.must_end_at("F7", stage.writer.confirmed)


@row("F8", "two opposite answers of four cover nothing: recovery waits", shapes=((4, 3, 2),))
def not_covered(stage: Stage) -> None:
    silent = stage.chance.choice(("[13]", "[02]"))
    stage.lose(f"R1 fence b{silent}", f"R1 read b{silent}")
    recovery = stage.recover("R1")
    stage.ended(recovery)
    stage.must("F8", recovery.metadata is None, "recovery went on with two opposite answers")


@row("F16", "a writer that closes during recovery gives way: there is one end")
def close_during_recovery(stage: Stage) -> None:
    stage.written(1)
    stage.hold("W add b[02] 1", "R1 read b[02] 1", "R1 FinishRecovery store")
    stage.append()
    stage.arrived("b1 add W 1")
    stage.world.follow(0)
    stage.recover("R1")
    stage.held("R1 FinishRecovery store")
    stage.writer.close()
    stage.pause()
    stage.must(
        "F16", stage.store.metadata.state is LedgerState.IN_RECOVERY, "the writer closed over it"
    )
    stage.release("R1 FinishRecovery store")
    stage.closed()
    stage.must_end_at("F16", 1)


@row("F17", "of two recoveries with different ends the slower one adopts the other's")
def two_recoveries(stage: Stage) -> None:
    stage.hold("W add b[12]", "R1 read b[12]", "R2 read b0", "R1 add b*")
    stage.append()
    stage.arrived("W add b0 0")
    stage.world.follow(0)
    slower = stage.recover("R1")
    stage.held("R1 add b0")
    stage.recover("R2")
    stage.closed()
    stage.must_end_at("F17", -1)
    stage.release("R1 add b*", "R1 read b[12]")
    stage.ended(slower)
    found = slower.metadata
    stage.must("F17", found is not None and found.last_entry_id == -1, "R1 has another end")


@row("F18", "good answers that arrive after a fenced one confirm nothing")
def late_acks(stage: Stage) -> None:
    stage.written(1)
    stage.hold("b[01] add W 1", "W add b2 1", "R1 read *")
    stage.lose("R1 fence b[01]")
    stage.append()
    stage.recover("R1")
    stage.arrived("b2 fence R1")
    stage.release("W add b2 1")
    stage.failed()
    stage.release("b[01] add W 1")
    stage.pause(0.05)
    stage.must("F18", stage.writer.confirmed == 0, "entry 1 was confirmed")


@row("F19", "a writer that slept through its recovery is refused everywhere")
def sleeper(stage: Stage) -> None:
    stage.hold("W add b[02]", "R1 read b1")
    stage.append()
    stage.arrived("W add b1 0")
    stage.recover("R1")
    stage.closed()
    stage.must_end_at("F19", -1)
    stage.release("W add b[02]")
    stage.failed()


@row("F20", "a bookie that crashes before its fence is on disk has not answered it", torn=False)
def fence_not_durable(stage: Stage) -> None:
    stage.hold("W add b1")
    stage.stall(1)
    stage.append()
    stage.recover("R1")
    stage.pause(0.05)
    stage.crash(1)
    stage.wake(1)
    stage.release("W add b1")
    stage.pause(0.05)


def shown_by_a_dead_one(stage: Stage, holder: int) -> None:
    """A client like Apache's recovers entry 0 from one bookie, writes LAC 0 with entry 1, dies.

    Its copies of entry 0 are on `holder` and on two bookies that it never recorded.
    """
    others = "".join(str(number) for number in range(3) if number != holder)
    stage.lose(f"W add b[{others}]", f"R1 add b[{others}]", f"R1 read b[{others}]")
    stage.append(2)
    stage.arrived(f"b{holder} add W 0")
    first = stage.recover("R1", advances=True)
    stage.arrived(f"b{holder} add R1 1")
    stage.kill(first)


@row("F21", "what a dead recovery wrote on bookies off the record is written again", spares=3,
     window=1)  # fmt: skip
def off_the_record(stage: Stage) -> None:
    shown_by_a_dead_one(stage, 1)
    stage.hold("R2 fence b2", "R2 read b[02]")
    second = stage.recover("R2")
    stage.pause(0.05)
    stage.release("R2 read b[02]")
    stage.ended(second)
    stage.must("F21", second.metadata is not None, "the second recovery failed")


@row("F71", "no ledger is closed below a LAC that a dead recovery showed", spares=3, window=1)
def floor(stage: Stage) -> None:
    shown_by_a_dead_one(stage, 0)
    stage.world.follow(0)
    stage.arrived("b0 lac F1")
    stage.hold("R2 fence b2", "R2 read b0")
    second = stage.recover("R2")
    stage.arrived("R2 read b[12] 0")
    stage.pause(0.05)
    stage.must("F71", not stage.store.metadata.is_closed, "closed by two denials below the LAC")
    stage.release("R2 read b0")
    stage.ended(second)
    stage.must("F71", second.metadata is not None, "the second recovery failed")


@row("F55", "(2,2,1) with a silent bookie blocks; (6,3,3) with opposite answers goes on",
     shapes=((2, 2, 1), (6, 3, 3)))  # fmt: skip
def coverage(stage: Stage) -> None:
    blocks = stage.world.plan.shape[0] == 2
    silent = "[1]" if blocks else "[1245]"
    stage.lose(f"R1 fence b{silent}", f"R1 read b{silent}")
    recovery = stage.recover("R1")
    stage.ended(recovery)
    stage.must("F55", (recovery.metadata is None) is blocks, "the verdict is the wrong one")


@row("X1", "an ensemble change that meets a recovery in the store is given up")
def change_meets_recovery(stage: Stage) -> None:
    stage.written(1)
    stage.hold("b[01] add W 1", "W ChangeEnsemble store", "R1 fence *")
    stage.read_only(2)
    stage.append()
    stage.held("W ChangeEnsemble store")
    stage.recover("R1")
    stage.until("IN_RECOVERY", lambda: stage.store.metadata.state is LedgerState.IN_RECOVERY)
    stage.release("W ChangeEnsemble store")
    stage.failed()
    stage.must("X1", len(stage.store.metadata.fragments) == 1, "the ensemble was changed")
