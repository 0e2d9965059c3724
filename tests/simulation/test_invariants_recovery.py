"""The checkers that watch autorecovery, each shown what it is there for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from metadata.memory_tree import Tree
from metadata.model import LedgerMetadata, new_ledger
from tests.simulation.history import ViolationError
from tests.simulation.invariants.i13 import I13
from tests.simulation.invariants.i21 import I21
from tests.simulation.invariants.i22 import I22
from tests.simulation.outer.registrations import Registrations
from wire.types import BookieId, DigestType, LedgerId

NAMES = tuple(map(BookieId, ("b0", "b1", "b2")))
GRACE = 2.0


class Site:
    """As much of a world as these checkers look at."""

    def __init__(self) -> None:
        self.tree = Tree(lambda: 0)
        for path in ("/ledgers", "/ledgers/available", "/ledgers/available/readonly"):
            self.tree.create(path, b"")
        self.registrations = Registrations("/ledgers")
        for name in NAMES:
            self.come(name)
        self.metadata: LedgerMetadata = new_ledger(
            ledger_id=LedgerId(1),
            ensemble=NAMES,
            write_quorum=3,
            ack_quorum=2,
            digest_type=DigestType.CRC32C,
            password=b"",
            custom=None,
            ctime_ms=0,
        )
        self.lock_owner = "A1"

    def come(self, name: str) -> None:
        self.tree.create(f"/ledgers/available/{name}", b"")
        self.registrations.look(self.tree)

    def leave(self, name: str) -> None:
        self.tree.delete(f"/ledgers/available/{name}", -1)
        self.registrations.look(self.tree)

    @property
    def world(self) -> Any:
        store = SimpleNamespace(
            metadata=self.metadata,
            registrations=self.registrations,
            holds_lock=lambda name: name == self.lock_owner,
        )
        return cast(
            "Any",
            SimpleNamespace(
                store=store, recoveries={"A1": None}, plan=SimpleNamespace(grace=GRACE)
            ),
        )

    def fence(self, checker: I22, by: str = "A1") -> None:
        checker.on_recorded(by, self.metadata, self.metadata.in_recovery())


async def test_i13_sees_a_repair_by_somebody_who_has_not_the_lock() -> None:
    site = Site()
    closed = site.metadata.closed_at(last_entry_id=-1, length=0)
    (fragment,) = closed.fragments
    moved = replace(closed, fragments=(fragment.with_slots({0: BookieId("b3")}),))
    with pytest.raises(ViolationError, match="I13: A2 repairs the ledger, and its lock is not"):
        I13(site.world).on_recorded("A2", closed, moved)


async def test_i21_sees_a_mark_deleted_that_the_record_still_needs() -> None:
    site = Site()
    site.leave("b1")
    marked = trio.current_time()
    with pytest.raises(ViolationError, match="I21: A1 deletes the mark of b1"):
        I21(site.world).on_mark_deleted("A1", (NAMES[1],), marked)


async def test_i21_forgives_when_the_bookie_is_back_or_left_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = Site()
    marked = trio.current_time()
    I21(site.world).on_mark_deleted("A1", (NAMES[1],), marked)
    await trio.sleep(1)
    site.leave("b1")
    I21(site.world).on_mark_deleted("A1", (NAMES[1],), marked)


async def test_i22_sees_a_writer_that_was_fenced_too_early(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = Site()
    checker = I22(site.world)
    await trio.sleep(10)
    site.leave("b2")
    await trio.sleep(GRACE / 2)
    with pytest.raises(ViolationError, match="I22: A1 fences the writer"):
        site.fence(checker)
    site.fence(checker, by="R1")
    await trio.sleep(GRACE / 2)
    site.fence(checker)


async def test_i22_counts_from_when_the_lost_bookie_was_in_the_ensemble(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = Site()
    checker = I22(site.world)
    site.leave("b2")
    await trio.sleep(10)
    before = site.metadata
    (fragment,) = before.fragments
    other = replace(before, fragments=(fragment.with_slots({0: BookieId("b3")}),))
    checker.on_recorded("W", before, other)
    site.metadata = other
    with pytest.raises(ViolationError, match="I22"):
        site.fence(checker)
    await trio.sleep(GRACE)
    site.fence(checker)


async def test_i22_does_not_take_a_bookie_that_has_long_been_back_for_an_excuse(
    autojump_clock: trio.testing.MockClock,
) -> None:
    site = Site()
    checker = I22(site.world)
    site.leave("b2")
    await trio.sleep(10)
    site.come("b2")
    site.fence(checker)  # nobody may have heard of it yet
    await trio.sleep(10)
    with pytest.raises(ViolationError, match="I22"):
        site.fence(checker)
