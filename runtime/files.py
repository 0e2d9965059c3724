"""Files behind an interface, so that a simulated disk can stand in for the real one.

Everything is synchronous: callers run it in threads of their own. The memory twin is
`runtime/memory_files.py`; it knows what a crash would leave behind, so the promises matter:

- `write` and `append` reach the operating system; only `sync` (or `durable=True` at opening,
  which makes every write durable before it returns) makes bytes survive a power loss;
- a new, renamed or removed name survives a power loss only after `sync_directory` of its parent
  (directories made by `make_directories` survive at once: they are too few to save on).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class DiskSpace(NamedTuple):
    total_bytes: int
    free_bytes: int  # what an unprivileged process may still use


class File(Protocol):
    """One open file. Offsets are explicit, so several threads may read it at once."""

    path: str

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`, or raise OSError."""

    def write_pieces(self, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        """Write the pieces one behind the other from `offset` on; the number of bytes written."""

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def read_cached(self, size: int, offset: int) -> bytes | None:
        """The bytes if they can be had without waiting for the device, else None."""

    def sync(self) -> None:
        """Make everything written so far survive a power loss (fdatasync)."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Reserve room up to `size` bytes; OSError(ENOSPC) when there is none."""

    def drop_cached(self, size: int = 0) -> None:
        """The first `size` bytes (all, if 0) are synced and will hardly be read soon: the page
        cache need not keep them. A hint; nothing comes of its failure."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    def open(
        self, path: str, *, create: bool = False, durable: bool = False, read_only: bool = False
    ) -> File:
        """Open a file. `create` demands that it does not exist yet."""

    def exists(self, path: str) -> bool: ...

    def list_directory(self, path: str) -> list[str]:
        """Names in the directory, sorted. FileNotFoundError if there is no such directory."""

    def make_directories(self, path: str) -> None:
        """Create the directory and what is missing above it; all of it is durable on return."""

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def space(self, path: str) -> DiskSpace: ...

    def lock(self, path: str) -> File:
        """Hold `path` (created if missing) exclusively until the file is closed.

        Raises BlockingIOError when another process holds it.
        """


class OSFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def write(self, data: bytes | memoryview, offset: int) -> None:
        written = os.pwrite(self._fd, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):  # a short write is legal; end it or get the reason
            count = os.pwrite(self._fd, view[written:], offset + written)
            if count == 0:
                raise OSError(errno.EIO, "write made no progress", self.path)
            written += count

    def write_pieces(self, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        total = sum(map(len, pieces))
        if len(pieces) > _IOV_MAX or os.pwritev(self._fd, pieces, offset) != total:
            self.write(b"".join(pieces), offset)
        return total

    def read(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing and (data := os.pread(self._fd, missing, offset + size - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def read_cached(self, size: int, offset: int) -> bytes | None:
        buffer = bytearray(size)
        try:
            count = os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        return bytes(buffer) if count == size else None

    def sync(self) -> None:
        if self._fd < 0:  # the others raise EBADF by themselves, this one a ValueError
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def drop_cached(self, size: int = 0) -> None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, 0, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class OSFileSystem:
    """The file system of the operating system."""

    def open(
        self, path: str, *, create: bool = False, durable: bool = False, read_only: bool = False
    ) -> OSFile:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        if durable:
            flags |= os.O_DSYNC
        return OSFile(path, os.open(path, flags | os.O_CLOEXEC, 0o640))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        missing = []
        here = os.path.abspath(path)
        while not os.path.isdir(here):
            missing.append(here)
            here = os.path.dirname(here)
        for directory in reversed(missing):
            try:
                os.mkdir(directory, 0o750)
            except FileExistsError:  # another process made it meanwhile, or it is a file
                if not os.path.isdir(directory):
                    raise
            self.sync_directory(os.path.dirname(directory))

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: str) -> DiskSpace:
        stat = os.statvfs(path)
        return DiskSpace(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)

    def lock(self, path: str) -> OSFile:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return OSFile(path, fd)


_IOV_MAX = os.sysconf("SC_IOV_MAX")
