"""What the admin paths look at: the process they are in, and the cluster it belongs to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from autorecovery.context import RecoveryContext
from autorecovery.daemon import opened_context
from autorecovery.operators_bookie import BookieReport
from autorecovery.settings import ProcessSettings, own_id
from quire.admin_http import AnswerError
from runtime import logs
from runtime.config import Settings
from runtime.metrics import Registry
from wire.errors import LedgerError
from wire.types import BookieId

if TYPE_CHECKING:
    from bookie.server import RunningBookie

#: How long a page waits for the metadata store.
ACCESS_SECONDS: Final = 15.0
_RETRY_SECONDS: Final = 5.0
#: Orders that may be carried out at a time.
ORDERS_MAX: Final = 4
#: Who holds the locks of repairs by hand, for people who read them.
_OPERATOR: Final = BookieId("operator")

_log = logs.get("quire.admin")


class AdminHost:
    """One process: a bookie, or autorecovery. `opened` is the time that pages may be asked."""

    def __init__(
        self, settings: Settings, process: ProcessSettings, registry: Registry, *, is_bookie: bool
    ) -> None:
        self.settings = settings
        self.process = process
        self.registry = registry
        self.is_bookie = is_bookie
        self.access = ClusterAccess(process)
        self.orders: Orders
        #: The bookie while it serves; before and after that None.
        self.bookie: RunningBookie | None = None
        self.is_stopping = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            self.orders = Orders(nursery)
            nursery.start_soon(self.access.run)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def beside(self, running: RunningBookie) -> AsyncIterator[None]:
        """An extension of the bookie: it serves during the block."""
        self.bookie = running
        try:
            yield
        finally:
            self.bookie = None
            self.is_stopping = True

    def running(self) -> RunningBookie:
        if not self.is_bookie:
            raise AnswerError(404, "this process is autorecovery: ask a bookie")
        if self.bookie is None:
            state = "stopping" if self.is_stopping else "starting"
            raise AnswerError(503, f"the bookie is {state}")
        return self.bookie

    @property
    def bookie_id(self) -> BookieId:
        """The bookie of this process, or the one that the configuration describes."""
        if self.is_bookie:
            return self.running().identity.bookie_id
        return own_id(self.process.process)


class ClusterAccess:
    """Connections to the metadata and to the bookies, opened when a page first needs them.

    They are apart from those of the bookie: whatever becomes of them, it goes on serving.
    """

    def __init__(self, process: ProcessSettings) -> None:
        self._process = process
        self._wanted = trio.Event()
        self._changed = trio.Event()
        self._context: RecoveryContext | None = None
        self._failure: LedgerError | None = None

    async def context(self) -> RecoveryContext:
        self._wanted.set()
        with trio.move_on_after(ACCESS_SECONDS):
            while self._context is None and self._failure is None:
                await self._changed.wait()
        if self._context is not None:
            return self._context
        reason = str(self._failure or f"no answer within {ACCESS_SECONDS:g} s")
        raise AnswerError(503, f"the metadata cannot be reached: {reason}")

    async def run(self) -> None:
        await self._wanted.wait()
        while True:
            try:
                async with opened_context(
                    self._process.open_metadata,
                    self._process.metadata_uri,
                    bookie_id=_OPERATOR,
                    settings=self._process.recovery,
                ) as context:
                    self._tell(context, None)
                    await trio.sleep_forever()
            except Exception as error:
                failure = error if isinstance(error, LedgerError) else LedgerError(str(error))
                _log.warning("no access to the cluster", error=error)
                self._tell(None, failure)
                await trio.sleep(_RETRY_SECONDS)
                self._tell(None, None)

    def _tell(self, context: RecoveryContext | None, failure: LedgerError | None) -> None:
        self._context, self._failure = context, failure
        self._changed.set()
        self._changed = trio.Event()


class Orders:
    """Long work that a page has begun and nobody waits for. What becomes of it is in the log."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._under_way: set[BookieId] = set()

    def begin(
        self, what: str, bookie_id: BookieId, work: Callable[[], Awaitable[BookieReport]]
    ) -> None:
        if bookie_id in self._under_way:
            raise AnswerError(409, f"an order for bookie {bookie_id} is under way here")
        if len(self._under_way) >= ORDERS_MAX:
            raise AnswerError(429, f"{ORDERS_MAX} orders are under way here: wait for one to end")
        self._under_way.add(bookie_id)
        self._nursery.start_soon(self._carry_out, what, bookie_id, work)

    async def _carry_out(
        self, what: str, bookie_id: BookieId, work: Callable[[], Awaitable[BookieReport]]
    ) -> None:
        _log.info("order begun", order=what, bookie=bookie_id)
        try:
            report = await work()
        except Exception as error:
            if isinstance(error, LedgerError):
                _log.error("order failed", order=what, bookie=bookie_id, error=error)
            else:
                _log.exception("order failed", error, order=what, bookie=bookie_id)
            return
        finally:
            self._under_way.discard(bookie_id)
        _log.info(
            "order done" if report.is_done else "order ended with ledgers left",
            order=what,
            bookie=bookie_id,
            ledgers=report.ledgers,
            stuck=len(report.stuck),
            skipped=len(report.skipped),
            cookie_deleted=report.cookie_deleted,
        )
