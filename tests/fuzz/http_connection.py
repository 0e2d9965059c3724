"""One HTTP connection without a socket: bytes in, bytes out, at no time at all.

Everything of ours is the real thing, from Hypercorn's protocol on. Time stands still unless all
wait, so that a request which never ends costs nothing.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
import trio.testing

from runtime.http import HttpBounds, _Bounded, _Ends, _Protocol

#: Nobody needs more in answer to some KiB of requests; a page of the console has a few.
ANSWER_BYTES_MAX = 2 << 20
#: How long the client waits with closed eyes before it says that there is no more.
PATIENCE_SECONDS = 3.0
#: Then it has gone, and whatever is sent to it does not arrive.
GONE_SECONDS = 20.0
_BOUNDS = HttpBounds(body_bytes=1 << 10)


class HttpBugError(AssertionError):
    """The server did what it must not do, whatever was sent."""


class _Wire(trio.abc.HalfCloseableStream):
    """Gives the pieces one by one, then the end; keeps what was sent."""

    def __init__(self, pieces: list[bytes], on_broken: Callable[[], None]) -> None:
        self._pieces = pieces
        self._on_broken = on_broken  # as `_Transport` does
        self._gone_at = trio.current_time() + GONE_SECONDS
        self._is_closed = False
        self.sent = bytearray()
        self.socket = _Ends(("127.0.0.1", 40000), ("127.0.0.1", 8080), socket.AF_INET)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._is_closed and not self._pieces:
            await trio.sleep(PATIENCE_SECONDS)
        if self._is_closed:
            raise trio.ClosedResourceError
        return self._pieces.pop(0) if self._pieces else b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self._is_closed:
            raise trio.ClosedResourceError
        if trio.current_time() >= self._gone_at:
            self._on_broken()
            raise trio.BrokenResourceError
        self.sent += data
        if len(self.sent) > ANSWER_BYTES_MAX:
            raise HttpBugError("an answer without end")

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._is_closed = True
        await trio.lowlevel.checkpoint()


def converse(app: Any, pieces: list[bytes]) -> bytes:
    """What the server answers to these bytes, checked to be well-formed answers."""
    methods: list[str] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        methods.append(scope["method"])
        await app(scope, receive, send)

    async def serve() -> bytes:
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                gone = nursery.cancel_scope.cancel
                wire = _Wire([piece for piece in pieces if piece], on_broken=gone)
                protocol = _Protocol(_Bounded(noting, _BOUNDS), _BOUNDS)
                with _lost_connections():
                    await protocol.run(wire)  # type: ignore[arg-type]
        return bytes(wire.sent)

    with quiet():
        sent: bytes = trio.run(serve, clock=trio.testing.MockClock(autojump_threshold=0))
    check_answers(sent, methods)
    return sent


@contextmanager
def _lost_connections() -> Iterator[None]:
    """What the server expects of them."""
    try:
        yield
    except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        pass


class _Tracebacks(logging.Handler):
    """A traceback in the log is a bug, although the client only got a 500."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found = record.exc_info[1]

    found: BaseException | None = None


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is written, and the log's settings are afterwards as they were."""
    root, tracebacks = logging.getLogger(), _Tracebacks()
    before, level = root.handlers[:], root.level
    watched = [logging.getLogger(name) for name in ("runtime", "quire")]
    for logger in watched:
        logger.addHandler(tracebacks)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in watched:
            logger.removeHandler(tracebacks)
            logger.propagate = True
        root.handlers[:] = before
        root.setLevel(level)
    if tracebacks.found is not None:
        raise tracebacks.found


def check_answers(sent: bytes, methods: list[str]) -> None:
    """Every byte belongs to an answer that a client can read to its end, or that was cut off."""
    asked = iter(methods)
    while sent:
        head, blank, rest = sent.partition(b"\r\n\r\n")
        if not blank:
            raise HttpBugError(f"not an answer: {sent[:100]!r}")
        status, headers = _read_head(head)
        if status == 100:
            sent = rest
            continue
        if status == 500 or not 200 <= status < 600:
            raise HttpBugError(f"answered {status}: {rest[:200]!r}")
        method = next(asked, "")  # no application saw what is no request
        if method == "HEAD" or status == 204:
            sent = rest
        elif headers.get(b"transfer-encoding") == b"chunked":
            sent = _behind_chunks(rest)
        elif b"content-length" in headers:
            length = int(headers[b"content-length"])
            if len(rest) < length:
                raise HttpBugError(f"{len(rest)} bytes of a body that was said to have {length}")
            sent = rest[length:]
        else:
            return  # up to the end of the connection


def _read_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    if not first.startswith(b"HTTP/1.1 ") or not first[9:12].isdigit():
        raise HttpBugError(f"not an answer: {first[:100]!r}")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b": ")
        if not colon or b"\n" in line or b"\r" in line:
            raise HttpBugError(f"not a header: {line[:100]!r}")
        headers[name.lower()] = value
    return int(first[9:12]), headers


def _behind_chunks(rest: bytes) -> bytes:
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        rest = rest[length + 2 :]
        if length == 0:
            return rest
    return b""  # cut off: the client went first
