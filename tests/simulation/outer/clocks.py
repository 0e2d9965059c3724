"""Wall clocks: one per process, each of which may jump. The virtual clock is nobody's.

Intervals are measured by trio's clock, as the operating system's monotonic one. What a process
reads here is what it writes down for others: into marks, tombstones, records and cookies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import trio

EPOCH_MS: Final = 1_700_000_000_000
JUMPS_MS: Final = (300, 5_000, 60_000, 3_600_000, 864_000_000)
#: The metadata store's, and the one of all clients.
STORE: Final = "Z"
CLIENTS: Final = "clients"


class WallClocks:
    def __init__(self) -> None:
        self._offsets_ms: dict[str, int] = {}

    def now_ms(self, name: str) -> int:
        return EPOCH_MS + int(trio.current_time() * 1000) + self._offsets_ms.get(name, 0)

    def of(self, name: str) -> Callable[[], int]:
        return partial(self.now_ms, name)

    def jump(self, name: str, chance: Random) -> int:
        """By so many ms: forward, or back to before what was written down already."""
        size = chance.choice(JUMPS_MS) * chance.choice((1, -1))
        self._offsets_ms[name] = self._offsets_ms.get(name, 0) + size
        return size
