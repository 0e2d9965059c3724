"""One connection to one bookie, over all its lives, and whatever is on its way on it.

Requests are handed over without waiting. While there is no connection they gather and one is made;
if that fails they end as NOT_CONNECTED, and so does everything else until a pause has passed, which
grows with the failures. A connection that is lost ends everything on its way, once. Nothing is ever
dropped because of a full queue: `has_room` says when to hand over more, and owners keep to it.

A bookie may move to another address under the same id. `follow` tells: the connection to the old
one is given up, whether or not it still seems to be there, and the next request finds the new one.
"""

from __future__ import annotations

import logging
import math
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import trio

from ledger_client.core.commands import Outcome
from ledger_client.entrance import EntranceError
from ledger_client.health import BookieHealth
from ledger_client.requests import Adds, Answer, Request, Sink
from metadata.service_info import Endpoint
from metadata.update import Backoff
from runtime.sockets import ByteStream, Network
from runtime.tls_stream import TlsBrokenError
from wire.errors import LedgerError
from wire.framing import FrameBuffer
from wire.types import BookieId

_log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 256 * 1024
CONNECT_SECONDS: Final = 5.0
#: A peer that takes no byte for so long while some are waiting is gone.
STALL_SECONDS: Final = 5.0
#: A peer that says nothing at all for so long after a request is gone, too.
SILENCE_SECONDS: Final = 10.0
#: Bytes that wait to be sent; above, owners hand over no new entries.
UNSENT_BYTES_MAX: Final = 8 * 1024 * 1024
#: The same for bytes of entries that have no answer yet, over all ledgers.
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
#: And for adds at a bookie that takes them one by one: Apache's queues 10,000 of a thread, and what
#: comes on top is refused or, by 4.17, never answered. Its own client stops at as many as this.
HELD_ADDS_MAX: Final = 5000
#: With more requests on their way, the next ones are gathered and sent together: a call of the
#: kernel costs either side more than a small request does. With few, nobody should wait.
ALONE_MAX: Final = 8
#: Sent by one call.
_PIECES_MAX: Final = 256
_BACKOFF: Final = Backoff(first_seconds=0.1, seconds_max=10.0)

