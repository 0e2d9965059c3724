"""A count that one thread raises and another waits for with `select`."""

from __future__ import annotations

import os
import threading


class Doorbell:
    """Stands in for a pair of sockets that carries one byte per queued request.

    Such a pair has room for a few hundred bytes and then blocks the sender, which here is an
    event loop. An eventfd never does, and is written once for many requests in a row: it is
    readable while the count is not zero.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._count = 0

    def fileno(self) -> int:
        return self._descriptor

    def send(self, data: bytes) -> int:
        with self._lock:  # never write to a number that was closed and belongs to another file
            if self._count == 0 or self._descriptor < 0:
                os.eventfd_write(self._descriptor, 1)
            self._count += len(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        with self._lock:
            if self._count <= 1:
                os.eventfd_read(self._descriptor)
            self._count -= 1
        return b"\0"

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
