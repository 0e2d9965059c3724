"""Planning, as arithmetic: every entry once, in order, in partitions of the wanted size."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark.core.plan import Aim, Extent, aim, moved_on, replica_slot, split, spread

MIB = 1024 * 1024


@st.composite
def extents(draw: st.DrawFn) -> list[Extent]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 50))
        last = first + draw(st.integers(0, 3000))
        starts = draw(st.lists(st.integers(1, 3000), unique=True, max_size=4))
        found.append(
            Extent(
                ledger_id=number,
                first=first,
                last=last,
                bytes=draw(st.integers(0, 4 * MIB)),
                ensemble_size=draw(st.sampled_from([1, 1, 3, 5])),
                fragment_starts=tuple(sorted(start for start in starts if start <= last)),
            )
        )
    return found


aims = st.builds(
    lambda goal, share: Aim(goal, min(goal // 2, int(goal * share))),
    st.integers(1, 2 * MIB),
    st.floats(0, 0.5),
)


@given(extents(), aims)
def test_every_entry_is_in_one_partition_and_in_order(found: list[Extent], wanted: Aim) -> None:
    pieces = [piece for partition in split(found, wanted) for piece in partition]

    rebuilt: dict[int, list[tuple[int, int]]] = {}
    for piece in pieces:
        rebuilt.setdefault(piece.index, []).append((piece.first, piece.last))
    assert list(rebuilt) == list(range(len(found)))
    for index, spans in rebuilt.items():
        assert spans[0][0] == found[index].first
        assert spans[-1][1] == found[index].last
        assert all(before[1] + 1 == after[0] for before, after in pairwise(spans))
        assert all(first <= last for first, last in spans)


@given(extents(), aims)
def test_partition_is_about_as_large_as_wanted(found: list[Extent], wanted: Aim) -> None:
    """Within 1.45 of the goal and two stripes of the largest entries."""
    for partition in split(found, wanted):
        size = sum(
            found[piece.index].entry_bytes * (piece.last - piece.first + 1) for piece in partition
        )
        stripe = max(
            found[piece.index].entry_bytes * found[piece.index].ensemble_size for piece in partition
        )
        assert size <= 1.45 * wanted.goal + 2 * stripe


@given(extents(), aims)
def test_cut_is_at_an_ensemble_change_or_at_the_end_of_a_stripe(
    found: list[Extent], wanted: Aim
) -> None:
    for partition in split(found, wanted):
        assert len({piece.index for piece in partition}) == len(partition)
        for piece in partition:
            extent = found[piece.index]
            if piece.last < extent.last and piece.last + 1 not in extent.fragment_starts:
                is_aligned = (piece.last + 1 - extent.first) % extent.ensemble_size == 0
                # A piece that begins at an ensemble change may be shorter than what is left of
                # its stripe; then it has one entry at least.
                assert is_aligned or piece.first == piece.last


@given(extents(), st.integers(1, 8 * MIB), st.integers(0, 8 * MIB), st.integers(1, 64))
def test_aim_leaves_room_for_entries_beside_the_cost_of_opening(
    found: list[Extent], target: int, open_cost: int, parallelism: int
) -> None:
    wanted = aim(found, target=target, open_cost=open_cost, parallelism=parallelism)
    assert 1 <= wanted.goal <= max(1, target)
    assert 0 <= wanted.open_cost <= wanted.goal // 4


def test_small_ledger_is_not_cut_to_crumbs_for_the_sake_of_parallelism() -> None:
    one = [Extent(ledger_id=1, first=0, last=999, bytes=MIB)]
    wanted = aim(one, target=128 * MIB, open_cost=4 * MIB, parallelism=8)
    assert len(list(split(one, wanted))) == 1


def test_caller_who_insists_on_partitions_gets_about_as_many() -> None:
    one = [Extent(ledger_id=1, first=0, last=9999, bytes=MIB)]
    wanted = aim(one, target=128 * MIB, open_cost=4 * MIB, parallelism=8, min_partitions=10)
    assert 9 <= len(list(split(one, wanted))) <= 15


def test_many_small_ledgers_are_packed_by_the_cost_of_opening() -> None:
    many = [Extent(ledger_id=i, first=0, last=99, bytes=100 * 1024) for i in range(10_000)]
    wanted = aim(many, target=128 * MIB, open_cost=4 * MIB, parallelism=8)
    partitions = list(split(many, wanted))
    assert 250 <= len(partitions) <= 400
    assert max(map(len, partitions)) <= 40


@given(st.lists(st.sampled_from("abcd"), max_size=40))
def test_spread_keeps_all_and_separates_homes_while_others_are_left(homes: list[str]) -> None:
    numbers = list(range(len(homes)))
    found = spread(numbers, homes)
    assert sorted(found) == numbers
    counts = {home: homes.count(home) for home in homes}
    if counts and len(set(counts.values())) == 1 and len(counts) > 1:
        assert all(homes[a] != homes[b] for a, b in pairwise(found))


def test_replicas_are_chosen_evenly_and_moved_on_by_attempts() -> None:
    slots = [replica_slot(ledger, run * 1000, 3) for ledger in range(50) for run in range(20)]
    assert all(250 < slots.count(slot) < 420 for slot in range(3))
    assert [moved_on([2, 0, 1], attempt)[0] for attempt in range(4)] == [2, 0, 1, 2]
