"""Rows in which the writer replaces bookies."""

from __future__ import annotations

from tests.simulation.scripts.row import row
from tests.simulation.scripts.stage import Stage
from wire.types import BookieId

CHANGE = "W ChangeEnsemble store"


def leaves(stage: Stage, number: int) -> None:
    """The bookie takes no more adds; the writer notices with one of the next."""
    stage.read_only(number)
    for _ in range(2):  # if the quorum is there without it, the next add begins the change
        stage.append()
        stage.pause(0.03)


@row("F9", "an entry acknowledged by a replaced bookie is not confirmed before its new copy",
     shapes=((4, 3, 2),))  # fmt: skip
def achieved_and_queued(stage: Stage) -> None:
    stage.written(2)
    stage.hold("b* add W 2", "b[03] add W 3", "b[02] add W 4", CHANGE)
    stage.append()
    stage.append()
    stage.arrived("b1 add W 3")
    stage.read_only(1)
    stage.append()
    stage.held(CHANGE)
    stage.release("b* add W 2")
    stage.held("b3 add W 3")
    stage.hold("W add b[4-9] 3")
    stage.release("b3 add W 3")
    stage.pause(0.05)
    stage.must("F9", stage.writer.confirmed == 1, "confirmed in the midst of a change")
    stage.release(CHANGE)
    stage.changed(2)
    stage.pause(0.05)
    stage.must("F9", stage.writer.confirmed <= 2, "entry 3 is confirmed by a bookie that left")


@row("F10", "while the store stalls nothing is confirmed, and all that failed are replaced")
def stalled_store(stage: Stage) -> None:
    stage.written(1)
    stage.hold("b[12] add W 1", CHANGE)
    stage.read_only(0)
    stage.append()
    stage.held(CHANGE, "b1 add W 1", "b2 add W 1")
    stage.release("b[12] add W 1")
    for number in (1, 2):
        stage.crash(number)
        stage.append()
    stage.pause(stage.chance.choice((0.05, 0.5)))
    stage.must("F10", stage.writer.confirmed == 0, "confirmed before the store has the change")
    stage.release(CHANGE)


@row("F11", "the start of a fragment is the LAC + 1 of a LAC that stands still", grouped=True)
def failure_beside_an_ack(stage: Stage) -> None:
    stage.written(stage.chance.randint(0, 2))
    entry = stage.writer.confirmed + 1
    stage.hold(f"b* add W {entry}", f"b* add W {entry + 1}")
    stage.append()
    stage.read_only(stage.chance.randrange(3))
    stage.append()
    for number in range(3):
        stage.held(f"b{number} add W {entry + 1}")
    answers = [f"b{number} add W {e}" for number in range(3) for e in (entry, entry + 1)]
    stage.chance.shuffle(answers)
    stage.allow(f"b* add W {entry}", f"b* add W {entry + 1}")
    stage.release(*answers)
    stage.pause(0.05)


@row("F12", "a bookie that is replaced and chosen again gets what it has not", shapes=((2, 2, 2),))
def there_and_back(stage: Stage) -> None:
    stage.written(1)
    stage.hold(CHANGE)
    stage.read_only(0, 1)
    stage.append()
    stage.held(CHANGE)
    stage.arrived("b0 add W 1", "b1 add W 1")
    stage.release(CHANGE)
    stage.hold(CHANGE)
    stage.changed(2)
    stage.held(CHANGE)  # of the second round
    stage.writable(0, 1)
    stage.read_only(2, 3)
    stage.append()
    stage.arrived("b[23] add W 2")
    stage.release(CHANGE)
    stage.must_come("F12", "entry 2 confirmed", lambda: stage.writer.confirmed == 2)


@row("F13", "an answer of a bookie that was replaced meanwhile counts nowhere")
def late_answer(stage: Stage) -> None:
    stage.written(1)
    stage.hold("W add b1 2", "b0 add W 2", "b[02] add W 3", "W add b[3-9] 2", "b0 add W 1")
    stage.hold("W add b1 1")
    stage.append()
    stage.append()
    stage.read_only(1)
    stage.append()
    stage.changed(2)
    stage.writable(1)
    stage.release("W add b1 2")
    stage.arrived("b1 add W 2")
    stage.pause(0.03)
    stage.must("F13", stage.writer.confirmed < 2, "entry 2 is confirmed by a bookie that left")


@row("F14", "the repair of an old fragment and a change of the last one both survive", spares=3)
def repair_beside_change(stage: Stage) -> None:
    stage.written(2)
    leaves(stage, 1)
    stage.changed(2)
    stage.confirmed(stage.writer.core.last_pushed)
    stage.writable(1)
    stage.hold(CHANGE)
    leaves(stage, 2)
    stage.held(CHANGE)
    name = stage.bookie(0)
    stage.world.repair(name)
    stage.until("repaired", lambda: name not in stage.store.metadata.fragments[0].ensemble)
    stage.release(CHANGE)
    stage.until("changed", lambda: "b2" not in stage.store.metadata.last_fragment.ensemble)
    stage.must(
        "F14", name not in stage.store.metadata.fragments[0].ensemble, "the repair is undone"
    )


@row("F15", "a retry recognises its own success", spares=3)
def lost_answer(stage: Stage) -> None:
    kind = stage.chance.choice(("Close", "ChangeEnsemble", "StartRecovery", "FinishRecovery"))
    stage.lose(f"store {kind} *")
    stage.written(1)
    leaves(stage, 1)
    stage.confirmed(stage.writer.core.last_pushed)
    if kind == "Close":
        stage.writer.close()
        stage.until("close ended", lambda: stage.writer.core.close() != [])
    else:
        recovery = stage.recover("R1")
        stage.ended(recovery)
        stage.must(
            "F15", recovery.metadata is not None, "recovery took its own write for another's"
        )
    stage.must_end_at("F15", stage.writer.confirmed)


@row("F58", "an answer that comes twice, or late, counts once and where it belongs")
def twice(stage: Stage) -> None:
    stage.world.network.twice = 1.0
    stage.written(1)
    number = stage.chance.randrange(3)
    stage.hold(f"b{number} add W *")
    stage.append()
    stage.append()
    stage.held(f"b{number} add W 2")
    stage.crash(number)
    stage.restart(number)
    stage.append()
    stage.release(f"b{number} add W *")
    stage.pause(0.05)


@row("F63", "an answer to the first sending is not credited to the bookie's next place",
     shapes=((5, 3, 2),), spares=1)  # fmt: skip
def earlier_sending(stage: Stage) -> None:
    stage.hold("b0 add W 0", "W add b2 0", "b[12] add W 5", "W add b5", CHANGE)
    stage.append(5)
    stage.held("b0 add W 0", "W add b2 0")
    stage.read_only(0)
    stage.append()
    stage.held(CHANGE)
    stage.release(CHANGE)
    stage.until("b5 in place", lambda: stage.writer.core.ensemble[0] == BookieId("b5"))
    if stage.chance.random() < 0.5:
        stage.writable(0)
        stage.read_only(2)
        stage.release("W add b2 0")
        stage.until("b0 in place", lambda: stage.writer.core.ensemble[2] == BookieId("b0"))
    stage.release("b0 add W 0")
    stage.pause(0.03)
