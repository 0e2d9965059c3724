"""Choosing bookies: never one that is taken or failed, doubtful ones last."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ledger_client.core.placement import (
    Cluster,
    DefaultPolicy,
    Health,
    choose_ensemble,
    choose_replacements,
    reordered,
)
from wire.types import BookieId

POLICY = DefaultPolicy()


def bookies(*names: str) -> frozenset[BookieId]:
    return frozenset(BookieId(name) for name in names)


def ensemble(*names: str) -> tuple[BookieId, ...]:
    return tuple(BookieId(name) for name in names)


def choose(cluster: Cluster, size: int, seed: int = 1) -> tuple[BookieId, ...] | None:
    return choose_ensemble(
        POLICY, cluster, ensemble_size=size, write_quorum=size, ack_quorum=1, chance=Random(seed)
    )


@given(count=st.integers(0, 8), size=st.integers(1, 8), seed=st.integers(0, 99))
def test_ensemble_has_distinct_bookies_or_does_not_exist(count: int, size: int, seed: int) -> None:
    cluster = Cluster(bookies(*(f"b{i}" for i in range(count))))
    chosen = choose(cluster, size, seed)
    if count < size:
        assert chosen is None
    else:
        assert chosen is not None
        assert len(set(chosen)) == size
        assert set(chosen) <= cluster.writable


def test_ensemble_avoids_read_only_and_excluded_bookies() -> None:
    cluster = Cluster(bookies("a", "b", "c"), read_only=bookies("r"))
    chosen = choose_ensemble(
        POLICY, cluster, ensemble_size=2, write_quorum=2, ack_quorum=1, chance=Random(1),
        exclude=bookies("b"),
    )  # fmt: skip
    assert chosen is not None
    assert set(chosen) == {"a", "c"}


def test_ensemble_takes_quarantined_bookies_only_when_it_must() -> None:
    cluster = Cluster(bookies("a", "b", "c"), quarantined=bookies("b"))
    for seed in range(20):
        assert set(choose(cluster, 2, seed) or ()) == {"a", "c"}
    assert set(choose(cluster, 3) or ()) == {"a", "b", "c"}


def test_same_seed_chooses_the_same_bookies() -> None:
    cluster = Cluster(bookies(*(f"b{i}" for i in range(20))))
    assert choose(cluster, 5, 7) == choose(cluster, 5, 7)
    assert len({choose(cluster, 5, seed) for seed in range(20)}) > 10


def test_free_space_draws_bookies_more_often() -> None:
    cluster = Cluster(bookies("big", "small"), weights={BookieId("big"): 9, BookieId("small"): 1})
    first = Counter((choose(cluster, 1, seed) or ("",))[0] for seed in range(400))
    assert first["big"] > 3 * first["small"]


def test_bookie_without_free_space_is_still_chosen_when_all_are_full() -> None:
    cluster = Cluster(bookies("a"), weights={BookieId("a"): 0})
    assert choose(cluster, 1) == ("a",)


def replace(
    cluster: Cluster, *failed: int, avoid: frozenset[BookieId] = bookies()
) -> dict[int, BookieId]:
    members = ensemble("a", "b", "c")
    return choose_replacements(
        POLICY, cluster, ensemble=members, failed={slot: members[slot] for slot in failed},
        chance=Random(3), avoid=avoid,
    )  # fmt: skip


def test_replacement_is_neither_a_member_nor_a_failed_bookie() -> None:
    cluster = Cluster(bookies("a", "b", "c", "d"))
    assert replace(cluster, 1) == {1: "d"}


def test_two_slots_never_get_the_same_replacement() -> None:
    cluster = Cluster(bookies("a", "b", "c", "d", "e"))
    assert set(replace(cluster, 0, 2).values()) == {"d", "e"}


def test_replacement_is_partial_when_bookies_run_out() -> None:
    cluster = Cluster(bookies("a", "b", "c", "d"))
    assert replace(cluster, 0, 2) == {0: "d"}


def test_no_replacement_is_no_choice() -> None:
    assert replace(Cluster(bookies("a", "b", "c")), 0) == {}


def test_doubtful_bookies_replace_only_when_there_is_no_other() -> None:
    cluster = Cluster(bookies("a", "b", "c", "d", "e", "f"), quarantined=bookies("d"))
    assert replace(cluster, 0, avoid=bookies("e")) == {0: "f"}
    assert replace(Cluster(bookies("d"), quarantined=bookies("d")), 0) == {0: "d"}
    assert replace(Cluster(bookies("e")), 0, avoid=bookies("e")) == {0: "e"}


def test_replicas_are_read_in_order_of_their_health() -> None:
    names = ensemble("gone", "slow2", "slow1", "ro", "new", "old", "well")
    cluster = Cluster(bookies("slow1", "slow2", "new", "old", "well"), read_only=bookies("ro"))
    health = Health(
        failed_at={BookieId("new"): 9.0, BookieId("old"): 1.0},
        slow=bookies("slow1", "slow2"),
        pending={BookieId("slow1"): 1, BookieId("slow2"): 5},
    )
    order = reordered(range(7), names, cluster, health)
    assert [names[slot] for slot in order] == ["well", "old", "new", "ro", "slow1", "slow2", "gone"]


def test_healthy_replicas_keep_the_order_of_the_write_set() -> None:
    names = ensemble("a", "b", "c", "d")
    assert reordered([2, 3, 0], names, Cluster(frozenset(names)), Health()) == (2, 3, 0)


def test_one_remote_replica_is_asked_after_a_few_local_ones() -> None:
    names = ensemble("l0", "l1", "l2", "r0", "r1")
    health = Health(remote=bookies("r0", "r1"))
    order = reordered(range(5), names, Cluster(frozenset(names)), health)
    assert [names[slot] for slot in order] == ["l0", "l1", "r0", "l2", "r1"]


def test_default_policy_asks_for_no_fault_domains() -> None:
    assert POLICY.is_spread([], 3)
