"""An open bookie as its connections see it: the engine, and what all of them share.

No sockets and no metadata here: `server.py` puts those around it, tests put their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bookie.add_gate import AddGate
from bookie.answers import Post
from bookie.authentication import BookieSecurity
from bookie.commits import Commit
from bookie.connection import Connection
from bookie.core.ledger import Ledger
from bookie.long_polls import LongPolls
from bookie.operations import Operations
from bookie.statistics import BookieStatistics, RequestMetrics
from bookie.storage.engine import Engine
from bookie.storage.indexed_run import IndexedRun
from runtime import logs
from runtime.files import DiskSpace
from runtime.sockets import ByteStream
from wire.types import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from runtime.metrics import Registry

#: Bytes of incomplete frames that all connections together may hold.
PARTIAL_BYTES_MAX: Final = 64 << 20

#: Damaged runs that are remembered; a disk with more of them is beyond counting.
DAMAGED_MAX: Final = 10_000

_log = logs.get("bookie")


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieOptions:
    """Limits towards clients."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    batch_read_bytes_max: int = 5 << 20
    #: How long adds may wait for room before they are refused; clients wait for five seconds.
    add_patience_seconds: float = 3.0
    #: A client that takes none of its answers for so long is disconnected.
    send_seconds_max: float = 30.0
    #: A frame must be complete within this time.
    frame_seconds_max: float = 120.0
    #: Connections from one address; more are turned away.
    address_connections_max: int = 2000
    #: How long a connection that ends may wait for answers that are under way.
    finish_seconds_max: float = 5.0


class Bookie:
    """Made before the engine, whose callbacks it provides; used after `open`."""

    def __init__(
        self,
        options: BookieOptions,
        registry: Registry,
        *,
        spaces: Callable[[], Mapping[str, DiskSpace]],
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        security: BookieSecurity | None = None,
    ) -> None:
        self.options = options
        self.clock = clock
        self.spaces = spaces  # of the ledger directories
        self.security = security or BookieSecurity()
        self.metrics = RequestMetrics(registry, clock)
        self.post = Post()
        self.connections: set[Connection] = set()
        self.connections_ended = 0
        self.read_only = False
        self.protocol_errors = 0
        self.storage_errors = 0
        #: Runs found damaged, by directory and location, and whose they are: repair begins here.
        self.damaged: dict[tuple[int, int], int] = {}
        self._now_ms = now_ms
        self._is_stopping = False
        self._partials: dict[Connection, int] = {}  # oldest first
        self._partial_bytes = 0
        self.engine: Engine
        self.gate: AddGate
        self.operations: Operations
        self.polls: LongPolls

    def open(self, engine: Engine) -> None:
        """The engine has replayed its journals: requests may come."""
        self.engine = engine
        self.gate = AddGate(lambda: engine.is_full, self.options.add_patience_seconds)
        self.operations = Operations(self, engine)
        self.polls = LongPolls(
            self.operations,
            self.post,
            now_ms=self._now_ms,
            on_waited=self.metrics.polled,
        )

    async def serve(self, stream: ByteStream) -> None:
        """Handle one connection until it ends."""
        if not self._is_stopping:
            await Connection(stream, self).run()

    # What the engine tells.

    def on_durable(self, tokens: list[object]) -> None:
        """These may be answered: everything for one connection with one send, and first of all."""
        commits: list[Commit] = []
        for token in tokens:
            if type(token) is Commit:
                connection = token.connection
                connection.outbox.put(*token.answers)
                connection.settle()
                commits.append(token)
            else:
                assert callable(token)
                token()
        self.post.flush()
        now = self.clock()
        for commit in commits:
            self.metrics.committed(commit, now)
        self.gate.admit_next()

    def on_news(self, ledger: Ledger) -> None:
        self.polls.on_news(ledger)

    def on_checkpoint(self, number: int) -> None:
        self.gate.admit_next()

    def on_damage(self, directory: int, run: IndexedRun, error: Exception) -> None:
        """A run cannot be read, or is not what it was. Logged once, and now and then when many."""
        place = directory, run.location
        if place in self.damaged or len(self.damaged) >= DAMAGED_MAX:
            return
        self.damaged[place] = run.ledger_id
        count = len(self.damaged)
        if logs.is_told(count):
            _log.error("damaged", ledger=run.ledger_id, error=error, runs=count)

    def on_mode(self, read_only: bool) -> None:
        self.read_only = read_only

    # What connections tell.

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.connections_ended += 1
        self.note_partial(connection, 0)
        self.polls.forget(connection)

    def note_partial(self, connection: Connection, held_bytes: int) -> None:
        """How much of an incomplete frame a connection holds. Together they have a limit."""
        self._partial_bytes += held_bytes - connection.held_bytes
        connection.held_bytes = held_bytes
        if held_bytes:
            self._partials.setdefault(connection, held_bytes)
        else:
            self._partials.pop(connection, None)
        while self._partial_bytes > PARTIAL_BYTES_MAX:
            oldest = next(iter(self._partials))
            self.note_partial(oldest, 0)
            oldest.close("too many incomplete frames, and this one is the oldest")

    def note_storage_error(self, error: Exception) -> None:
        """Storage failed a request, which was answered with an I/O error. Logged now and then."""
        self.storage_errors += 1
        if logs.is_told(self.storage_errors):
            _log.warning("storage failed a request", error=error, count=self.storage_errors)

    # Time, and the end of it.

    def sweep(self) -> None:
        """End connections that began a frame long ago, or do not say whose they are.

        To be called every few seconds.
        """
        oldest = self.clock() - self.options.frame_seconds_max
        strange = self.clock() - self.security.seconds_max
        for connection in list(self.connections):
            if connection.frame_since is not None and connection.frame_since < oldest:
                connection.close("a frame was begun and not finished")
            elif connection.since < strange and connection.is_locked:
                connection.close("it has not said who it is")
        self.gate.admit_next()

    def stop_serving(self) -> None:
        """Take no more requests from anybody; connections answer what they took, then end."""
        self._is_stopping = True
        for connection in list(self.connections):
            connection.stop()

    def space(self) -> DiskSpace:
        """Of all ledger directories. Those on one disk report the same numbers and count once."""
        disks = set(self.spaces().values())
        return DiskSpace(
            sum(disk.total_bytes for disk in disks), sum(disk.free_bytes for disk in disks)
        )

    def statistics(self) -> BookieStatistics:
        return BookieStatistics(
            engine=self.engine.statistics(),
            connections=len(self.connections),
            long_polls=self.polls.waiting,
            adds_waiting=self.gate.waiting,
            blocked=self.post.blocked,
            bytes_sent=self.post.bytes_sent,
            adds_refused=self.metrics.adds_refused,
            protocol_errors=self.protocol_errors,
            storage_errors=self.storage_errors,
            read_only=self.read_only,
        )
