"""The files of a bookie under test: slow, failing, torn, and without power when it is killed.

A killed process loses nothing that it wrote, synced or not: the kernel has it. A machine without
power does. So what was not synced is held in the memory of the process here, and a SIGKILL takes
it away (files of RocksDB are its own, and lose nothing). On top of that a file of orders, which is
looked at all the time, makes operations slow or fail, or ends the process in the middle of one.

    {"slow_seconds": 0.5, "slow": ".jnl"}        every sync and durable write of such files waits
    {"unreadable": 0.3}                          so many reads of entry logs end with EIO
    {"crash": {"suffix": ".jnl", "after": 20}}   the 20th write to such a file is torn, then SIGKILL
    {"crash": {"suffix": ".log", "after": 3, "sync": true}}      killed before that sync
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from runtime.files import OSFile, OSFileSystem

_LOOK_SECONDS: Final = 0.05


class Orders:
    """What the disk shall do, as the controller wrote it last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked = 0.0
        self._stamp = 0
        self._lock = threading.Lock()
        self._chance = random.Random(os.getpid())
        self._orders: dict[str, Any] = {}
        self._crash_in = 0

    def current(self) -> dict[str, Any]:
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            try:
                stamp = self._path.stat().st_mtime_ns
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._orders = json.loads(self._path.read_text() or "{}")
                    self._crash_in = int(self._orders.get("crash", {}).get("after", 0))
            except FileNotFoundError:
                self._orders = {}
        return self._orders

    def before_durable(self, path: str) -> None:
        orders = self.current()
        if orders and path.endswith(orders.get("slow", "")) and "slow_seconds" in orders:
            time.sleep(orders["slow_seconds"])

    def before_read(self, path: str) -> None:
        share = self.current().get("unreadable", 0.0)
        if share and path.endswith(".log") and self._chance.random() < share:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def is_crash(self, path: str, *, sync: bool) -> bool:
        """Whether this is the operation in which the power goes."""
        crash = self.current().get("crash")
        if not crash or not path.endswith(crash["suffix"]) or crash.get("sync", False) != sync:
            return False
        with self._lock:
            self._crash_in -= 1
            return self._crash_in == 0


class _Held:
    """What was written to one inode and not synced."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pieces: list[tuple[int, bytes]] = []
        self.late: list[tuple[int, bytes]] = []  # acknowledged by the broken build all the same
        self.fd = -1  # the last one that may write; a copy of our own

    def release(self) -> None:
        """Into the kernel, in the order of writing."""
        with self.lock:
            pieces, self.pieces = self.pieces, []
            for offset, data in pieces:
                os.pwrite(self.fd, data, offset)
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

    def take_fd(self, fd: int) -> None:
        if self.fd < 0:
            self.fd = os.dup(fd)

    def forget(self) -> None:
        with self.lock:
            self.pieces.clear()
            self.release()


class FaultyFile(OSFile):
    __slots__ = ("_durable", "_held", "_world")

    def __init__(self, path: str, fd: int, world: FaultyFiles, *, durable: bool) -> None:
        super().__init__(path, fd)
        self._world = world
        self._durable = durable
        stat = os.fstat(fd)
        self._held = world.held_of((stat.st_dev, stat.st_ino))

    def write(self, data: bytes | memoryview, offset: int) -> None:
        world, held = self._world, self._held
        if world.orders.is_crash(self.path, sync=False):
            held.take_fd(self._fd)
            held.release()
            os.pwrite(self._fd, bytes(data)[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        if self._durable:
            world.orders.before_durable(self.path)
            with held.lock:
                held.release()
                super().write(data, offset)
            return
        with held.lock:
            # What cannot be written must be refused now, as the kernel would.
            os.posix_fallocate(self._fd, offset, max(1, len(data)))
            held.take_fd(self._fd)
            held.pieces.append((offset, bytes(data)))

    def write_pieces(self, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        data = b"".join(pieces)
        if self._world.is_broken and self.path.endswith(".jnl"):
            with self._held.lock:  # a block; headers and fillings come by `write`
                self._held.late.append((offset, data))
        else:
            self.write(data, offset)
        return len(data)

    def read(self, size: int, offset: int) -> bytes:
        self._world.orders.before_read(self.path)
        held = self._held
        if not held.pieces and not held.late:
            return super().read(size, offset)
        with held.lock:
            buffer = bytearray(super().read(size, offset))
            for start, data in (*held.pieces, *held.late):
                low, high = max(start, offset), min(start + len(data), offset + size)
                if low < high:
                    buffer.extend(bytes(max(0, high - offset - len(buffer))))
                    buffer[low - offset : high - offset] = data[low - start : high - start]
            return bytes(buffer)

    def read_cached(self, size: int, offset: int) -> bytes | None:
        if self._held.pieces or self._held.late or self._world.orders.current():
            return None
        return super().read_cached(size, offset)

    def sync(self) -> None:
        orders = self._world.orders
        if orders.is_crash(self.path, sync=True):
            os.kill(os.getpid(), signal.SIGKILL)
        orders.before_durable(self.path)
        self._held.release()
        super().sync()

    def truncate(self, size: int) -> None:
        self._held.release()
        super().truncate(size)


class FaultyFiles(OSFileSystem):
    """`broken` says that blocks of the journal are durable, and keeps them in memory for good."""

    def __init__(self, orders: Path, *, broken: bool = False) -> None:
        self.orders = Orders(orders)
        self.is_broken = broken
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], _Held] = {}

    def held_of(self, inode: tuple[int, int]) -> _Held:
        with self._lock:
            return self._held.setdefault(inode, _Held())

    def release_all(self) -> None:
        with self._lock:
            held = list(self._held.values())
        for one in held:
            one.release()

    def open(
        self, path: str, *, create: bool = False, durable: bool = False, read_only: bool = False
    ) -> OSFile:
        plain = super().open(path, create=create, durable=durable, read_only=read_only)
        if path.endswith(("SESSION.new", "SESSION", "LOCK")):
            return plain
        return FaultyFile(path, cast(Any, plain)._fd, self, durable=durable)

    def remove(self, path: str) -> None:
        stat = os.stat(path)
        super().remove(path)
        if stat.st_nlink == 1:
            with self._lock:
                held = self._held.pop((stat.st_dev, stat.st_ino), None)
            if held is not None:
                held.forget()
