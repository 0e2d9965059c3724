"""Moves towards a better spread: few, and only if they lead there."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from autorecovery.core.audit_placement import Relocation, relocations
from ledger_client.core.placement import Cluster, DefaultPolicy
from metadata.model import Fragment, LedgerMetadata, LedgerState
from wire.types import BookieId, LedgerId

#: Two racks: even numbers and odd ones.
NAMES = [BookieId(f"bk{number}:3181") for number in range(8)]


def rack(name: BookieId) -> int:
    return int(name[2]) % 2


class TwoRacks(DefaultPolicy):
    def __init__(self, at_least: int = 1) -> None:
        self._at_least = at_least

    def is_placed(self, ensemble: Sequence[BookieId], write_quorum: int, ack_quorum: int) -> bool:
        return sum(map(rack, ensemble)) >= self._at_least

    def replacement(
        self, *, ensemble: Sequence[BookieId], slot: int, candidates: Collection[BookieId],
        cluster: Cluster, chance: random.Random, write_quorum: int | None = None,
        ack_quorum: int | None = None,
    ) -> BookieId | None:  # fmt: skip
        odd = sorted(name for name in candidates if rack(name))
        return odd[0] if odd else None


def ledger(*ensembles: tuple[int, ...], state: LedgerState = LedgerState.CLOSED) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LedgerId(1),
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=tuple(
            Fragment(10 * i, tuple(NAMES[slot] for slot in slots))
            for i, slots in enumerate(ensembles)
        ),
        state=state,
        last_entry_id=99 if state is LedgerState.CLOSED else None,
    )


def moves(metadata: LedgerMetadata, at_least: int = 1, alive: int = 8) -> list[Relocation]:
    cluster = Cluster(writable=frozenset(NAMES[:alive]))
    return relocations(metadata, TwoRacks(at_least), cluster, random.Random(1))


def test_a_well_placed_ledger_is_left_alone() -> None:
    assert moves(ledger((0, 1, 2), (2, 3, 4))) == []


def test_one_move_per_fragment_if_one_does_it() -> None:
    assert moves(ledger((0, 2, 4), (0, 1, 2), (2, 4, 6))) == [
        Relocation(0, NAMES[0], NAMES[1]),
        Relocation(20, NAMES[2], NAMES[1]),
    ]


def test_more_moves_if_one_does_not() -> None:
    found = moves(ledger((0, 2, 4)), at_least=2)
    assert [(move.source, move.target) for move in found] == [
        (NAMES[0], NAMES[1]),
        (NAMES[2], NAMES[3]),
    ]


def test_nothing_is_moved_if_it_would_not_help() -> None:
    assert moves(ledger((0, 2, 4)), at_least=3, alive=4) == []
    assert moves(ledger((0, 2, 4)), alive=1) == []


def test_an_open_ledger_is_left_to_its_writer() -> None:
    assert moves(ledger((0, 2, 4), state=LedgerState.OPEN)) == []
