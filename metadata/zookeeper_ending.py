"""Ending a session that another process left behind.

ZooKeeper keeps the ephemeral nodes of a killed process until its session has been silent for long
enough. Whoever has the session's password may enter it and close it at once. This takes two small
frames, which are written here: the client library would open a session of its own for it, or keep
the old one alive.
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

import trio

from metadata.store import MetadataError, SessionId, StoreUnavailableError

_CLOSE: Final = -11
#: Both frames of the server are far smaller.
_FRAME_BYTES_MAX: Final = 1024
_CONNECT: Final = struct.Struct(">iqiqi")  # version, last zxid, timeout, session, password length
_CONNECTED: Final = struct.Struct(">iiq")  # version, timeout, session
_PASSWORD_BYTES: Final = 16
_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SessionTicket:
    """What lets another process into a session. A secret, like any password."""

    session: SessionId
    password: bytes = field(repr=False)

    def encode(self) -> str:
        return f"{self.session:x}:{self.password.hex()}"

    @classmethod
    def decode(cls, text: str) -> Self:
        session, _, password = text.partition(":")
        try:
            found = cls(SessionId(int(session, 16)), bytes.fromhex(password))
        except ValueError:
            raise MetadataError("a session ticket has the form number:password, in hex") from None
        if len(found.password) != _PASSWORD_BYTES or not -(1 << 63) <= found.session < 1 << 63:
            raise MetadataError("a session ticket names a number and a password of other sizes")
        return found


async def end_session(
    servers: str,
    ticket: SessionTicket,
    seconds_max: float,
    context: ssl.SSLContext | None = None,
) -> bool:
    """Close the session, by any of `host:port,host:port`; False if it was over already."""
    trouble = "no server is named"
    for server in servers.partition("/")[0].split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            with trio.fail_after(seconds_max):
                return await _end(host.strip("[]"), int(port), ticket, context)
        except (OSError, ValueError, trio.TooSlowError, trio.BrokenResourceError) as error:
            trouble = f"{server}: {error or 'no answer in time'}"
    raise StoreUnavailableError(f"end session 0x{ticket.session:x}: {trouble}")


async def _end(host: str, port: int, ticket: SessionTicket, context: ssl.SSLContext | None) -> bool:
    async with await _open(host, port, context) as stream:
        hello = _CONNECT.pack(0, 0, _TIMEOUT_MS, ticket.session, len(ticket.password))
        await _send(stream, hello + ticket.password + b"\0")
        answer = await _receive(stream)
        if len(answer) < _CONNECTED.size:
            raise ValueError("does not answer as ZooKeeper does")
        if _CONNECTED.unpack_from(answer)[2] != ticket.session:
            return False
        await _send(stream, struct.pack(">ii", 1, _CLOSE))
        with suppress(trio.BrokenResourceError, ValueError):  # closed is closed
            await _receive(stream)
        return True


async def _open(host: str, port: int, context: ssl.SSLContext | None) -> trio.abc.Stream:
    stream = await trio.open_tcp_stream(host, port)
    if context is None:
        return stream
    return trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)


async def _send(stream: trio.abc.Stream, payload: bytes) -> None:
    await stream.send_all(struct.pack(">i", len(payload)) + payload)


async def _receive(stream: trio.abc.Stream) -> bytes:
    (length,) = struct.unpack(">i", await _receive_exactly(stream, 4))
    if not 0 <= length <= _FRAME_BYTES_MAX:
        raise ValueError(f"announces {length} bytes, as no ZooKeeper does")
    return await _receive_exactly(stream, length)


async def _receive_exactly(stream: trio.abc.Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = await stream.receive_some(size - len(data))
        if not chunk:
            raise ValueError("closed the connection")
        data += chunk
    return data


def shut_down(connection: socket.socket | None) -> None:
    """Cut a connection, which whoever reads from it notices."""
    if connection is not None:
        with suppress(OSError):  # closed already
            connection.shutdown(socket.SHUT_RDWR)
