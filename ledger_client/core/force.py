"""Forcing a ledger whose adds are acknowledged before they are synced.

A force asks every bookie of the ensemble, and counts only if all of them obey: an entry's copies
lie on any ack quorum of them, and which one survives a power cut is not known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ledger_client.core.commands import Command, Outcome, SendForce
from wire.types import BookieId


@dataclass(slots=True)
class Force:
    """One call of `force`, on its way."""

    force_id: int
    through: int  # the highest entry confirmed when it began
    length: int  # of the ledger up to that entry
    waiting: set[int]  # requests not answered yet


class Forces:
    """All calls of `force` of one handle that are on their way."""

    def __init__(self, request_ids: Iterator[int]) -> None:
        self._request_ids = request_ids
        self._by_request: dict[int, Force] = {}

    def start(
        self, force_id: int, ensemble: Sequence[BookieId], *, through: int, length: int
    ) -> list[Command]:
        force = Force(force_id, through, length, set())
        commands: list[Command] = []
        for slot, bookie_id in enumerate(ensemble):
            request_id = next(self._request_ids)
            force.waiting.add(request_id)
            self._by_request[request_id] = force
            commands.append(SendForce(request_id, slot, bookie_id))
        return commands

    def take(self, request_id: int, outcome: Outcome) -> tuple[Force, bool] | None:
        """Record an answer: the force that it ends and whether that succeeded, or None."""
        force = self._by_request.pop(request_id, None)
        if force is None:
            return None
        force.waiting.discard(request_id)
        if outcome is not Outcome.OK:
            self._forget(force)
            return force, False
        return None if force.waiting else (force, True)

    def clear(self) -> list[Force]:
        """Forget everything; the calls that were on their way."""
        forces = {force.force_id: force for force in self._by_request.values()}
        self._by_request.clear()
        return list(forces.values())

    def _forget(self, force: Force) -> None:
        for request_id in force.waiting:
            del self._by_request[request_id]
