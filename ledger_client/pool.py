"""The connections of a client: per bookie one for data and, once it is needed, one for questions.

Bookies are named by their id everywhere. Where an id leads is looked up at every connect, and news
of another address ends the connection to the old one, so a bookie that comes back elsewhere is
followed without anybody noticing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import trio

from ledger_client.connection import Connection, Place
from ledger_client.core.placement import Health
from ledger_client.data_connection import DataConnection
from ledger_client.health import BookieHealth
from ledger_client.question_connection import QuestionConnection
from ledger_client.requests import Adds, Question, Request
from metadata.discovery import Bookies, BookieWatcher
from runtime.sockets import Network
from wire.errors import BookieUnavailableError
from wire.types import BookieId

#: How often requests are looked at that may have waited too long.
TICK_SECONDS: Final = 0.25


class LossListener(Protocol):
    """Somebody who must know when a connection for questions and unsynced entries ends."""

    def on_connection_lost(self, bookie_id: BookieId) -> None: ...


class Pool:
    """Start it with `nursery.start_soon(pool.run)`; it ends with `close` and a cancel."""

    def __init__(
        self,
        bookies: Callable[[], Bookies],
        *,
        network: Network,
        chance: random.Random,
        known: BookieHealth | None = None,
    ) -> None:
        self.known = known or BookieHealth()
        self._bookies = bookies
        self._network = network
        self._chance = chance
        self._data: dict[BookieId, DataConnection] = {}
        self._questions: dict[BookieId, QuestionConnection] = {}
        self._places: dict[BookieId, Place] = {}
        self._started: list[Connection] = []
        self._listeners: set[LossListener] = set()
        self._nursery: trio.Nursery | None = None
        self._is_closed = False

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            while True:
                await trio.sleep(TICK_SECONDS)
                now = trio.current_time()
                for connection in self._started:
                    connection.tick(now)

    def close(self) -> None:
        """Every request ends as CLIENT_CLOSED, those on their way and those still to come."""
        self._is_closed = True
        for connection in self._started:
            connection.close()

    # ------------------------------------------------------------------ asking

    def ask(self, bookie_id: BookieId, request: Request) -> None:
        if isinstance(request, Question) or (isinstance(request, Adds) and request.is_deferred):
            self._question_connection(bookie_id).ask(request)
        else:
            self.line_to(bookie_id).ask(request)

    def has_room(self, bookies: Iterable[BookieId], *, deferred: bool = False) -> bool:
        """Whether the connections to all of these take more entries now."""
        return all(self._connection(b, deferred=deferred).has_room for b in bookies)

    def takes_batches(self, bookies: Iterable[BookieId]) -> bool:
        """Whether any of these does, as far as is known."""
        infos = self._bookies().info
        return any((info := infos.get(b)) is not None and info.takes_batches for b in bookies)

    async def wait_room(self, bookies: Iterable[BookieId], *, deferred: bool = False) -> None:
        for bookie_id in bookies:
            await self._connection(bookie_id, deferred=deferred).wait_room()

    # ------------------------------------------------------------------ news

    def listen(self, listener: LossListener) -> None:
        self._listeners.add(listener)

    def unlisten(self, listener: LossListener) -> None:
        self._listeners.discard(listener)

    def _on_lost(self, bookie_id: BookieId) -> None:
        for listener in list(self._listeners):
            listener.on_connection_lost(bookie_id)

    async def follow(self, watcher: BookieWatcher) -> None:
        """Take note of bookies that come, go or move, until cancelled."""
        seen = watcher.bookies
        while True:
            now = await watcher.wait_changed(seen)
            self.on_bookies(seen, now)
            seen = now

    def on_bookies(self, before: Bookies, now: Bookies) -> None:
        """The lists of bookies, or what they announce, changed."""
        for bookie_id in now.all - before.all:
            self.known.on_registered(bookie_id)
        for connection in self._started:
            info = now.info.get(connection.bookie_id)
            if info is not None and info.rpc is not None:
                is_new = connection.bookie_id not in before.all
                if is_new or before.info.get(connection.bookie_id) != info:
                    connection.follow(self._locate(connection.bookie_id))

    @property
    def health(self) -> Health:
        return self.known.for_reads(trio.current_time(), self.pending)

    @property
    def pending(self) -> dict[BookieId, int]:
        """Requests without an answer, by bookie."""
        pending: dict[BookieId, int] = {}
        for connection in self._started:
            if connection.pending:
                name = connection.bookie_id
                pending[name] = pending.get(name, 0) + connection.pending
        return pending

    # ------------------------------------------------------------------ connections

    def _connection(self, bookie_id: BookieId, *, deferred: bool) -> Connection:
        if deferred:
            return self._question_connection(bookie_id)
        return self.line_to(bookie_id)

    def line_to(self, bookie_id: BookieId) -> DataConnection:
        """The connection for adds and reads: the same one for as long as the pool lives."""
        connection = self._data.get(bookie_id)
        if connection is None:
            connection = self._data[bookie_id] = DataConnection(
                bookie_id,
                locate=self._locate,
                network=self._network,
                chance=self._chance,
                health=self.known,
            )
            self._start(connection)
        return connection

    def _question_connection(self, bookie_id: BookieId) -> QuestionConnection:
        connection = self._questions.get(bookie_id)
        if connection is None:
            connection = self._questions[bookie_id] = QuestionConnection(
                bookie_id,
                locate=self._locate,
                network=self._network,
                chance=self._chance,
                health=self.known,
                on_lost=self._on_lost,
            )
            self._start(connection)
        return connection

    def _start(self, connection: Connection) -> None:
        assert self._nursery is not None, "run the pool first"
        self._started.append(connection)
        if self._is_closed:
            connection.close()
        else:
            self._nursery.start_soon(connection.run)

    def _locate(self, bookie_id: BookieId) -> Place:
        """Where the bookie is, or was when last seen: it may have lost its registration alone."""
        bookies = self._bookies()
        try:
            endpoint = bookies.endpoint(bookie_id)
        except BookieUnavailableError:
            if bookie_id in self._places:
                return self._places[bookie_id]
            raise
        place = Place(endpoint, bookies.info[bookie_id].takes_batches)
        self._places[bookie_id] = place
        return place
