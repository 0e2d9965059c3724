"""The live feed: one look at the cluster each second, shared by everybody who watches.

Without watchers nobody looks. Watchers get the newest look there is; one that is slow misses some,
and nothing is queued for it. The last minutes of the sums are kept for pages that come later.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from metadata.latest import Latest
from metadata.update import LedgerGoneError
from quire.console.cluster_view import ClusterView
from quire.console.ledger_view import LedgerView
from wire.errors import LedgerError

WATCHERS_MAX: Final = 32
SAMPLE_SECONDS: Final = 1.0
#: Sums of this many looks are kept for the charts.
HISTORY_LOOKS: Final = 300
#: A look at all marks costs reads in proportion to them: it may take this share of the time.
_RECOVERY_SHARE: Final = 0.25
_RECOVERY_SECONDS: Final = 20.0

Json = dict[str, Any]


class TooManyWatchersError(LedgerError):
    """The feed has as many watchers as it takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    number: int
    snapshot: Json
    #: What the followed ledgers look like, by id.
    ledgers: dict[int, Json]


class Watcher:
    """Whoever watches; `next` may be cancelled and called again."""

    def __init__(self, latest: Latest[Look | None], ledger_id: int | None) -> None:
        self._latest = latest
        self._ledger_id = ledger_id
        self._seen = latest.value  # perhaps of long ago, when somebody else watched

    async def next(self) -> Json:
        """A look that this watcher has not seen, the newest there is."""
        look = self._seen = await self._latest.wait_other_than(self._seen)
        assert look is not None
        ledger = None if self._ledger_id is None else look.ledgers.get(self._ledger_id)
        return {**look.snapshot, "number": look.number, "ledger": ledger}


@dataclass(slots=True, eq=False)
class Feed:
    """`run` is a task; `watching` is for each watcher."""

    cluster: ClusterView
    ledgers: LedgerView
    watchers_max: int = WATCHERS_MAX
    sample_seconds: float = SAMPLE_SECONDS
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    looks: int = 0
    _watchers: int = 0
    _wanted: trio.Event = field(default_factory=trio.Event)
    _unwanted: trio.Event = field(default_factory=trio.Event)
    _followed: Counter[int] = field(default_factory=Counter)
    _latest: Latest[Look | None] = field(default_factory=lambda: Latest(None))
    _history: deque[Json] = field(default_factory=lambda: deque(maxlen=HISTORY_LOOKS))
    _recovery: Json | None = None
    _recovery_problem: str | None = None

    # ------------------------------------------------------------------ watching

    @property
    def watchers(self) -> int:
        return self._watchers

    @property
    def history(self) -> list[Json]:
        return list(self._history)

    @contextmanager
    def watching(self, ledger_id: int | None) -> Iterator[Watcher]:
        """Snapshots during the block; with this ledger, if one is named."""
        if self._watchers >= self.watchers_max:
            raise TooManyWatchersError(
                f"{self._watchers} pages watch already, and no more are served: close one of them"
            )
        self._watchers += 1
        if ledger_id is not None:
            self._followed[ledger_id] += 1
        self._wanted.set()
        try:
            yield Watcher(self._latest, ledger_id)
        finally:
            self._watchers -= 1
            if ledger_id is not None:
                self._followed[ledger_id] -= 1
                self._followed += Counter()  # drops those that nobody follows
            if not self._watchers:
                self._unwanted.set()

    # ------------------------------------------------------------------ looking

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._every_second)
                nursery.start_soon(self._look_at_recovery)
                await self._unwanted.wait()
                nursery.cancel_scope.cancel()
            self._unwanted = trio.Event()
            if not self._watchers:
                self._wanted = trio.Event()

    async def _every_second(self) -> None:
        while True:
            due = trio.current_time() + self.sample_seconds
            await self._look()
            await trio.sleep_until(due)

    async def _look(self) -> None:
        snapshots: list[Json] = []
        found: dict[int, Json] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_into, snapshots, self.cluster.look)
            for ledger_id in list(self._followed):
                nursery.start_soon(self._follow, ledger_id, found)
        (snapshot,) = snapshots
        now_ms = self.now_ms()
        self._history.append({"timeMs": now_ms, **snapshot["totals"]})
        if self._recovery_problem is not None:
            snapshot["lost"].append(self._recovery_problem)
        snapshot |= {"timeMs": now_ms, "recovery": self._recovery}
        self.looks += 1
        self._latest.put(Look(self.looks, snapshot, found))

    async def _follow(self, ledger_id: int, found: dict[int, Json]) -> None:
        try:
            with trio.move_on_after(3 * self.sample_seconds) as patience:
                found[ledger_id] = await self.ledgers.detail(ledger_id)
            if patience.cancelled_caught:
                found[ledger_id] = {"id": str(ledger_id), "error": "its record was not readable"}
        except LedgerGoneError:
            found[ledger_id] = {"id": str(ledger_id), "error": "the ledger does not exist"}
        except LedgerError as error:
            found[ledger_id] = {"id": str(ledger_id), "error": str(error)}

    async def _look_at_recovery(self) -> None:
        while True:
            began = trio.current_time()
            try:
                with trio.fail_after(_RECOVERY_SECONDS):
                    self._recovery = await self.cluster.look_at_recovery()
                self._recovery_problem = None
            except trio.TooSlowError:
                self._recovery_problem = "the list of ledgers that lack copies could not be read"
            except LedgerError as error:
                self._recovery_problem = f"ledgers that lack copies: {error}"
            took = trio.current_time() - began
            await trio.sleep(max(self.sample_seconds, took / _RECOVERY_SHARE - took))


async def _into(result: list[Json], look: Callable[[], Awaitable[Json]]) -> None:
    result.append(await look())
