"""Which bookies a new ensemble gets, who takes over a slot, and in which order replicas are read.

A policy answers three questions of choice and one of judgement (`is_spread`). The default one
knows no topology; others, by rack, region or zone, answer the same questions. Everything it may
know about the cluster comes in as a value, chance as a `random.Random`.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from wire.types import BookieId


@dataclass(frozen=True, slots=True)
class Cluster:
    """The bookies as they are known now."""

    writable: frozenset[BookieId]
    read_only: frozenset[BookieId] = frozenset()
    quarantined: frozenset[BookieId] = frozenset()  # fail too often at present
    weights: Mapping[BookieId, float] = field(default_factory=dict)  # free space; empty: all alike


@dataclass(frozen=True, slots=True)
class Health:
    """What reads have shown about bookies."""

    failed_at: Mapping[BookieId, float] = field(default_factory=dict)  # the latest failure
    pending: Mapping[BookieId, int] = field(default_factory=dict)  # of the slow ones: requests open
    slow: frozenset[BookieId] = frozenset()
    remote: frozenset[BookieId] = frozenset()


class PlacementPolicy(Protocol):
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
        """Distinct bookies out of `candidates`, or None if they do not suffice."""

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
        """One of `candidates` to take over `slot`, or None if none of them will do.

        Without quorums the whole ensemble counts as one write set.
        """

    def read_order(
        self,
        slots: Sequence[int],
        ensemble: Sequence[BookieId],
        cluster: Cluster,
        health: Health,
    ) -> tuple[int, ...]:
        """The slots of a write set in the order in which to ask them."""

    def is_spread(self, bookies: Sequence[BookieId], write_quorum: int) -> bool:
        """Whether an ack quorum on these bookies spans enough fault domains to count."""

    def is_placed(self, ensemble: Sequence[BookieId], write_quorum: int, ack_quorum: int) -> bool:
        """Whether an existing ensemble is as the policy would have it."""


class DefaultPolicy:
    """Any writable bookie will do; those with more free space more often, if that is known."""

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
        left = set(candidates)
        chosen: list[BookieId] = []
        while len(chosen) < ensemble_size:
            if not left:
                return None
            chosen.append(draw(left, cluster.weights, chance))
            left.discard(chosen[-1])
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
        return draw(candidates, cluster.weights, chance) if candidates else None

    def read_order(
        self,
        slots: Sequence[int],
        ensemble: Sequence[BookieId],
        cluster: Cluster,
        health: Health,
    ) -> tuple[int, ...]:
        return reordered(slots, ensemble, cluster, health)

    def is_spread(self, bookies: Sequence[BookieId], write_quorum: int) -> bool:
        return True

    def is_placed(self, ensemble: Sequence[BookieId], write_quorum: int, ack_quorum: int) -> bool:
        return True


def weight_of(bookie_id: BookieId, weights: Mapping[BookieId, float]) -> float:
    """How often to draw a bookie: as often as an ordinary one, if its free space is not known."""
    return max(0.0, weights.get(bookie_id, 1.0))


def weights_by_space(
    free: Mapping[BookieId, int], *, max_multiple: float = 3.0
) -> dict[BookieId, float]:
    """Weights out of free bytes, the median being 1.

    An empty newcomer would draw every new ledger and with it all traffic, so no bookie counts for
    more than `max_multiple` ordinary ones; 0 lifts that bound.
    """
    if not free or (median := statistics.median(free.values())) <= 0:
        return {}
    bound = max_multiple if max_multiple > 0 else float("inf")
    return {bookie_id: min(space / median, bound) for bookie_id, space in free.items()}


def draw(
    candidates: Collection[BookieId], weights: Mapping[BookieId, float], chance: Random
) -> BookieId:
    names = sorted(candidates)  # a set has no order of its own: the same seed, the same choice
    shares = [weight_of(name, weights) for name in names] if weights else []
    if not any(shares):
        return chance.choice(names)
    return chance.choices(names, shares)[0]


# ---------------------------------------------------------------------- choosing


def choose_ensemble(
    policy: PlacementPolicy,
    cluster: Cluster,
    *,
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    chance: Random,
    exclude: Collection[BookieId] = (),
    shrink: bool = False,
) -> tuple[BookieId, ...] | None:
    """An ensemble for a new ledger; quarantined bookies only when it cannot be made without.

    With `shrink` (opportunistic striping) fewer bookies will do, down to the write quorum: the
    wish for more was for speed, not for safety.
    """
    usable = cluster.writable - frozenset(exclude)
    smallest = write_quorum if shrink else ensemble_size
    for size in range(ensemble_size, smallest - 1, -1):
        for candidates in (usable - cluster.quarantined, usable):
            ensemble = policy.new_ensemble(
                ensemble_size=size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                candidates=candidates,
                cluster=cluster,
                chance=chance,
            )
            if ensemble is not None:
                return ensemble
    return None


def choose_replacements(
    policy: PlacementPolicy,
    cluster: Cluster,
    *,
    ensemble: Sequence[BookieId],
    failed: Mapping[int, BookieId],
    chance: Random,
    avoid: Collection[BookieId] = (),
    write_quorum: int | None = None,
    ack_quorum: int | None = None,
) -> dict[int, BookieId]:
    """Bookies for the failed slots, as many as there are; none at all is NotEnoughBookies.

    Never a member of the ensemble and never one that fails just now. Bookies in quarantine, and
    those that failed a moment ago, come last: a doubtful copy is still better than a dead handle.
    """
    present = list(ensemble)
    usable = cluster.writable - frozenset(failed.values())
    chosen: dict[int, BookieId] = {}
    for slot in sorted(failed):
        others = usable - frozenset(present)
        for candidates in (others - cluster.quarantined - frozenset(avoid), others):
            bookie_id = policy.replacement(
                ensemble=present,
                slot=slot,
                candidates=candidates,
                cluster=cluster,
                chance=chance,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
            )
            if bookie_id is not None:
                chosen[slot] = present[slot] = bookie_id
                break
        else:
            break  # partial: what is left over fails again and comes back
    return chosen


# ---------------------------------------------------------------------- reading

#: A remote replica is asked after this many local ones, before the rest of them.
REMOTE_AFTER_LOCAL = 2


def reordered(
    slots: Sequence[int], ensemble: Sequence[BookieId], cluster: Cluster, health: Health
) -> tuple[int, ...]:
    """Healthy replicas first, and within each class the order of the write set.

    Then those with a failure, the oldest first; remote ones; read-only ones; slow ones, the least
    busy first; at last those that are not registered. One remote replica is moved up behind a few
    local ones, because all local ones may be in trouble together.
    """

    def rank(slot: int) -> tuple[int, float]:
        bookie_id = ensemble[slot]
        if bookie_id not in cluster.writable and bookie_id not in cluster.read_only:
            return 5, 0.0
        if bookie_id in health.slow:
            return 4, float(health.pending.get(bookie_id, 0))
        if bookie_id in cluster.read_only:
            return 3, 0.0
        if bookie_id in health.remote:
            return 2, 0.0
        if bookie_id in health.failed_at:
            return 1, health.failed_at[bookie_id]
        return 0, 0.0

    order = sorted(slots, key=rank)
    remote = next((i for i, slot in enumerate(order) if rank(slot)[0] == 2), None)
    if remote is not None and remote > REMOTE_AFTER_LOCAL:
        order.insert(REMOTE_AFTER_LOCAL, order.pop(remote))
    return tuple(order)
