"""The socket below kazoo, with fewer system calls.

kazoo asks before every read and every write whether the socket is ready, with a new epoll each
time, and reads four bytes and then the rest of each answer. That was half of what reading the
records of a large cluster cost. Here one `poll` asks, and what has come is read all at once.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
from collections.abc import Sequence
from typing import Final, Protocol

_READ_BYTES: Final = 64 * 1024


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class ReadAheadSocket(socket.socket):
    """Reads whatever is there and hands it out piece by piece; not for several threads."""

    _ahead: bytes = b""
    _start: int = 0

    @classmethod
    def around(cls, made: socket.socket) -> ReadAheadSocket:
        """The same connection; `made` is of no use any more."""
        timeout = made.gettimeout()
        found = cls(made.family, made.type, made.proto, fileno=made.detach())
        found.settimeout(timeout)
        return found

    def pending(self) -> int:
        """Bytes that need no look at the network. kazoo knows the name from TLS sockets."""
        return len(self._ahead) - self._start

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        if not self.pending():
            found = super().recv(max(bufsize, _READ_BYTES), flags)
            if len(found) <= bufsize:
                return found
            self._ahead, self._start = found, 0
        end = min(self._start + bufsize, len(self._ahead))
        piece = self._ahead[self._start : end]
        self._start = end
        if end == len(self._ahead):
            self._ahead, self._start = b"", 0
        return piece


def wait_ready(
    read: Sequence[_HasDescriptor], write: Sequence[_HasDescriptor], timeout: float | None
) -> tuple[list[_HasDescriptor], list[_HasDescriptor], list[_HasDescriptor]]:
    """Like `select.select`, for descriptors of any number and without setting anything up."""
    ahead = [
        each
        for each in read
        if isinstance(each, ReadAheadSocket | ssl.SSLSocket) and each.pending()
    ]
    masks: dict[int, int] = {}
    for asked, mask in ((read, select.POLLIN), (write, select.POLLOUT)):
        for each in asked:
            number = each.fileno()
            if number < 0:
                raise ValueError("the descriptor is closed")
            masks[number] = masks.get(number, 0) | mask
    poller = select.poll()
    for number, mask in masks.items():
        poller.register(number, mask)
    if ahead:
        timeout = 0.0
    found = dict(poller.poll(None if timeout is None else math.ceil(timeout * 1000)))
    # Errors and the end of a connection make both ready: whoever reads or writes then is told.
    return (
        [each for each in read if found.get(each.fileno(), 0) & ~select.POLLOUT or each in ahead],
        [each for each in write if found.get(each.fileno(), 0) & ~select.POLLIN],
        [],
    )
