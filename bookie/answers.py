"""Answers on their way out of the bookie: collected, then sent with one call per connection.

Whoever has an answer puts it into the connection's outbox; at the end of the step (a receive buffer
handled, a journal block durable, a cold entry fetched) every outbox that got something is flushed
once, straight from there. Only what the socket does not take at once is left to a writer task.

A client that does not read its answers must not hold memory: an outbox that is full keeps its
connection from being read, the less room is left for all of them together the sooner an outbox is
full, and a connection that takes nothing for a while is closed.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

import trio

from runtime.sockets import PIECES_MAX, ByteStream

#: Unsent answers that one connection may hold before it is not read any more.
OUTBOX_BYTES_MAX: Final = 8 << 20
#: The same for all connections together; the more is taken, the less the next one gets.
UNSENT_BYTES_MAX: Final = 64 << 20
#: No share is smaller: below it the answers to one receive buffer would not fit.
SHARE_BYTES_MIN: Final = 64 << 10
#: Pieces are gathered up to about this size before they are sent.
SEND_BYTES: Final = 1 << 20
#: Pieces below this size, on average, are cheaper to join than to name one by one.
JOIN_BYTES_MAX: Final = 16 << 10


class Post:
    """All outboxes of a bookie: which of them have something new, and how many are stuck."""

    def __init__(self) -> None:
        self._new: list[Outbox] = []
        self.blocked = 0  # connections whose sockets are full
        self.unsent = 0  # bytes in all outboxes
        self.bytes_sent = 0

    def note(self, outbox: Outbox) -> None:
        self._new.append(outbox)

    def flush(self) -> None:
        """Send what was put anywhere since the last time."""
        while self._new:
            new, self._new = self._new, []
            for outbox in new:
                outbox.flush()

    @property
    def share(self) -> int:
        """How much a connection may leave unsent: half of the room that is left, within limits."""
        return max(SHARE_BYTES_MIN, min(OUTBOX_BYTES_MAX, (UNSENT_BYTES_MAX - self.unsent) // 2))

    @property
    def flush_bytes(self) -> int:
        """How much may gather in an outbox before it is sent and more is made."""
        return min(SEND_BYTES, self.share)

    @property
    def is_tight(self) -> bool:
        """Whether clients hold so much that whoever comes next should ask for little."""
        return self.unsent > UNSENT_BYTES_MAX // 2


class Owner(Protocol):
    """What an outbox needs of its connection."""

    def start_writer(self) -> None:
        """Run `Outbox.drain` as a task."""

    def lost(self, error: Exception) -> None:
        """The peer is gone."""


class Outbox:
    """What one connection has yet to send. Owned by the event loop."""

    __slots__ = ("_blocked", "_owner", "_pieces", "_post", "_room", "_stream", "bytes", "dead")

    def __init__(self, stream: ByteStream, post: Post, owner: Owner) -> None:
        self._stream = stream
        self._post = post
        self._owner = owner
        self._pieces: deque[bytes | memoryview] = deque()
        self._blocked = False  # the socket is full; a writer task waits for it
        self._room = trio.Event()
        self.bytes = 0
        self.dead = False

    @property
    def is_full(self) -> bool:
        return self.bytes > self._post.share

    @property
    def is_due(self) -> bool:
        """Whether so much has gathered that it should be sent before more is made."""
        return self.bytes > self._post.flush_bytes

    def go_on(self, stream: ByteStream) -> None:
        """Send by another stream from now on; everything is out by the first one."""
        assert not self._pieces, "answers would change from one stream to the other"
        self._stream = stream

    def put(self, *pieces: bytes | memoryview) -> None:
        """Leave an answer. It is sent at the next flush."""
        if self.dead:
            return
        if not self.bytes:
            self._post.note(self)
        self._pieces += pieces
        size = sum(map(len, pieces))
        self.bytes += size
        self._post.unsent += size

    def flush(self) -> None:
        """Send what the socket takes. Never raises: the peer's end is the connection's affair."""
        if self._blocked or self.dead:
            return
        try:
            while self._pieces:
                if not self._send():
                    self._block()
                    return
        except (OSError, trio.ClosedResourceError) as error:
            self.abandon()
            self._owner.lost(error)

    def abandon(self) -> None:
        """Nothing can be sent any more: forget what there is, and what will come."""
        self.dead = True
        self._pieces.clear()
        self._post.unsent -= self.bytes
        self.bytes = 0
        self._unblock()

    async def drain(self, patience_seconds: float) -> None:
        """The writer task: send until everything is out. TimeoutError if the peer takes nothing."""
        try:
            while self._pieces and not self.dead:
                with trio.move_on_after(patience_seconds) as scope:
                    await self._stream.wait_writable()
                if scope.cancelled_caught:
                    raise TimeoutError(
                        f"{self._stream.peer} took no answers for {patience_seconds:g} s"
                    )
                while self._pieces and self._send():
                    pass
                if not self.is_full:
                    self._room.set()
        except (OSError, trio.ClosedResourceError) as error:
            self.abandon()
            self._owner.lost(error)
        finally:
            self._unblock()

    async def wait_room(self) -> None:
        """Until the outbox is not full, or has no use any more."""
        while self.is_full and not self.dead:
            self._room = trio.Event()
            await self._room.wait()

    async def wait_empty(self) -> None:
        while self.bytes and not self.dead:
            self._room = trio.Event()
            await self._room.wait()

    def _send(self) -> bool:
        """Send the first pieces; whether the socket took all of them."""
        pieces = self._pieces
        gathered = [pieces.popleft()]
        size = len(gathered[0])
        while pieces and size < SEND_BYTES:
            gathered.append(pieces.popleft())
            size += len(gathered[-1])
        if len(gathered) > 1 and size < JOIN_BYTES_MAX * len(gathered):
            gathered = [b"".join(gathered)]
        if len(gathered) == 1:
            sent = self._stream.send_now(gathered[0])
        else:
            pieces.extendleft(reversed(gathered[PIECES_MAX:]))
            del gathered[PIECES_MAX:]
            sent = self._stream.send_pieces_now(gathered)
        self.bytes -= sent
        self._post.unsent -= sent
        self._post.bytes_sent += sent
        for at, piece in enumerate(gathered):
            sent -= len(piece)
            if sent < 0:
                pieces.extendleft(reversed(gathered[at + 1 :]))
                pieces.appendleft(_rest(piece, len(piece) + sent))
                return False
        return True

    def _block(self) -> None:
        self._blocked = True
        self._post.blocked += 1
        self._owner.start_writer()

    def _unblock(self) -> None:
        if self._blocked:
            self._blocked = False
            self._post.blocked -= 1
        self._room.set()


def _rest(piece: bytes | memoryview, sent: int) -> bytes | memoryview:
    rest = memoryview(piece)[sent:]
    # A view keeps all of what it is a view of; a copy now and then keeps memory honest.
    return bytes(rest) if len(rest) * 2 < len(rest.obj) else rest  # type: ignore[arg-type]
