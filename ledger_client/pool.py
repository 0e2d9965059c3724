"""The connections of a client: per bookie one for data and, once it is needed, one for questions.

Bookies are named by their id everywhere. Where an id leads is looked up at every connect, so one
that comes back at another address is followed without anybody noticing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final

import trio

from ledger_client.connection import Connection, Place
from ledger_client.core.placement import Health
from ledger_client.data_connection import DataConnection
from ledger_client.question_connection import QuestionConnection
from ledger_client.requests import Question, Request
from metadata.discovery import Bookies
from runtime.sockets import Network
from wire.errors import BookieUnavailableError
from wire.types import BookieId

#: How often requests are looked at that may have waited too long.
TICK_SECONDS: Final = 0.25
#: A failure of a bookie is held against it for so long.
_GRUDGE_SECONDS: Final = 60.0


class Pool:
    """Start it with `nursery.start_soon(pool.run)`; it ends with `close` and a cancel."""

    def __init__(
        self, bookies: Callable[[], Bookies], *, network: Network, chance: random.Random
    ) -> None:
        self._bookies = bookies
        self._network = network
        self._chance = chance
        self._data: dict[BookieId, DataConnection] = {}
        self._questions: dict[BookieId, QuestionConnection] = {}
        self._places: dict[BookieId, Place] = {}
        self._started: list[Connection] = []
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
        if isinstance(request, Question):
            questions = self._questions.get(bookie_id)
            if questions is None:
                questions = self._questions[bookie_id] = QuestionConnection(
                    bookie_id, locate=self._locate, network=self._network, chance=self._chance
                )
                self._start(questions)
            questions.ask(request)
        else:
            self._data_connection(bookie_id).ask(request)

    def has_room(self, bookies: Iterable[BookieId]) -> bool:
        """Whether the connections to all of these take more entries now."""
        return all(self._data_connection(bookie_id).has_room for bookie_id in bookies)

    async def wait_room(self, bookies: Iterable[BookieId]) -> None:
        for bookie_id in bookies:
            await self._data_connection(bookie_id).wait_room()

    @property
    def health(self) -> Health:
        since = trio.current_time() - _GRUDGE_SECONDS
        failed_at = {
            bookie_id: connection.failed_at
            for bookie_id, connection in self._data.items()
            if connection.failed_at is not None and connection.failed_at > since
        }
        return Health(failed_at=failed_at)

    # ------------------------------------------------------------------ connections

    def _data_connection(self, bookie_id: BookieId) -> DataConnection:
        connection = self._data.get(bookie_id)
        if connection is None:
            connection = self._data[bookie_id] = DataConnection(
                bookie_id, locate=self._locate, network=self._network, chance=self._chance
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
