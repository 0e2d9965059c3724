"""Placement by rack, region and zone: one policy over rules, and the three that operators know.

The rules are tried in order, the strictest set first. Whether the last set is empty says whether
a ledger may be placed badly rather than not at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random

from ledger_client.core.placement import Cluster, Health, draw, reordered, weight_of
from ledger_client.core.spread import Rule, Search, Wishes, by_preference, keeps
from ledger_client.core.topology import Location, Locations
from wire.types import BookieId


class TopologyPolicy:
    """Ensembles that keep rules about the places of their bookies."""

    def __init__(
        self,
        locations: Locations,
        *,
        rules: Sequence[Sequence[Rule]],
        replacement_rules: Sequence[Sequence[Rule]] | None = None,
        judged_by: Sequence[Rule] | None = None,
        ack_rule: Rule,
        wishes: Wishes,
    ) -> None:
        self._locations = locations
        self._rules = rules
        self._replacement_rules = rules if replacement_rules is None else replacement_rules
        self._judged_by = rules[0] if judged_by is None else judged_by
        self._ack_rule = ack_rule
        self._wishes = wishes

    # ------------------------------------------------------------------ choosing

    def new_ensemble(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        candidates: Collection[BookieId],
        cluster: Cluster,
        chance: Random,
    ) -> tuple[BookieId, ...] | None:
        groups = self._groups(candidates)
        if sum(map(len, groups.values())) < ensemble_size:
            return None
        for rules in self._rules:
            places = Search(
                rooms={location: len(group) for location, group in groups.items()},
                shares=_shares(groups, cluster),
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                rules=rules,
                wishes=self._wishes,
                chance=chance,
            ).run()
            if places is not None:
                return self._bookies_at(places, groups, cluster, chance)
        return None

    def _bookies_at(
        self,
        places: Sequence[Location],
        groups: dict[Location, set[BookieId]],
        cluster: Cluster,
        chance: Random,
    ) -> tuple[BookieId, ...]:
        chosen = []
        for place in places:
            chosen.append(draw(groups[place], cluster.weights, chance))
            groups[place].discard(chosen[-1])
        return tuple(chosen)

    def replacement(
        self,
        *,
        ensemble: Sequence[BookieId],
        slot: int,
        candidates: Collection[BookieId],
        cluster: Cluster,
        chance: Random,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
    ) -> BookieId | None:
        groups = self._groups(candidates)
        write_quorum = write_quorum or len(ensemble)
        ack_quorum = ack_quorum or write_quorum
        places: list[Location | None] = [self._locations.of(member) for member in ensemble]
        wishes = self._wishes_beside(self._locations.of(ensemble[slot]))
        shares = _shares(groups, cluster)
        for rules in self._replacement_rules:
            for location in by_preference(shares, places, slot, write_quorum, wishes, chance):
                places[slot] = location
                if keeps(rules, places, slot, write_quorum, ack_quorum):
                    return draw(groups[location], cluster.weights, chance)
        return None

    def _wishes_beside(self, place: Location) -> Wishes:
        """The wishes for a bookie that takes over from one at `place`."""
        return replace(self._wishes, local=None)

    def _groups(self, candidates: Collection[BookieId]) -> dict[Location, set[BookieId]]:
        groups: dict[Location, set[BookieId]] = defaultdict(set)
        for bookie_id in candidates:
            location = self._locations.of(bookie_id)
            if self._is_allowed(location):
                groups[location].add(bookie_id)
        return dict(groups)

    def _is_allowed(self, location: Location) -> bool:
        return True

    # ------------------------------------------------------------------ judging

    def is_spread(self, bookies: Sequence[BookieId], write_quorum: int) -> bool:
        domains = {self._ack_rule.domain(self._locations.of(bookie_id)) for bookie_id in bookies}
        return len(domains) >= min(self._ack_rule.minimum or write_quorum, write_quorum)

    def is_placed(self, ensemble: Sequence[BookieId], write_quorum: int, ack_quorum: int) -> bool:
        places = [self._locations.of(member) for member in ensemble]
        return all(
            keeps(self._judged_by, places, slot, write_quorum, ack_quorum)
            for slot in range(len(places))
        )

    def read_order(
        self,
        slots: Sequence[int],
        ensemble: Sequence[BookieId],
        cluster: Cluster,
        health: Health,
    ) -> tuple[int, ...]:
        return reordered(slots, ensemble, cluster, health)


class RackAware(TopologyPolicy):
    """Every write set spans racks, the first replica in the client's own.

    `enforce` refuses a ledger that cannot be placed so; otherwise it is placed as well as can be.
    """

    def __init__(
        self,
        locations: Locations,
        *,
        minimum_racks: int = 2,
        enforce: bool = False,
        local: Location | None = None,
    ) -> None:
        rule = Rule(minimum_racks)
        super().__init__(
            locations,
            rules=[[rule]] if enforce else [[rule], []],
            ack_rule=rule,
            wishes=Wishes(local=local),
        )


class RegionAware(TopologyPolicy):
    """Every ack quorum spans regions, and write sets span racks inside them.

    So what is confirmed outlives the loss of a region. With `enforce_replacement` a failed bookie
    is replaced only so that this remains; otherwise one of its own region is preferred to that.
    """

    def __init__(
        self,
        locations: Locations,
        *,
        minimum_regions: int = 2,
        minimum_racks: int = 2,
        enforce_replacement: bool = False,
        regions: Collection[str] = (),
        local: Location | None = None,
    ) -> None:
        durable = Rule(minimum_regions, depth=1, of_acks=True)
        racks = Rule(minimum_racks)
        rules = [[durable, racks], [durable]]
        super().__init__(
            locations,
            rules=rules,
            replacement_rules=rules if enforce_replacement else [*rules, []],
            ack_rule=racks,
            wishes=Wishes(local=local and local[:1], depths=(1, None)),
        )
        self._regions = frozenset(regions)
        self._local = local

    def _wishes_beside(self, place: Location) -> Wishes:
        return replace(self._wishes, local=place[:1], near=place[:1])

    def _is_allowed(self, location: Location) -> bool:
        return not self._regions or location[0] in self._regions

    def read_order(
        self,
        slots: Sequence[int],
        ensemble: Sequence[BookieId],
        cluster: Cluster,
        health: Health,
    ) -> tuple[int, ...]:
        """Replicas of other regions after those of our own."""
        if self._local is not None:
            home = self._local[:1]
            remote = {
                bookie_id for bookie_id in ensemble if self._locations.of(bookie_id)[:1] != home
            }
            health = replace(health, remote=health.remote | remote)
        return reordered(slots, ensemble, cluster, health)


class ZoneAware(TopologyPolicy):
    """Every write set spans zones, and within a zone upgrade domains.

    Strict, it never takes a bookie whose zone is not known and never two of one upgrade domain;
    otherwise it takes what there is. More zones than the minimum are used where they exist.
    """

    def __init__(
        self,
        locations: Locations,
        *,
        minimum_zones: int = 2,
        desired_zones: int = 3,
        strict: bool = True,
        local: Location | None = None,
    ) -> None:
        minimum, desired = Rule(minimum_zones, depth=1), Rule(desired_zones, depth=1)
        apart = Rule(None)
        rules = [[desired, apart], [minimum, apart]]
        super().__init__(
            locations,
            rules=rules if strict else [*rules, []],
            judged_by=[minimum, apart],
            ack_rule=minimum,
            wishes=Wishes(local=local and local[:1], depths=(1, None)),
        )
        self._strict = strict

    def _is_allowed(self, location: Location) -> bool:
        return not self._strict or location != self._locations.default


def _shares(groups: dict[Location, set[BookieId]], cluster: Cluster) -> dict[Location, float]:
    """A domain is drawn as often as its bookies together would be."""
    return {
        location: sum(weight_of(bookie_id, cluster.weights) for bookie_id in group)
        for location, group in groups.items()
    }
