"""Placement by rack, region and zone: the rules hold in every write set, or there is no ledger."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_client.core.placement import (
    Cluster,
    Health,
    choose_ensemble,
    choose_replacements,
    weights_by_space,
)
from ledger_client.core.spread import Rule, windows
from ledger_client.core.topology import Location, Locations, parse_location, show_location
from ledger_client.core.topology_placement import (
    RackAware,
    RegionAware,
    TopologyPolicy,
    ZoneAware,
)
from wire.errors import BadRequestError
from wire.types import BookieId


def place(**groups: str) -> Locations:
    """`place(a="/eu/r1 /eu/r1")`: bookies a0 and a1 there. Letters group, numbers count."""
    return Locations(
        {
            BookieId(f"{letter}{number}"): parse_location(location)
            for letter, locations in groups.items()
            for number, location in enumerate(locations.split())
        }
    )


def cluster_of(locations: Locations, *more: str) -> Cluster:
    names = [*locations.bookies, *(BookieId(name) for name in more)]
    return Cluster(frozenset(names))


def choose(
    policy: TopologyPolicy,
    cluster: Cluster,
    shape: tuple[int, int, int],
    seed: int = 1,
    *,
    shrink: bool = False,
) -> tuple[BookieId, ...] | None:
    size, write_quorum, ack_quorum = shape
    return choose_ensemble(
        policy, cluster, ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum,
        chance=Random(seed), shrink=shrink,
    )  # fmt: skip


def domains(
    ensemble: tuple[BookieId, ...], locations: Locations, write_quorum: int, depth: int | None
) -> list[set[Location]]:
    return [
        {locations.of(ensemble[slot])[:depth] for slot in window}
        for first in range(len(ensemble))
        for window in [list(windows(first, len(ensemble), write_quorum))[-1]]
    ]


# ---------------------------------------------------------------------- locations


def test_location_is_read_and_shown_in_parts() -> None:
    assert parse_location("/eu/rack-7") == ("eu", "rack-7")
    assert show_location(("eu", "rack-7")) == "/eu/rack-7"


@pytest.mark.parametrize("text", ["", "/", "rack", "/eu/", "//r", "/eu//r", " /r"])
def test_location_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="/region/rack"):
        parse_location(text)


def test_bookie_that_nobody_placed_stands_at_the_default() -> None:
    locations = place(a="/r1")
    assert locations.of(BookieId("zz")) == ("default-rack",)
    locations.learn({BookieId("zz"): ("r9",)})
    assert locations.of(BookieId("zz")) == ("r9",)
    locations.forget(BookieId("zz"))
    assert not locations.is_known(BookieId("zz"))


# ---------------------------------------------------------------------- the search


@st.composite
def racks_and_shapes(chance: st.DrawFn) -> tuple[list[int], int, int]:
    racks = chance(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    size = chance(st.integers(1, 5))
    return racks, size, chance(st.integers(1, size))


@settings(max_examples=150)
@given(case=racks_and_shapes(), minimum=st.integers(1, 4), seed=st.integers(0, 9))
def test_ensemble_is_found_whenever_there_is_one(
    case: tuple[list[int], int, int], minimum: int, seed: int
) -> None:
    """Against a dumb model: try every order of racks."""
    racks, size, write_quorum = case
    locations = Locations(
        {
            BookieId(f"b{rack}-{number}"): (f"r{rack}",)
            for rack, count in enumerate(racks)
            for number in range(count)
        }
    )
    places = [locations.of(name) for name in sorted(locations.bookies)]
    rule = Rule(minimum)
    exists = any(
        all(
            rule.holds([order[slot] for slot in window], 1)
            for first in range(size)
            for window in windows(first, size, write_quorum)
        )
        for order in set(permutations(places, size))
    )
    policy = RackAware(locations, minimum_racks=minimum, enforce=True)
    chosen = choose(policy, cluster_of(locations), (size, write_quorum, 1), seed)
    assert (chosen is not None) == exists
    if chosen is not None:
        assert len(set(chosen)) == size
        for found in domains(chosen, locations, write_quorum, None):
            assert len(found) >= min(minimum, write_quorum)


def test_ack_rule_counts_the_fewest_domains_of_an_ack_quorum() -> None:
    rule = Rule(2, depth=1, of_acks=True)
    assert not rule.holds([("eu", "1"), ("eu", "2"), ("us", "1")], ack_quorum=2)
    assert rule.holds([("eu", "1"), ("us", "2"), ("as", "1")], ack_quorum=2)
    assert rule.holds([("eu", "1"), ("eu", "2"), ("us", "1")], ack_quorum=3)
    assert rule.holds([("eu", "1"), None, None], ack_quorum=2)


def test_search_among_many_bookies_stays_within_its_budget() -> None:
    locations = Locations({BookieId(f"b{n}"): ("eu", f"r{n % 40}") for n in range(400)})
    policy = RegionAware(locations, minimum_regions=2)
    assert choose(policy, cluster_of(locations), (7, 5, 3)) is None


# ---------------------------------------------------------------------- racks


def test_first_replica_is_in_the_local_rack() -> None:
    locations = place(a="/r1 /r1", b="/r2 /r2", c="/r3 /r3")
    policy = RackAware(locations, local=("r2",))
    for seed in range(20):
        chosen = choose(policy, cluster_of(locations), (3, 3, 2), seed)
        assert chosen is not None
        assert locations.of(chosen[0]) == ("r2",)
        assert len({locations.of(member) for member in chosen}) == 3


def test_single_rack_is_refused_only_when_enforced() -> None:
    locations = place(a="/r1 /r1 /r1")
    shape = (3, 3, 2)
    assert choose(RackAware(locations, enforce=True), cluster_of(locations), shape) is None
    assert choose(RackAware(locations), cluster_of(locations), shape) is not None


def test_replacement_keeps_the_racks_apart() -> None:
    locations = place(a="/r1", b="/r2", c="/r2 /r2", d="/r1")
    members = tuple(BookieId(name) for name in ("a0", "b0"))
    policy = RackAware(locations, enforce=True)
    for seed in range(10):
        chosen = choose_replacements(
            policy, cluster_of(locations), ensemble=members, failed={0: BookieId("a0")},
            chance=Random(seed), write_quorum=2, ack_quorum=2,
        )  # fmt: skip
        assert chosen == {0: "d0"}


def test_replacement_looks_at_its_own_write_sets_only() -> None:
    """Slots 0 and 2 of four are never in one write set of two."""
    locations = place(a="/r1", b="/r2", c="/r3", d="/r4", e="/r1 /r2 /r4")
    members = tuple(BookieId(f"{name}0") for name in "abcd")
    policy = RackAware(locations, enforce=True)
    cluster = Cluster(frozenset({*members, BookieId("e0"), BookieId("e1"), BookieId("e2")}))
    for seed in range(10):
        chosen = choose_replacements(
            policy, cluster, ensemble=members, failed={2: members[2]}, chance=Random(seed),
            write_quorum=2, ack_quorum=2,
        )  # fmt: skip
        assert chosen == {2: "e0"}


def test_no_replacement_is_better_than_a_bad_one_when_enforced() -> None:
    locations = place(a="/r1", b="/r2 /r2")
    members = (BookieId("a0"), BookieId("b0"))
    failed = {0: BookieId("a0")}
    for enforce, expected in ((True, {}), (False, {0: "b1"})):
        policy = RackAware(locations, enforce=enforce)
        chosen = choose_replacements(
            policy, cluster_of(locations), ensemble=members, failed=failed, chance=Random(1),
            write_quorum=2, ack_quorum=2,
        )  # fmt: skip
        assert chosen == expected


def test_acks_count_once_they_span_the_racks() -> None:
    locations = place(a="/r1 /r1", b="/r2")
    policy = RackAware(locations)
    assert not policy.is_spread([BookieId("a0"), BookieId("a1")], 3)
    assert policy.is_spread([BookieId("a0"), BookieId("b0")], 3)
    assert policy.is_spread([BookieId("a0")], 1)


def test_existing_ensemble_is_judged_in_every_write_set() -> None:
    locations = place(a="/r1 /r1", b="/r2 /r2")
    a0, a1, b0, b1 = (BookieId(name) for name in ("a0", "a1", "b0", "b1"))
    policy = RackAware(locations)
    assert policy.is_placed([a0, b0, a1, b1], 2, 2)
    assert not policy.is_placed([a0, a1, b0, b1], 2, 2)


def test_free_space_decides_between_racks_too() -> None:
    locations = place(a="/r1", b="/r2")
    cluster = Cluster(locations.bookies, weights={BookieId("a0"): 9.0, BookieId("b0"): 1.0})
    first = Counter(
        (choose(RackAware(locations), cluster, (1, 1, 1), n) or "")[0] for n in range(200)
    )
    assert first["a0"] > 3 * first["b0"]


# ---------------------------------------------------------------------- regions


def test_every_ack_quorum_spans_two_regions() -> None:
    locations = place(a="/eu/1 /eu/2 /eu/3", b="/us/1 /us/2 /us/3", c="/as/1 /as/2")
    policy = RegionAware(locations, local=("eu", "1"))
    for seed in range(20):
        chosen = choose(policy, cluster_of(locations), (6, 3, 2), seed)
        assert chosen is not None
        assert locations.of(chosen[0])[0] == "eu"
        for found in domains(chosen, locations, 3, 1):
            assert len(found) == 3


def test_one_region_cannot_hold_a_ledger_that_must_outlive_it() -> None:
    locations = place(a="/eu/1 /eu/2 /eu/3")
    assert choose(RegionAware(locations), cluster_of(locations), (3, 3, 2)) is None
    policy = RegionAware(locations, minimum_regions=1)
    assert choose(policy, cluster_of(locations), (3, 3, 2)) is not None


def test_two_regions_do_not_hold_three_copies_that_any_two_confirm() -> None:
    locations = place(a="/eu/1 /eu/2", b="/us/1 /us/2")
    assert choose(RegionAware(locations), cluster_of(locations), (3, 3, 2)) is None
    assert choose(RegionAware(locations), cluster_of(locations), (4, 4, 3)) is not None


def test_region_that_is_not_listed_gets_no_ledger() -> None:
    locations = place(a="/eu/1 /eu/2", b="/us/1 /us/2", c="/as/1 /as/2")
    policy = RegionAware(locations, regions=["eu", "us"])
    for seed in range(10):
        chosen = choose(policy, cluster_of(locations), (2, 2, 2), seed)
        assert chosen is not None
        assert {locations.of(member)[0] for member in chosen} == {"eu", "us"}


def test_replacement_comes_from_the_region_that_lost_a_bookie() -> None:
    locations = place(a="/eu/1 /eu/2", b="/us/1", c="/as/1 /as/2")
    members = tuple(BookieId(name) for name in ("a0", "b0", "c0"))
    for seed in range(10):
        chosen = choose_replacements(
            RegionAware(locations), cluster_of(locations), ensemble=members, failed={0: members[0]},
            chance=Random(seed), write_quorum=3, ack_quorum=2,
        )  # fmt: skip
        assert chosen == {0: "a1"}


@pytest.mark.parametrize(("enforce", "expected"), [(True, {}), (False, {0: "b1"})])
def test_replacement_across_regions_is_refused_only_when_enforced(
    enforce: bool, expected: dict[int, str]
) -> None:
    locations = place(a="/eu/1", b="/us/1 /us/2", c="/as/1")
    members = tuple(BookieId(name) for name in ("a0", "b0", "c0"))
    policy = RegionAware(locations, enforce_replacement=enforce)
    chosen = choose_replacements(
        policy, cluster_of(locations), ensemble=members, failed={0: members[0]}, chance=Random(1),
        write_quorum=3, ack_quorum=2,
    )  # fmt: skip
    assert chosen == expected


def test_other_regions_are_read_after_our_own() -> None:
    locations = place(a="/eu/1 /eu/2", b="/us/1")
    members = tuple(BookieId(name) for name in ("b0", "a0", "a1"))
    cluster = cluster_of(locations)
    slots = (0, 1, 2)
    home = RegionAware(locations, local=("eu", "1"))
    assert home.read_order(slots, members, cluster, Health()) == (1, 2, 0)
    assert RegionAware(locations).read_order(slots, members, cluster, Health()) == slots


# ---------------------------------------------------------------------- zones


def test_write_set_spans_zones_and_upgrade_domains() -> None:
    locations = place(a="/z1/u1 /z1/u2 /z1/u1", b="/z2/u1 /z2/u2 /z2/u2")
    policy = ZoneAware(locations)
    for seed in range(20):
        chosen = choose(policy, cluster_of(locations), (3, 3, 2), seed)
        assert chosen is not None
        assert len({locations.of(member)[0] for member in chosen}) == 2
        assert len({locations.of(member) for member in chosen}) == 3


def test_third_zone_is_used_where_there_is_one() -> None:
    locations = place(a="/z1/u1 /z1/u2", b="/z2/u1 /z2/u2", c="/z3/u1")
    for seed in range(20):
        chosen = choose(ZoneAware(locations), cluster_of(locations), (3, 3, 2), seed)
        assert chosen is not None
        assert len({locations.of(member)[0] for member in chosen}) == 3


def test_bookie_of_no_known_zone_is_taken_only_when_not_strict() -> None:
    locations = place(a="/z1/u1", b="/z2/u1")
    cluster = cluster_of(locations, "lost")
    assert choose(ZoneAware(locations), cluster, (3, 3, 2)) is None
    assert choose(ZoneAware(locations, strict=False), cluster, (3, 3, 2)) is not None


def test_two_zones_satisfy_the_judgement_though_three_are_desired() -> None:
    locations = place(a="/z1/u1 /z1/u2", b="/z2/u1")
    names = [BookieId(name) for name in ("a0", "a1", "b0")]
    assert ZoneAware(locations).is_placed(names, 3, 2)
    assert not ZoneAware(locations).is_placed(names[:2], 2, 2)
    assert not ZoneAware(locations).is_spread(names[:2], 3)
    assert ZoneAware(locations).is_spread(names[1:], 3)


# ---------------------------------------------------------------------- sizes and weights


def test_ensemble_shrinks_to_what_is_there_but_never_below_the_write_quorum() -> None:
    locations = place(a="/r1 /r2 /r1")
    policy, cluster = RackAware(locations), cluster_of(locations)
    assert choose(policy, cluster, (5, 2, 2)) is None
    assert len(choose(policy, cluster, (5, 2, 2), shrink=True) or ()) == 3
    assert choose(policy, cluster, (5, 4, 2), shrink=True) is None


def test_empty_newcomer_counts_for_three_at_most() -> None:
    free = {BookieId("old"): 100, BookieId("older"): 100, BookieId("new"): 5000}
    assert weights_by_space(free) == {"old": 1.0, "older": 1.0, "new": 3.0}
    assert weights_by_space(free, max_multiple=0)[BookieId("new")] == 50.0
    assert weights_by_space({}) == {}
    assert weights_by_space({BookieId("full"): 0}) == {}
