"""Rules about fault domains, and the search for an ensemble that keeps them.

A rule speaks of write sets: every run of `write_quorum` neighbouring slots, the last slot being a
neighbour of the first. The search decides slot by slot which domain each gets and goes back where
it has to, so that it finds an ensemble where a greedy walk would give up; a budget bounds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from ledger_client.core.topology import Location

#: Steps of one search. Real clusters need as many as the ensemble has slots, or a few more.
_BUDGET: Final = 5_000


@dataclass(frozen=True, slots=True)
class Rule:
    """Each write set spans at least so many domains."""

    minimum: int | None  # None: no two of its slots share a domain
    depth: int | None = None  # leading parts of a location that name the domain; None: all of them
    of_acks: bool = False  # even the ack quorum with the fewest domains must span that many

    def domain(self, location: Location) -> Location:
        return location if self.depth is None else location[: self.depth]

    def holds(self, places: Sequence[Location | None], ack_quorum: int) -> bool:
        """Whether a write set keeps the rule; a slot without a place yet may turn out well."""
        counts = Counter(self.domain(place) for place in places if place is not None)
        open_slots = sum(place is None for place in places)
        size = ack_quorum if self.of_acks else len(places)
        wanted = size if self.minimum is None else min(self.minimum, size)
        if not self.of_acks:
            return len(counts) + open_slots >= wanted
        # An ack quorum may fall on the most crowded domains: count how few of them make one up.
        reached = domains = 0
        for count in sorted((*counts.values(), *[1] * open_slots), reverse=True):
            if reached >= ack_quorum:
                break
            reached, domains = reached + count, domains + 1
        return domains >= wanted


def windows(slot: int, ensemble_size: int, write_quorum: int) -> Iterator[list[int]]:
    """The write sets that a slot belongs to."""
    for first in range(slot - write_quorum + 1, slot + 1):
        yield [(first + step) % ensemble_size for step in range(write_quorum)]


def keeps(
    rules: Sequence[Rule],
    places: Sequence[Location | None],
    slot: int,
    write_quorum: int,
    ack_quorum: int,
) -> bool:
    """Whether every write set with this slot in it keeps every rule."""
    return all(
        rule.holds([places[other] for other in window], ack_quorum)
        for window in windows(slot, len(places), write_quorum)
        for rule in rules
    )


@dataclass(frozen=True, slots=True)
class Wishes:
    """What decides between domains that the rules allow."""

    local: Location | None = None  # where the first slot had best be
    near: Location | None = None  # where all others had best be
    depths: tuple[int | None, ...] = (None,)  # domains to keep apart, the widest first


def by_preference(
    shares: Mapping[Location, float],
    places: Sequence[Location | None],
    slot: int,
    write_quorum: int,
    wishes: Wishes,
    chance: Random,
) -> list[Location]:
    """Domains for a slot: nearest first, then those its neighbours use least, then by chance."""
    around = {other for window in windows(slot, len(places), write_quorum) for other in window}
    beside = [places[other] for other in around - {slot}]
    neighbours = [place for place in beside if place is not None]
    ranks: dict[Location, tuple[float, ...]] = {}
    for location, share in sorted(shares.items()):
        crowd = [
            sum(place[:depth] == location[:depth] for place in neighbours)
            for depth in wishes.depths
        ]
        # A larger share wins more often: the draw of the first of a weighted shuffle.
        luck = -(chance.random() ** (1.0 / max(share, 1e-9)))
        home = wishes.local if slot == 0 else wishes.near
        ranks[location] = (_distance(location, home), *crowd, luck)
    return sorted(ranks, key=lambda location: ranks[location])


def _distance(location: Location, other: Location | None) -> int:
    """How many parts of `other`, from the front, the location does not share."""
    if other is None:
        return 0
    shared = 0
    for mine, theirs in zip(location, other, strict=False):
        if mine != theirs:
            break
        shared += 1
    return len(other) - shared


@dataclass(slots=True)
class Search:
    """One attempt to give each slot a domain under a set of rules."""

    rooms: dict[Location, int]  # bookies left in each domain
    shares: Mapping[Location, float]  # how often each domain should be drawn
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    rules: Sequence[Rule]
    wishes: Wishes
    chance: Random
    budget: int = _BUDGET

    def run(self) -> list[Location] | None:
        places: list[Location | None] = [None] * self.ensemble_size
        return [place for place in places if place] if self._fill(places, 0) else None

    def _fill(self, places: list[Location | None], slot: int) -> bool:
        if slot == self.ensemble_size:
            return True
        shares = {location: self.shares[location] for location, room in self.rooms.items() if room}
        for location in by_preference(
            shares, places, slot, self.write_quorum, self.wishes, self.chance
        ):
            if self.budget <= 0:
                return False
            self.budget -= 1
            places[slot] = location
            self.rooms[location] -= 1
            if keeps(self.rules, places, slot, self.write_quorum, self.ack_quorum) and self._fill(
                places, slot + 1
            ):
                return True
            self.rooms[location] += 1
        places[slot] = None
        return False
