"""Which fragments to move so that bookies are about equally full.

Bookies above the average by more than a tolerance give, those below it take. Ledgers are looked at
one by one, in whatever order they come, and a fragment is moved where that brings the giver nearer
to the average and nobody else away from it. Only closed ledgers are touched: what is still written
moves by itself when its writer begins the next one.

Greedy on purpose. A plan is shown to people before it is carried out, so each move must make sense
by itself; and whatever is left over, the next plan finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

from ledger_client.core.distribution import Distribution
from ledger_client.core.placement import Cluster, PlacementPolicy
from metadata.model import LedgerMetadata
from wire.types import BookieId, LedgerId

#: Of an entry, beside its payload.
_ENTRY_OVERHEAD_BYTES = 40


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a bookie is."""

    bookie_id: BookieId
    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True, slots=True)
class PlannedMove:
    ledger_id: LedgerId
    first_entry_id: int
    source: BookieId
    target: BookieId
    bytes: int  # an estimate, from the length of the ledger


@dataclass(frozen=True, slots=True)
class Plan:
    moves: tuple[PlannedMove, ...]
    #: Shares of the disks in use, as they are and as they will be.
    before: Mapping[BookieId, float]
    after: Mapping[BookieId, float]
    #: Why it stops here, in words for people.
    ends: str

    @property
    def bytes(self) -> int:
        return sum(move.bytes for move in self.moves)


class Planner:
    """Offer it ledgers until it is done, then take the plan."""

    def __init__(
        self,
        usages: Iterable[Usage],
        *,
        policy: PlacementPolicy,
        writable: frozenset[BookieId],
        chance: Random,
        tolerance: float = 0.05,
        bytes_max: int | None = None,
        moves_max: int = 10_000,
    ) -> None:
        known = list(usages)
        self._totals = {usage.bookie_id: usage.total_bytes for usage in known}
        self._used = {usage.bookie_id: float(usage.used_bytes) for usage in known}
        self._before = self._shares()
        self._policy = policy
        self._writable = writable & self._totals.keys()
        self._chance = chance
        self._tolerance = tolerance
        self._bytes_max = bytes_max
        self._moves_max = moves_max
        self._moves: list[PlannedMove] = []
        self._bytes = 0
        total = sum(self._totals.values())
        self._average = sum(self._used.values()) / total if total else 0.0
        self._is_spent = False

    def _shares(self) -> dict[BookieId, float]:
        return {name: self._used[name] / max(1, total) for name, total in self._totals.items()}

    def _share(self, name: BookieId) -> float:
        return self._used[name] / max(1, self._totals[name])

    @property
    def is_done(self) -> bool:
        return self._is_spent or not any(
            self._share(name) > self._average + self._tolerance for name in self._totals
        )

    def offer(self, metadata: LedgerMetadata) -> None:
        """Look at a ledger, and move what may be moved of it."""
        if self.is_done or metadata.last_entry_id is None or metadata.last_entry_id < 0:
            return
        distribution = Distribution.of(metadata)
        entry_bytes = metadata.length // (metadata.last_entry_id + 1) + _ENTRY_OVERHEAD_BYTES
        for found in metadata.ranges():
            fragment, last = found.fragment, found.last_entry_id
            if last is None or last < fragment.first_entry_id:
                continue
            # One slot per fragment and plan: two at once would each count on the other staying.
            for slot in self._fullest_first(fragment.ensemble):
                count = distribution.count_of(slot=slot, first=fragment.first_entry_id, last=last)
                size = count * entry_bytes
                target = self._target(fragment.ensemble, slot, size)
                if target is not None:
                    self._move(
                        metadata.ledger_id,
                        fragment.first_entry_id,
                        fragment.ensemble[slot],
                        target,
                        size,
                    )
                    break

    def _fullest_first(self, ensemble: tuple[BookieId, ...]) -> list[int]:
        known = [slot for slot, name in enumerate(ensemble) if name in self._totals]
        return sorted(known, key=lambda slot: -self._share(ensemble[slot]))

    def _target(self, ensemble: tuple[BookieId, ...], slot: int, size: int) -> BookieId | None:
        source = ensemble[slot]
        if size == 0:
            return None
        if self._share(source) <= self._average + self._tolerance:
            return None
        if self._bytes_max is not None and self._bytes + size > self._bytes_max:
            return None
        candidates = {
            name
            for name in self._writable - frozenset(ensemble)
            if (self._used[name] + size) / max(1, self._totals[name]) <= self._average
        }
        room = {name: self._average - self._share(name) for name in candidates}
        return self._policy.replacement(
            ensemble=ensemble,
            slot=slot,
            candidates=candidates,
            cluster=Cluster(frozenset(candidates), weights=room),
            chance=self._chance,
        )

    def _move(
        self,
        ledger_id: LedgerId,
        first_entry_id: int,
        source: BookieId,
        target: BookieId,
        size: int,
    ) -> None:
        self._moves.append(PlannedMove(ledger_id, first_entry_id, source, target, size))
        self._used[source] -= size
        self._used[target] += size
        self._bytes += size
        self._is_spent = len(self._moves) >= self._moves_max

    def plan(self) -> Plan:
        ends = "every bookie is within the tolerance"
        if self._is_spent:
            ends = f"{self._moves_max} moves are enough for one plan: plan again afterwards"
        elif not self.is_done:
            ends = "nothing more can be moved within the limits"
        return Plan(tuple(self._moves), self._before, self._shares(), ends)
