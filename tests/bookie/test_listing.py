"""Which entries are here: ranges, merged over write cache and index."""

from __future__ import annotations

import random
from itertools import pairwise

from bookie.core.entry_ranges import Range, entry_count, merged, ranges_of
from tests.bookie.machine import KEY, Machine
from wire.errors import Status


def listed(machine: Machine, ledger_id: int) -> list[Range] | Status:
    listing = machine.engine.list_entries(ledger_id)
    if isinstance(listing, Status):
        return listing
    while listing.step():
        pass
    return listing.ranges()


def test_ranges_and_merging_agree_with_plain_sets() -> None:
    rng = random.Random(5)
    for _ in range(300):
        pieces = [
            sorted(rng.sample(range(40), rng.randint(1, 15))) for _ in range(rng.randint(0, 4))
        ]
        for ids in pieces:
            assert [n for first, last in ranges_of(ids) for n in range(first, last + 1)] == ids
            assert list(ranges_of(ids)) == merged(ranges_of(ids))
        found = merged(ids for piece in pieces for ids in ranges_of(piece))
        wanted = sorted({n for piece in pieces for n in piece})
        assert [n for first, last in found for n in range(first, last + 1)] == wanted
        assert all(a[1] + 1 < b[0] for a, b in pairwise(found))
        assert entry_count(found) == len(wanted)


def test_dense_ids_are_one_range_without_being_looked_at() -> None:
    assert list(ranges_of(range(5, 10**12))) == [(5, 10**12 - 1)]
    assert list(ranges_of([])) == []


def test_engine_lists_entries_of_cache_and_logs_together() -> None:
    machine = Machine()
    machine.start()
    machine.add(
        1, [(n, b"x" * 50) for n in range(300)], "a"
    )  # checkpointed: more than a generation
    machine.settle()
    machine.add_batch(1, [(n, b"y") for n in range(310, 330, 2)], "b")
    machine.add(1, [(301, b"z"), (302, b"z"), (5, b"again")], "c")
    odd = [(n, n) for n in range(310, 330, 2)]
    assert listed(machine, 1) == [(0, 299), (301, 302), *odd]
    machine.settle()
    machine.stop()
    machine.start()
    assert machine.engine.statistics().write_cache_bytes == 0
    assert listed(machine, 1) == [(0, 299), (301, 302), *odd]


def test_engine_lists_many_runs_page_by_page() -> None:
    machine = Machine()
    machine.start()
    for n in range(0, 3000, 3):  # a thousand runs of one entry each
        machine.add(1, [(n, b"")], n)
        machine.engine.checkpoint()
        if n % 300 == 0:
            machine.settle()
    machine.settle()
    assert listed(machine, 1) == [(n, n) for n in range(0, 3000, 3)]


def test_engine_lists_what_a_checkpoint_moves_in_the_middle_of_it() -> None:
    machine = Machine()
    machine.start()
    machine.add(1, [(n, b"") for n in range(10)], "a")
    listing = machine.engine.list_entries(1)
    assert not isinstance(listing, Status)
    machine.engine.checkpoint()
    machine.settle()
    assert machine.engine.statistics().write_cache_bytes == 0
    while listing.step():
        pass
    assert listing.ranges() == [(0, 9)]


def test_engine_lists_no_entries_of_an_unknown_ledger_and_some_in_limbo() -> None:
    machine = Machine()
    machine.start()
    assert listed(machine, 1) is Status.NO_LEDGER
    machine.add(1, [(0, b"")], "a")
    machine.engine.set_limbo(1, True, "b")
    assert listed(machine, 1) == [(0, 0)]
    machine.engine.fence(2, KEY, "c")
    assert listed(machine, 2) == []
