"""Free space as a reason to choose a bookie: asked of every bookie now and then.

A bookie that does not answer counts as an ordinary one. The bookies are asked one after the other
and seldom: free space changes slowly, and placement never waits for the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from ledger_client.bookie_info import ask_bookie_info
from ledger_client.core.placement import weights_by_space
from ledger_client.environment import Environment
from wire.errors import LedgerError
from wire.types import BookieId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """How free space counts, as `diskWeightBasedPlacement` of BookKeeper's clients."""

    interval_seconds: float = 24 * 3600.0
    retry_seconds: float = 60.0  # newcomers, and whoever did not answer
    #: A bookie counts for at most so many of the median's; 0: no bound.
    max_multiple: float = 3.0


class SpaceWatch:
    """Knows the free space of the writable bookies, and what follows for placement."""

    def __init__(self, options: SpaceOptions) -> None:
        self._options = options
        self._free: dict[BookieId, int] = {}
        self._weights: Mapping[BookieId, float] = {}

    def current(self) -> Mapping[BookieId, float]:
        return self._weights

    async def run(self, environment: Environment) -> None:
        """Ask until cancelled: everybody each interval, those not known more often."""
        options = self._options
        while True:
            self._free.clear()
            asked_at = trio.current_time()
            while trio.current_time() < asked_at + options.interval_seconds:
                await self.ask(environment)
                await trio.sleep(min(options.retry_seconds, options.interval_seconds))

    async def ask(self, environment: Environment) -> None:
        """Ask those whose space is not known, and forget those that are gone."""
        writable = environment.bookies().writable
        for bookie_id in self._free.keys() - writable:
            del self._free[bookie_id]
        for bookie_id in sorted(writable - self._free.keys()):
            try:
                self._free[bookie_id] = (await ask_bookie_info(environment, bookie_id)).free_bytes
            except LedgerError as error:
                _log.info("%s; it counts as an ordinary one", error)
        self._weights = weights_by_space(self._free, max_multiple=self._options.max_multiple)
