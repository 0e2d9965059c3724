"""Which moves put a closed ledger where the placement policy would have it.

A placement check marks such a ledger without naming anybody. Whoever takes the mark asks here for
moves: as few as do it, and none at all if they would not, since moving data for nothing is worse
than a spread that could be better.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ledger_client.core.placement import Cluster, PlacementPolicy
from metadata.model import Fragment, LedgerMetadata
from wire.types import BookieId


@dataclass(frozen=True, slots=True)
class Relocation:
    """One slot of one fragment goes to another bookie."""

    first_entry_id: int
    source: BookieId
    target: BookieId


def relocations(
    metadata: LedgerMetadata, policy: PlacementPolicy, cluster: Cluster, chance: Random
) -> list[Relocation]:
    """Moves for every fragment that is not placed well and can be, in the order of fragments."""
    if not metadata.is_closed:
        return []
    found: list[Relocation] = []
    for fragment in metadata.fragments:
        found += _for_fragment(fragment, metadata, policy, cluster, chance)
    return found


def _for_fragment(
    fragment: Fragment,
    metadata: LedgerMetadata,
    policy: PlacementPolicy,
    cluster: Cluster,
    chance: Random,
) -> list[Relocation]:
    quorums = (metadata.write_quorum, metadata.ack_quorum)
    ensemble = list(fragment.ensemble)
    moves: list[Relocation] = []

    def moved(slot: int) -> list[BookieId] | None:
        candidates = cluster.writable - frozenset(ensemble) - frozenset(fragment.ensemble)
        target = policy.replacement(
            ensemble=ensemble,
            slot=slot,
            candidates=candidates,
            cluster=cluster,
            chance=chance,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
        )
        if target is None:
            return None
        return [*ensemble[:slot], target, *ensemble[slot + 1 :]]

    for fixed in range(len(ensemble)):
        if policy.is_placed(ensemble, *quorums):
            return moves
        # One more move that does it, whichever slot that is; else this slot's, and again.
        options = {slot: moved(slot) for slot in range(fixed, len(ensemble))}
        good = [s for s, option in options.items() if option and policy.is_placed(option, *quorums)]
        slot = good[0] if good else fixed
        chosen = options[slot]
        if chosen is None:
            continue
        moves.append(Relocation(fragment.first_entry_id, ensemble[slot], chosen[slot]))
        ensemble = chosen
    return moves if policy.is_placed(ensemble, *quorums) else []
