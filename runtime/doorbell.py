"""A count that one thread raises and another waits for with `select`."""

from __future__ import annotations

import os
import threading


class Doorbell:
    """Stands in for a pair of sockets that carries one byte per queued request.

    Such a pair has room for a few hundred bytes and then blocks the sender, which here is an
    event loop. A counting eventfd never does.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._descriptor

    def send(self, data: bytes) -> int:
        with self._lock:  # never write to a number that was closed and belongs to another file
            os.eventfd_write(self._descriptor, len(data))
        return len(data)

    def recv(self, size: int) -> bytes:
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
