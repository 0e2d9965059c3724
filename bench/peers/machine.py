"""What this machine can do at best, measured in the same run: sync, copy, loopback."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Final

_SECONDS: Final = 0.5
_CHUNK: Final = 1 << 20


def limits(folder: Path) -> dict[str, float]:
    return {
        "durable writes of 4 KiB, 1/s": _sync_rate(folder, 4096),
        "durable writes of 1 MiB, MiB/s": _sync_rate(folder, _CHUNK),
        "copy, MiB/s": _copy_rate(),
        "loopback, MiB/s": _loopback_rate(),
    }


def _sync_rate(folder: Path, size: int) -> float:
    """Writes into a file of fixed size, each with its fdatasync, as a journal does."""
    path, data = folder / "sync.bin", os.urandom(size)
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.posix_fallocate(file, 0, 64 << 20)
        os.fsync(file)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < _SECONDS:
            os.pwrite(file, data, count * size % (64 << 20))
            os.fdatasync(file)
            count += 1
        return count / (time.perf_counter() - start)
    finally:
        os.close(file)
        path.unlink()


def _copy_rate() -> float:
    source, target = bytearray(64 * _CHUNK), bytearray(64 * _CHUNK)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < _SECONDS:
        target[:] = source
        count += 64
    return count / (time.perf_counter() - start)


def _loopback_rate() -> float:
    """One sender, one receiver, both in this process; the sockets leave the interpreter alone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    data, until = bytes(_CHUNK), time.perf_counter() + _SECONDS

    def send() -> None:
        while time.perf_counter() < until:
            sender.sendall(data)
        sender.close()

    thread = threading.Thread(target=send)
    start, size = time.perf_counter(), 0
    thread.start()
    buffer = bytearray(_CHUNK)
    while count := receiver.recv_into(buffer):
        size += count
    thread.join()
    receiver.close()
    return size / _CHUNK / (time.perf_counter() - start)
