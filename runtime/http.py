"""HTTP, for admin paths, metrics and the console: the door to Hypercorn.

    async with serving_http(app, host="127.0.0.1", port=8080) as url:
        ...

The process behind it has better things to do than to serve pages, so everything is bounded:
connections, the time to send a request's head and body, the size of both, the time a reader may
let an answer wait, the time that a stop takes. A request's body is there before the application
sees the request. What the application raises goes to the log, and a plain 500 to the client.

Hypercorn's own loop accepts without limit and cannot be stopped while a client does not read.
So we accept ourselves (`runtime.service.serving`), and give each connection to its protocol:
HTTP/1.1 only (`runtime.http1`).
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from runtime import logs
from runtime.properties import ConfigError
from runtime.service import serving
from runtime.sockets import ByteStream, SocketListener, SocketNetwork
from wire.errors import LedgerError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONNECTIONS_MAX: Final = 200
HEAD_BYTES_MAX: Final = 16 << 10
HEAD_SECONDS: Final = 10.0  # also how long a connection may be idle
BODY_BYTES_MAX: Final = 1 << 20
BODY_SECONDS: Final = 20.0
#: As much of a body that is too long is read and dropped, so that the client sees our answer.
BODY_BYTES_DROPPED: Final = 16 << 20
SEND_SECONDS: Final = 20.0
GRACE_SECONDS: Final = 2.0

_log = logs.get("runtime.http")


class HttpServerError(LedgerError):
    """The HTTP server could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBounds:
    """How much, and how long. Tests make them small."""

    connections: int = CONNECTIONS_MAX
    head_seconds: float = HEAD_SECONDS
    body_bytes: int = BODY_BYTES_MAX
    body_seconds: float = BODY_SECONDS
    send_seconds: float = SEND_SECONDS


@asynccontextmanager
async def serving_http(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    grace_seconds: float = GRACE_SECONDS,
    bounds: HttpBounds = HttpBounds(),  # noqa: B008 (a value)
) -> AsyncIterator[str]:
    """Serve `app` during the block. Yields the address for clients, with the real port.

    At the end, requests under way get `grace_seconds`; then their connections are closed. There
    is no ASGI lifespan: what an application needs is opened by whoever builds it.
    """
    protocol = _Protocol(_Bounded(app, bounds), bounds)
    listener = await _listen(host, port)
    scheme = "http" if tls is None else "https"

    async def handle(stream: ByteStream) -> None:
        async with trio.open_nursery() as nursery:
            transport = _Transport(
                stream,
                (listener.host, listener.port),
                bounds.send_seconds,
                # The protocol drops what is sent to nobody: an application would never notice.
                on_broken=nursery.cancel_scope.cancel,
            )
            # The protocol shields what it sends from being cancelled; closing reaches it.
            nursery.start_soon(_close_when_cancelled, stream)
            try:
                await protocol.run(transport if tls is None else _encrypted(transport, tls))
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as errors:
                _log.debug("connection lost", peer=stream.peer, reason=errors.exceptions[0])
            nursery.cancel_scope.cancel()

    async with serving(
        handle, listener, grace_seconds=grace_seconds, connections_max=bounds.connections
    ):
        try:
            yield f"{scheme}://{_for_url(host)}:{listener.port}"
        finally:
            protocol.stop()


