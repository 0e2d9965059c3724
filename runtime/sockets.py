"""Byte streams behind an interface, so that a simulated network can stand in for the real one.

Shells read and write without waiting (`receive_now`, `send_now`) and wait only for readiness: a
checkpoint costs more than handling an entry, so there is none per message. The real form is raw
non-blocking sockets under trio's readiness; the memory form is `runtime/memory_sockets.py`.

Errors are the operating system's: ConnectionError and other OSErrors when the peer or the way to
it is gone, trio.ClosedResourceError when our own side closed the stream meanwhile. Whoever knows
what the connection was for turns them into errors of ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import trio

#: As many pieces as every system takes in one call.
PIECES_MAX: Final = 64


class ByteStream(Protocol):
    """One connection. One task may wait for readability and one for writability at a time."""

    peer: str  # for logs: `host:port`

    def receive_now(self, size: int) -> bytes | None:
        """Up to `size` bytes that are there; None when there are none yet, empty at the end."""

    async def wait_readable(self) -> None:
        """Wait until `receive_now` has something to say: bytes, the end, or an error."""

    async def receive_some(self, size: int) -> bytes:
        """Wait for bytes; empty at the end. Being cancelled loses none."""

    def send_now(self, data: bytes | memoryview) -> int:
        """Hand over what fits into the send buffer; the number of bytes, 0 when it is full."""

    def send_pieces_now(self, pieces: Sequence[bytes | memoryview]) -> int:
        """The same for pieces one behind the other, without joining them; at most PIECES_MAX."""

    async def wait_writable(self) -> None:
        """Wait until `send_now` can take something or raise."""

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send everything. Being cancelled leaves part of it sent: close the stream then."""

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes; it may still send."""

    def close(self, *, reset: bool = False) -> None:
        """Close at once; with `reset` the peer gets an error instead of an end. Idempotent.

        Tasks that wait on the stream get trio.ClosedResourceError.
        """


class Listener(Protocol):
    host: str
    port: int  # the real one, also when 0 was asked for

    async def accept(self) -> ByteStream: ...

    def close(self) -> None:
        """Take no more connections. A task in `accept` gets trio.ClosedResourceError."""


class Network(Protocol):
    async def listen(self, host: str, port: int) -> Listener: ...

    async def connect(self, host: str, port: int) -> ByteStream:
        """Connect, or raise OSError. Waits as long as the caller lets it."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How soon a peer that vanished without a word is noticed: here in two minutes, by the kernel.

    Without it an idle connection to a machine that lost its power would be kept for ever.
    """

    idle_seconds: int = 60
    interval_seconds: int = 15
    probes: int = 4

    def apply(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self.idle_seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, self.interval_seconds)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, self.probes)


KEEP_ALIVE: Final = KeepAlive()


class WaitingStream(ABC):
    """What all streams do alike: receiving and sending is to try, and to wait in between."""

    __slots__ = ()

    @abstractmethod
    def receive_now(self, size: int) -> bytes | None: ...

    @abstractmethod
    async def wait_readable(self) -> None: ...

    @abstractmethod
    def send_now(self, data: bytes | memoryview) -> int: ...

    @abstractmethod
    async def wait_writable(self) -> None: ...

    async def receive_some(self, size: int) -> bytes:
        while True:
            # Waiting comes first: after the read there must be no point where a cancel loses it.
            await self.wait_readable()
            data = self.receive_now(size)
            if data is not None:
                return data

    async def send_all(self, data: bytes | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        sent = self.send_now(data)
        if sent == len(data):
            return
        view = memoryview(data)
        while sent < len(view):
            await self.wait_writable()
            sent += self.send_now(view[sent:])


class SocketStream(WaitingStream):
    """A TCP connection, or any connected stream socket."""

    __slots__ = ("_closed", "_socket", "peer")

    def __init__(self, connected: socket.socket, keep_alive: KeepAlive = KEEP_ALIVE) -> None:
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            # Answers are batched by us, never by the kernel.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive.apply(connected)
        self._socket = connected
        self._closed = False
        self.peer = _name_of(connected.getpeername())

    def receive_now(self, size: int) -> bytes | None:
        self._check_open()
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            return None

    async def wait_readable(self) -> None:
        self._check_open()
        await trio.lowlevel.wait_readable(self._socket)

    def send_now(self, data: bytes | memoryview) -> int:
        self._check_open()
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def send_pieces_now(self, pieces: Sequence[bytes | memoryview]) -> int:
        self._check_open()
        try:
            if len(pieces) == 1:
                return self._socket.send(pieces[0])
            return self._socket.sendmsg(pieces)
        except BlockingIOError:
            return 0

    async def wait_writable(self) -> None:
        self._check_open()
        await trio.lowlevel.wait_writable(self._socket)

    def end_sending(self) -> None:
        self._check_open()
        self._socket.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        trio.lowlevel.notify_closing(self._socket)
        if reset:
            linger_zero = struct.pack("ii", 1, 0)
            with contextlib.suppress(OSError):  # the peer may have reset it already
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
        self._socket.close()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"the connection with {self.peer} was closed here")


class SocketListener:
    def __init__(self, listening: socket.socket, keep_alive: KeepAlive = KEEP_ALIVE) -> None:
        listening.setblocking(False)
        self._socket = listening
        self._keep_alive = keep_alive
        self._closed = False
        self.host, self.port = listening.getsockname()[:2]
        self.overloads = 0  # times that accepting paused for want of descriptors or memory

    async def accept(self) -> SocketStream:
        while not self._closed:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                connected, _ = self._socket.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in _LOST_WHILE_ACCEPTING:
                    continue
                if error.errno not in _OVERLOADED:
                    raise
                # The connection stays in the backlog, so trying again at once would spin.
                self.overloads += 1
                await trio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            try:
                return SocketStream(connected, self._keep_alive)
            except OSError:  # gone before we could ask who it was
                connected.close()
        raise trio.ClosedResourceError(f"the listener at {self.host}:{self.port} was closed here")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class SocketNetwork:
    """The network of the operating system."""

    def __init__(self, keep_alive: KeepAlive = KEEP_ALIVE) -> None:
        self._keep_alive = keep_alive

    async def listen(self, host: str, port: int) -> SocketListener:
        """Listen on the first address of `host`; which one is safe is the caller's matter."""
        family, _, _, _, address = (await _resolve(host, port, passive=True))[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listening.bind(address)
            listening.listen(BACKLOG)
            return SocketListener(listening, self._keep_alive)
        except BaseException:
            listening.close()
            raise

    async def connect(self, host: str, port: int) -> SocketStream:
        """Connect to the first address of `host` that answers."""
        failure: OSError | None = None
        for family, _, _, _, address in await _resolve(host, port):
            try:
                return await _connect(family, address, self._keep_alive)
            except OSError as error:
                failure = failure or error
        assert failure is not None, "a resolved name has an address"
        raise failure


async def _connect(family: int, address: _Address, keep_alive: KeepAlive) -> SocketStream:
    connecting = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
        code = connecting.connect_ex(address)
        if code in (errno.EINPROGRESS, errno.EAGAIN):
            await trio.lowlevel.wait_writable(connecting)
            code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        if code:
            raise OSError(code, f"cannot connect to {_name_of(address)}: {os.strerror(code)}")
        if connecting.getsockname() == connecting.getpeername():
            # On loopback a connection to a free port may be given that very port and meet itself.
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"cannot connect to {_name_of(address)}: nobody listens"
            )
        return SocketStream(connecting, keep_alive)
    except BaseException:
        connecting.close()
        raise


async def _resolve(
    host: str, port: int, *, passive: bool = False
) -> Sequence[tuple[int, int, int, str, _Address]]:
    flags = socket.AI_PASSIVE if passive else 0
    try:  # an address needs no resolver, and so no thread
        return socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        return await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError:  # no name: a part of it is empty or too long. Registrations hold anything
        raise socket.gaierror(socket.EAI_NONAME, f"{host[:100]!a} is no name of a host") from None


def _name_of(address: object) -> str:
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address) or "local"


_Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]

BACKLOG: Final = 1024
ACCEPT_PAUSE_SECONDS: Final = 0.1

_OVERLOADED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_LOST_WHILE_ACCEPTING: Final = (
    errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT,
    errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH,
)  # fmt: skip