Found = dict[Sink, list[Answer]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bookie is at present, and what it can do."""

    endpoint: Endpoint
    takes_batches: bool


class Connection(ABC):
    """What both protocols share. Subclasses write requests and understand answers."""

    def __init__(
        self,
        bookie_id: BookieId,
        *,
        locate: Callable[[BookieId], Place],
        network: Network,
        chance: random.Random,
        health: BookieHealth,
    ) -> None:
        self.bookie_id = bookie_id
        self.place: Place | None = None
        self._locate = locate
        self._network = network
        self._chance = chance
        self._health = health
        self._stream: ByteStream | None = None
        self._frames = FrameBuffer()
        self._waiting: list[Request] = []  # for a connection
        self._wanted = trio.Event()
        self._connecting: trio.CancelScope | None = None
        self._is_closed = False
        self._open: dict[int, Request] = {}  # on their way, in the order of sending
        self._out: deque[tuple[memoryview, Request | None]] = deque()  # with its last piece
        self._out_filled = trio.Event()
        self._unsent_bytes = 0
        self._held_bytes = 0
        self._held_adds = 0
        self._room_made: trio.Event | None = None  # made by the first who waits for it
        self._sent_at = 0.0
        self._unheard_since: float | None = None  # the first request since anything was heard
        self._failures = 0
        self._retry_at = -math.inf
        self._has_answered = False
        self._is_moving = False

    # ------------------------------------------------------------------ for owners

    @property
    def has_room(self) -> bool:
        if self._unsent_bytes >= UNSENT_BYTES_MAX or self._held_bytes >= HELD_BYTES_MAX:
            return False
        return self._held_adds < HELD_ADDS_MAX or (
            self.place is not None and self.place.takes_batches
        )

    async def wait_room(self) -> None:
        while not self.has_room:
            if self._room_made is None:
                self._room_made = trio.Event()
            await self._room_made.wait()

    @property
    def pending(self) -> int:
        return len(self._open) + len(self._waiting)

    def ask(self, request: Request) -> None:
        if isinstance(request, Adds):
            request.held_bytes = len(request.records) + len(request.frames)
            self._held_bytes += request.held_bytes
            request.held_adds = len(request.entry_ids)
            self._held_adds += request.held_adds
        if self._is_closed:
            self._end(request, Outcome.CLIENT_CLOSED)
        elif self._stream is not None:
            self._send(request)
        elif self._connecting is None and trio.current_time() < self._retry_at:
            self._end(request, Outcome.NOT_CONNECTED)
        else:
            self._waiting.append(request)
            self._wanted.set()

    def follow(self, place: Place) -> None:
        """The bookie announces this place. Old addresses may swallow everything in silence."""
        self._retry_at = -math.inf  # there is news of it: no reason to wait any longer
        if self.place is None or self.place.endpoint == place.endpoint:
            return
        if self._stream is not None:
            _log.info(
                "bookie %s moved from %s:%d to %s:%d", self.bookie_id, self.place.endpoint.host,
                self.place.endpoint.port, place.endpoint.host, place.endpoint.port,
            )  # fmt: skip
            self._is_moving = True
            self._stream.close()
        elif self._connecting is not None:
            self._connecting.cancel()

    def close(self) -> None:
        """End everything as CLIENT_CLOSED and take nothing more."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.close()
        self._end_open(Outcome.CLIENT_CLOSED)
        self._end_waiting(Outcome.CLIENT_CLOSED)

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        while not self._is_closed:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if not self._waiting:
                continue
            deadline = trio.current_time() + CONNECT_SECONDS
            self._connecting = trio.CancelScope(deadline=deadline)
            stream = await self._connect(self._connecting)
            self._connecting = None
            if stream is not None:
                await self._serve(stream)

    async def _connect(self, scope: trio.CancelScope) -> ByteStream | None:
        why = "no answer"
        try:
            # Looked up every time: a bookie may come back elsewhere, or as another version.
            self.place = self._locate(self.bookie_id)
            endpoint = self.place.endpoint
            with scope:
                return await self._network.connect(endpoint.host, endpoint.port)
        except EntranceError as error:
            why = self._note_refusal(error)
        except (OSError, LedgerError) as error:
            why = str(error)
        if trio.current_time() < scope.deadline and scope.cancelled_caught:
            self._wanted.set()  # it has moved: once more, to the new place
            return None
        _log.info("bookie %s cannot be reached: %s", self.bookie_id, why)
        self._on_failure()
        self._end_waiting(Outcome.NOT_CONNECTED)
        return None

    def _note_refusal(self, error: Exception) -> str:
        """For whoever reads the log, once per reason, and for the errors that come of it."""
        why = str(error)
        if self._health.refusals.get(self.bookie_id) != why:
            self._health.refusals[self.bookie_id] = why
            _log.warning("bookie %s cannot be used: %s", self.bookie_id, why)
        return why

    def _on_failure(self) -> None:
        now = trio.current_time()
        self._failures += 1
        self._health.on_unreachable(self.bookie_id, now)
        self._retry_at = now + _BACKOFF.seconds(self._failures, self._chance)

    async def _serve(self, stream: ByteStream) -> None:
        self._stream = stream
        self._frames = FrameBuffer()
        self._has_answered = False
        self._is_moving = False
        self._sent_at = trio.current_time()
        self._unheard_since = None
        self._send_waiting()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_sending, stream)
                await self._keep_receiving(stream)
                nursery.cancel_scope.cancel()
        finally:
            stream.close()
            self._stream = None
            self._out.clear()
            self._unsent_bytes = 0
            if not self._has_answered and not self._is_moving:
                self._on_failure()  # it accepts and says nothing: do not try again at once
            self._on_lost()
            self._end_open(Outcome.NOT_CONNECTED)
            self._tell_room()
            if self._waiting:
                self._wanted.set()

    async def _keep_receiving(self, stream: ByteStream) -> None:
        """Until the connection ends, by either side or by bytes that are no answer."""
        try:
            while data := await stream.receive_some(RECEIVE_BYTES):
                self._receive(data)
            why = "the bookie closed it"
        except (EntranceError, TlsBrokenError) as error:
            # As the first word of a bookie it means that our certificate is not accepted.
            why = str(error) if self._has_answered else self._note_refusal(error)
        except (OSError, trio.ClosedResourceError, LedgerError) as error:
            why = str(error)
        if not self._is_closed:
            _log.info("connection with bookie %s ended: %s", self.bookie_id, why)

    def _receive(self, data: bytes) -> None:
        found: Found = {}
        self._unheard_since = None
        self._frames.feed(data)
        try:
            self._scan(self._frames, found)
        finally:
            for sink, answers in found.items():
                sink(answers)
        if found:
            self._has_answered = True
            self._failures = 0
            outcomes = [answer.outcome for answers in found.values() for answer in answers]
            self._health.on_answers(self.bookie_id, outcomes, trio.current_time())
            self._tell_room()

    # ------------------------------------------------------------------ sending

    def _send_waiting(self) -> None:
        """By itself: a name in a frame that lives with the connection would keep them as long."""
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._send(request)

    def _send(self, request: Request) -> None:
        pieces = self._frame(request)
        self._open[request.request_id] = request
        stream = self._stream
        assert stream is not None
        sent = 0
        if not self._out:
            self._sent_at = trio.current_time()  # or whoever watches for stalls sees an old one
            if len(self._open) <= ALONE_MAX and not request.can_wait:
                try:
                    sent = stream.send_pieces_now(pieces)
                except (OSError, trio.ClosedResourceError):
                    self._give_up(stream)
                    return
        for piece in pieces:
            if sent < len(piece):
                self._out.append((memoryview(piece)[sent:], None))
                self._unsent_bytes += len(piece) - sent
            sent = max(0, sent - len(piece))
        if not self._out:
            self._on_sent(request, self._sent_at)
            return
        self._out[-1] = (self._out[-1][0], request)
        self._out_filled.set()

    async def _keep_sending(self, stream: ByteStream) -> None:
        try:
            while True:
                await self._out_filled.wait()
                self._out_filled = trio.Event()
                self._end_moment()
                self._send_some(stream)
                while self._out:
                    await stream.wait_writable()
                    self._send_some(stream)
        except (OSError, trio.ClosedResourceError):
            self._give_up(stream)

    def _give_up(self, stream: ByteStream) -> None:
        """Nothing can be sent: close it, and the receiving task notices and ends everything.

        A bookie that has refused us has said so before it closed. That is there to be read, though
        sending fails, and lost with the stream.
        """
        if not self._has_answered:
            try:
                stream.receive_now(RECEIVE_BYTES)
            except (EntranceError, TlsBrokenError) as error:
                self._note_refusal(error)
            except (OSError, trio.ClosedResourceError):
                pass
        stream.close()

    def _send_some(self, stream: ByteStream) -> None:
        """As much as the kernel takes."""
        now = trio.current_time()
        while self._out:
            pieces = [piece for piece, _ in islice(self._out, _PIECES_MAX)]
            sent = stream.send_pieces_now(pieces)
            if not sent:
                break
            self._sent_at = now
            self._unsent_bytes -= sent
            if not self._take_out(sent, now):
                break
        self._tell_room()

    def _take_out(self, sent: int, now: float) -> bool:
        """Forget so many bytes; whether they were whole pieces."""
        while sent:
            piece, request = self._out[0]
            if sent < len(piece):
                self._out[0] = (piece[sent:], request)
                return False
            sent -= len(piece)
            self._out.popleft()
            if request is not None:
                self._on_sent(request, now)
        return True

    def _on_sent(self, request: Request, now: float) -> None:
        request.deadline = now + request.seconds
        if self._unheard_since is None:
            self._unheard_since = now

    def _tell_room(self) -> None:
        if self._room_made is not None and self.has_room:
            self._room_made.set()
            self._room_made = None

    # ------------------------------------------------------------------ ends

    def tick(self, now: float) -> None:
        """Give up on what has waited too long."""
        late = [request for request in self._open.values() if request.deadline <= now]
        for request in late:
            self._end(request, Outcome.TIMEOUT)
        if late:
            self._health.on_timeouts(self.bookie_id, len(late), now)
            self._tell_room()
        if self._stream is None:
            return
        if self._out and now - self._sent_at > STALL_SECONDS:
            _log.info("bookie %s takes no bytes any more", self.bookie_id)
            self._stream.close()
        elif self._unheard_since is not None and now - self._unheard_since > SILENCE_SECONDS:
            _log.info("bookie %s says nothing any more", self.bookie_id)
            self._stream.close()

    def _end(self, request: Request, outcome: Outcome) -> None:
        self._forget(request)
        request.sink([Answer(request.request_id, outcome)])

    def _forget(self, request: Request) -> None:
        """The request has its end; what it held is free again."""
        request.is_over = True
        self._open.pop(request.request_id, None)
        self._held_bytes -= request.held_bytes
        self._held_adds -= request.held_adds
        request.held_bytes = request.held_adds = 0

    def _end_open(self, outcome: Outcome) -> None:
        for request in list(self._open.values()):
            self._end(request, outcome)

    def _end_waiting(self, outcome: Outcome) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._end(request, outcome)

    # ------------------------------------------------------------------ what protocols add

    @abstractmethod
    def _frame(self, request: Request) -> list[bytes]:
        """The bytes to send, in pieces, having noted whatever it takes to know the answer."""

    @abstractmethod
    def _scan(self, frames: FrameBuffer, found: Found) -> None:
        """Sort the answers of a receive buffer by who waits for them."""

    @abstractmethod
    def _end_moment(self) -> None:
        """Nothing more will be handed over at present: what was gathered goes now."""

    @abstractmethod
    def _on_lost(self) -> None:
        """Forget what belonged to the connection that ended; requests are ended afterwards."""