def server_tls(certificate: str, key: str) -> ssl.SSLContext:
    """TLS from two PEM files: the certificate with what it was signed by, and its key."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # an SSLError is one
        reason = error.strerror or error.args[-1]
        raise ConfigError(
            f"cannot use the certificate {certificate} with the key {key}: {reason}; both must be "
            "PEM files that this user may read, and belong together"
        ) from None
    return context


async def _listen(host: str, port: int) -> SocketListener:
    try:
        return await SocketNetwork().listen(host, port)
    except OSError as error:
        hint = {
            errno.EADDRINUSE: "another process listens there: stop it or choose another port",
            errno.EACCES: "a port below 1024 needs privileges: choose another one",
        }.get(error.errno or 0, "choose an address of this machine and a free port")
        reason = (error.strerror or str(error)).lower()
        raise HttpServerError(
            f"cannot serve HTTP on {_for_url(host)}:{port}: {reason}; {hint}"
        ) from None


class _Protocol:
    """Turns connections into requests for `app`."""

    def __init__(self, app: ASGIApp, bounds: HttpBounds) -> None:
        try:
            from hypercorn.config import Config
            from hypercorn.trio.worker_context import EventWrapper, WorkerContext
            from hypercorn.typing import ConnectionState
            from hypercorn.utils import wrap_app

            from runtime.http1 import Http1Server
        except ImportError:
            raise HttpServerError(
                "serving HTTP needs the packages hypercorn and starlette; install quire[bookie]"
            ) from None
        config = Config()
        config.keep_alive_timeout = bounds.head_seconds
        config.ssl_handshake_timeout = bounds.head_seconds
        config.h11_max_incomplete_size = HEAD_BYTES_MAX
        config.include_server_header = False
        config.errorlog = logging.getLogger("runtime.http")
        self._context = WorkerContext(None)
        self._stopping = trio.Event()
        stopping = EventWrapper()
        stopping._event = self._stopping
        self._context.terminated = stopping
        self._start: Callable[[Any], Awaitable[None]] = partial(
            Http1Server,
            wrap_app(app, 0, "asgi"),  # type: ignore[arg-type]
            config,
            self._context,
            ConnectionState({}),
        )

    async def run(self, stream: _Transport | trio.SSLStream[_Transport]) -> None:
        await self._start(stream)

    def stop(self) -> None:
        """Close idle connections, and the others after the answer they wait for."""
        self._stopping.set()


async def _close_when_cancelled(stream: ByteStream) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stream.close()


def _encrypted(transport: _Transport, tls: ssl.SSLContext) -> trio.SSLStream[_Transport]:
    return trio.SSLStream(transport, tls, server_side=True, https_compatible=True)


@dataclass(frozen=True, slots=True)
class _Ends:
    """As much of a socket as the protocol asks for."""

    client: tuple[str, int]
    server: tuple[str, int]
    family: int = socket.AF_INET

    def getpeername(self) -> tuple[str, int]:
        return self.client

    def getsockname(self) -> tuple[str, int]:
        return self.server


class _Transport(trio.abc.HalfCloseableStream):
    """A byte stream of ours in trio's form, with a bound on how long the peer may not read."""

    def __init__(
        self,
        stream: ByteStream,
        server: tuple[str, int],
        send_seconds: float,
        *,
        on_broken: Callable[[], None],
    ) -> None:
        client, _, port = stream.peer.rpartition(":")
        self._stream = stream
        self._send_seconds = send_seconds
        self._on_broken = on_broken
        self.socket = _Ends((client.strip("[]"), int(port)), server)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if isinstance(data, bytearray):
            data = memoryview(data)
        try:
            with trio.fail_after(self._send_seconds), _as_trio():
                await self._stream.send_all(data)
        except trio.TooSlowError:
            self._stream.close(reset=True)
            self._on_broken()
            raise trio.BrokenResourceError("the client does not read") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._on_broken()
            raise

    async def wait_send_all_might_not_block(self) -> None:
        with _as_trio():
            await self._stream.wait_writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        with _as_trio():
            return await self._stream.receive_some(max_bytes or 65536)

    async def send_eof(self) -> None:
        with _as_trio():
            self._stream.end_sending()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._stream.close()
        await trio.lowlevel.checkpoint()


class _as_trio:
    """Errors of the operating system in the words of trio's streams."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise trio.BrokenResourceError(str(error)) from error


class _Bounded:
    """Reads the body before the application sees the request, and stands between it and a bug."""

    def __init__(self, app: ASGIApp, bounds: HttpBounds) -> None:
        self._app = app
        self._bounds = bounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]
        body, refusal = await self._body(receive)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        if body is None:  # the client has gone
            return
        await self._answer(scope, _replaying(body, receive), send)

    async def _body(self, receive: Receive) -> tuple[bytes | None, tuple[int, str] | None]:
        pieces: list[bytes] = []
        size, dropped_max = 0, BODY_BYTES_DROPPED
        with trio.move_on_after(self._bounds.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None, None
                piece = message.get("body", b"")
                size += len(piece)
                if size <= self._bounds.body_bytes:
                    pieces.append(piece)
                if not message.get("more_body", False) or size > dropped_max:
                    break
            if size <= self._bounds.body_bytes:
                return b"".join(pieces), None
            limit = self._bounds.body_bytes
            return None, (413, f"the body is too long: at most {limit} bytes are read here")
        return None, (408, "the body did not arrive in time")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await trio.lowlevel.checkpoint_if_cancelled()  # what is sent below is shielded
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if _is_expected(error):
                _log.warning("answer cut off", error=error, path=scope["path"])
            else:
                _log.exception("request failed", error, method=scope["method"], path=scope["path"])
            if not started:
                await _refuse(send, 500, "Internal Server Error")


def _is_expected(error: BaseException) -> bool:
    """Errors of ours say all there is; a traceback would only look like a bug."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_expected, error.exceptions))
    return isinstance(error, LedgerError)


def _replaying(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()  # it comes back when the client has gone
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def _for_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
