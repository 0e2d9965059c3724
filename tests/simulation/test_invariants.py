"""Checkers that no planted bug sets off first, each shown what it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.history import ViolationError
from tests.simulation.inner.world import World
from tests.simulation.invariants import AUTORECOVERY_CHECKERS, CHECKERS
from tests.simulation.invariants.i01 import I1
from tests.simulation.invariants.i06 import I6
from tests.simulation.invariants.i13 import I13
from tests.simulation.invariants.i19 import I19
from tests.simulation.invariants.i20 import I20
from tests.simulation.plan import Plan
from wire.types import BookieId

TESTED_ALONE = {"I1", "I6", "I13", "I19", "I20"}


@pytest.fixture
def world() -> World:
    return World(Plan(seed=1))


def test_i1_sees_a_confirmed_entry_that_is_on_no_bookie(world: World) -> None:
    I1(world).on_ended()
    world.writer.confirmed = 0
    with pytest.raises(ViolationError, match="I1: entry 0 was confirmed and is on none"):
        I1(world).on_ended()


def test_i1_forgives_when_an_ack_quorum_of_bookies_lost_their_disks(world: World) -> None:
    world.writer.confirmed = 0
    for name in ("b0", "b1"):
        world.bookies[BookieId(name)].has_lost = True
    I1(world).on_ended()


def test_i6_sees_two_ends(world: World) -> None:
    checker = I6(world)
    empty = world.store.metadata.closed_at(last_entry_id=-1, length=0)
    checker.on_opened("R1", empty)
    checker.on_opened("R2", empty)
    with pytest.raises(ViolationError, match="I6: different ends"):
        checker.on_opened("W", world.store.metadata.closed_at(last_entry_id=0, length=1))


def test_i13_sees_a_bookie_named_that_lacks_an_entry(world: World) -> None:
    closed = world.store.metadata.closed_at(last_entry_id=0, length=1)
    (fragment,) = closed.fragments
    moved = replace(closed, fragments=(fragment.with_slots({0: BookieId("b3")}),))
    with pytest.raises(ViolationError, match=r"I13: repair named b3, which lacks \[0\]"):
        I13(world).on_recorded("A", closed, moved)


def test_i19_sees_a_confirmation_by_bookies_that_are_not_on_record(world: World) -> None:
    I19(world).on_acked(0, 0)
    (fragment,) = world.store.metadata.fragments
    world.store.metadata = replace(
        world.store.metadata, fragments=(fragment.with_slots({0: BookieId("b3")}),)
    )
    with pytest.raises(ViolationError, match="I19: confirmed by"):
        I19(world).on_acked(0, 0)


def test_i20_sees_a_ledger_deleted_that_is_open_or_needed(world: World) -> None:
    with pytest.raises(ViolationError, match="I20: b4 deletes a ledger that is OPEN"):
        I20(world).on_dropped("b4")
    world.store.metadata = world.store.metadata.closed_at(last_entry_id=-1, length=0)
    I20(world).on_dropped("b4")
    with pytest.raises(ViolationError, match="I20: b0 deletes a ledger that it is a bookie of"):
        I20(world).on_dropped("b0")


def test_every_invariant_has_a_name_and_a_file_of_its_own() -> None:
    checkers = CHECKERS + AUTORECOVERY_CHECKERS
    assert len({checker.name for checker in checkers}) == len(checkers)
    for checker in checkers:
        number = int(checker.name[1:])
        assert checker.__module__.endswith(f".i{number:02d}")
