"""Compacting the index by order of an operator, and what the statistics say about it."""

from __future__ import annotations

from bookie.core.compaction import Kind
from tests.bookie.garbage_world import fill
from tests.bookie.test_garbage import running


def test_index_is_compacted_when_asked_and_counted() -> None:
    machine = running()
    fill(machine, range(1, 3), range(60))
    [before] = machine.engine.upkeep.statistics()
    machine.engine.upkeep.compact_indexes([0])
    machine.engine.upkeep.compact_indexes([0])  # one that waits will do for both
    [waiting] = machine.engine.upkeep.statistics()
    machine.settle()
    [after] = machine.engine.upkeep.statistics()
    assert (before.index_compactions, before.is_index_compacting) == (0, False)
    assert waiting.index_compactions + waiting.is_index_compacting == 1
    assert (after.index_compactions, after.is_index_compacting) == (1, False)
    assert after.index_compacted_ms >= before.index_compacted_ms


def test_statistics_tell_when_a_round_ended() -> None:
    machine = running()
    [before] = machine.engine.upkeep.statistics()
    machine.engine.upkeep.compact(Kind.MINOR)
    machine.settle()
    [after] = machine.engine.upkeep.statistics()
    assert after.rounds[Kind.MINOR] == 1
    assert after.compacting is None
    assert after.last_round_ms[Kind.MINOR] >= before.last_round_ms[Kind.MINOR]
    assert after.last_round_ms[Kind.MAJOR] == before.last_round_ms[Kind.MAJOR]
