"""Files in memory: the twin of the operating system's, which can crash, fill up and rot.

It keeps the promises of `runtime/files.py` and no others; `memory_inodes.py` says what a crash
may leave. Everything is deterministic: chance comes from the `random.Random` that the caller
passes. One lock guards it all, so that worker threads may use it as they use the real one.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, Literal

from runtime.files import DiskSpace
from runtime.memory_inodes import (
    DirectoryNode,
    Disk,
    FileNode,
    Keep,
    NameChange,
    let_go_of_all,
    sync_names,
    tree_after_crash,
)

Operation = Literal[
    "create", "open", "read", "write", "sync", "truncate", "allocate", "list", "rename", "remove",
    "make-directory", "sync-directory",
]  # fmt: skip

CAPACITY_BYTES: Final = 1 << 40


@dataclass(slots=True, eq=False)
class Fault:
    """An injected error. `times` counts down to zero; None goes on until `clear`."""

    operations: frozenset[Operation]
    matches: Callable[[str], bool]
    error: int
    times: int | None

    def clear(self) -> None:
        self.times = 0

    def hits(self, operation: Operation, path: str) -> bool:
        if self.times == 0 or operation not in self.operations or not self.matches(path):
            return False
        if self.times is not None:
            self.times -= 1
        return True


class MemoryFile:
    __slots__ = ("_closed", "_durable", "_fs", "_life", "_locked", "_node", "_read_only", "path")

    def __init__(
        self, fs: MemoryFileSystem, path: str, node: FileNode, *, durable: bool, read_only: bool
    ) -> None:
        self.path = path
        self._fs = fs
        self._life = fs.life
        self._node = node
        self._durable = durable
        self._read_only = read_only
        self._locked = False
        self._closed = False
        node.open_count += 1

    def write(self, data: bytes | memoryview, offset: int) -> None:
        with self._fs.guard:
            node = self._usable(writing=True)
            data = bytes(data)
            durable = " durable" if self._durable else ""
            try:
                self._fs.enter("write", self.path, f"{offset}+{len(data)}{durable}")
            except BaseException:
                if self._durable:  # it was under way to the device: a crash may find it there
                    _put(node, offset, data, durable=False)
                raise
            if _put(node, offset, data, durable=self._durable) < len(data):
                raise _error(errno.ENOSPC, self.path)

    def write_pieces(self, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        data = b"".join(pieces)
        self.write(data, offset)
        return len(data)

    def read(self, size: int, offset: int) -> bytes:
        with self._fs.guard:
            node = self._usable()
            self._fs.enter("read", self.path)
            return bytes(node.visible[offset : offset + size])

    def read_cached(self, size: int, offset: int) -> bytes | None:
        with self._fs.guard:
            self._usable()
            if not self._fs.is_cached(self.path, offset, size):
                return None
            data = self.read(size, offset)
            return data if len(data) == size else None

    def sync(self) -> None:
        with self._fs.guard:
            node = self._usable()
            try:
                self._fs.enter("sync", self.path, "")
            except OSError:
                node.fail_sync()
                raise
            node.sync()

    def size(self) -> int:
        with self._fs.guard:
            return len(self._usable().visible)

    def truncate(self, size: int) -> None:
        with self._fs.guard:
            node = self._usable(writing=True)
            self._fs.enter("truncate", self.path, str(size))
            self._resize(node, size)

    def allocate(self, size: int) -> None:
        with self._fs.guard:
            node = self._usable(writing=True)
            self._fs.enter("allocate", self.path, str(size))
            if size > len(node.visible):
                self._resize(node, size)

    def drop_cached(self, size: int = 0) -> None:
        """Nothing to drop; `is_cached` is the test's to decide."""

    def close(self) -> None:
        with self._fs.guard:
            if self._closed:
                return
            self._closed = True
            if self._life != self._fs.life:  # its owner has died, and let go of everything
                return
            if self._locked:
                self._node.locked = False
            self._node.open_count -= 1
            _release_if_unused(self._node)

    def take_lock(self) -> None:
        if self._node.locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), self.path)
        self._locked = self._node.locked = True

    def _usable(self, *, writing: bool = False) -> FileNode:
        if self._closed or (writing and self._read_only):
            raise _error(errno.EBADF, self.path)
        if self._life != self._fs.life:
            raise OSError(errno.ESTALE, "the file was opened before the crash", self.path)
        return self._node

    def _resize(self, node: FileNode, size: int) -> None:
        growth = size - len(node.visible)
        if growth > node.disk.free_bytes:
            raise _error(errno.ENOSPC, self.path)
        node.disk.used_bytes += growth
        node.change((size, None))


class MemoryFileSystem:
    """A tree of files in memory. A file occupies as many bytes as it is long, holes included.

    `log` holds one short line per change, in order, when `logging` was asked for. `on_operation`
    is called before every operation; what it raises ends the operation, so a test can stop the
    world at any point. A durable write stopped that way may or may not survive the crash.
    """

    def __init__(self, *, capacity_bytes: int = CAPACITY_BYTES, logging: bool = False) -> None:
        self.log: list[str] | None = [] if logging else None
        self.on_operation: Callable[[Operation, str], None] | None = None
        #: Which reads need no device; all of them unless a test decides otherwise.
        self.is_cached: Callable[[str, int, int], bool] = lambda path, offset, size: True
        self.life = 0  # counts crashes: a file belongs to the life that opened it
        self.guard: Final = threading.RLock()
        self._root = DirectoryNode(Disk(capacity_bytes))
        self._unsynced: list[NameChange] = []
        self._faults: list[Fault] = []

    def open(
        self, path: str, *, create: bool = False, durable: bool = False, read_only: bool = False
    ) -> MemoryFile:
        with self.guard:
            node = self._find(path)
            if create and node is not None:
                raise _error(errno.EEXIST, path)
            if isinstance(node, DirectoryNode):
                raise _error(errno.EISDIR, path)
            if node is None and not create:
                raise _error(errno.ENOENT, path)
            if node is None:
                node = self._create(path)
            else:
                self.enter("open", path)
            return MemoryFile(self, path, node, durable=durable, read_only=read_only)

    def exists(self, path: str) -> bool:
        with self.guard:
            return self._find(path) is not None

    def list_directory(self, path: str) -> list[str]:
        with self.guard:
            directory = self._directory(path)
            self.enter("list", path)
            return sorted(directory.visible)

    def make_directories(self, path: str) -> None:
        with self.guard:
            here = self._root
            for name in _parts(path):
                node = here.visible.get(name)
                if node is None:
                    self.enter("make-directory", path, "")
                    node = DirectoryNode(here.disk)
                    self._change_names((here, name, node))
                    self._unsynced = sync_names(self._unsynced, here)
                elif isinstance(node, FileNode):
                    raise _error(errno.EEXIST, path)
                here = node

    def rename(self, old: str, new: str) -> None:
        with self.guard:
            source, source_name = self._parent(old)
            target, target_name = self._parent(new)
            node = source.visible.get(source_name)
            replaced = target.visible.get(target_name)
            if node is None:
                raise _error(errno.ENOENT, old)
            if source.disk is not target.disk:
                raise _error(errno.EXDEV, new)
            if isinstance(replaced, DirectoryNode):
                raise _error(errno.EISDIR, new)
            self.enter("rename", old, new)
            if node is replaced:
                return
            self._change_names((source, source_name, None), (target, target_name, node))
            if replaced is not None:
                replaced.linked = False
                _release_if_unused(replaced)

    def remove(self, path: str) -> None:
        with self.guard:
            directory, name = self._parent(path)
            node = directory.visible.get(name)
            if node is None:
                raise _error(errno.ENOENT, path)
            if isinstance(node, DirectoryNode):
                raise _error(errno.EISDIR, path)
            self.enter("remove", path, "")
            self._change_names((directory, name, None))
            node.linked = False
            _release_if_unused(node)

    def sync_directory(self, path: str) -> None:
        with self.guard:
            directory = self._directory(path)
            self.enter("sync-directory", path, "")
            self._unsynced = sync_names(self._unsynced, directory)

    def space(self, path: str) -> DiskSpace:
        with self.guard:
            node = self._find(path)
            if node is None:
                raise _error(errno.ENOENT, path)
            return DiskSpace(node.disk.capacity_bytes, node.disk.free_bytes)

    def lock(self, path: str) -> MemoryFile:
        with self.guard:
            node = self._find(path) or self._create(path)
            if isinstance(node, DirectoryNode):
                raise _error(errno.EISDIR, path)
            file = MemoryFile(self, path, node, durable=False, read_only=False)
            try:
                file.take_lock()
            except BlockingIOError:
                file.close()
                raise
            return file

    # What a test does to the disk.

    def crash(self, rng: random.Random, *, keep: Keep = Keep.SOME) -> None:
        """Lose what a crash would lose. Files opened before it raise OSError(ESTALE) ever after.

        If all is kept, the process died and the machine did not: what was not synced then is not
        synced now, and a power loss may take it yet.
        """
        with self.guard:
            if keep is Keep.ALL:
                let_go_of_all(self._root)
            else:
                self._root = tree_after_crash(self._root, self._unsynced, rng, keep)
                self._unsynced = []
            self.life += 1

    def crashed_copy(self, rng: random.Random, *, keep: Keep = Keep.SOME) -> MemoryFileSystem:
        """What a crash at this moment would leave, as another file system; this one goes on."""
        copy = MemoryFileSystem()
        with self.guard:
            copy._root = tree_after_crash(self._root, self._unsynced, rng, keep)
        return copy

    def set_capacity(self, path: str, capacity_bytes: int) -> None:
        """Change the size of the disk that `path` is on; it may be smaller than what is used."""
        with self.guard:
            self._directory(path).disk.capacity_bytes = capacity_bytes

    def mount(self, path: str, capacity_bytes: int = CAPACITY_BYTES) -> None:
        """Give the new directory `path` a disk of its own."""
        with self.guard:
            if self.exists(path):
                raise _error(errno.EEXIST, path)
            self.make_directories(path)
            self._directory(path).disk = Disk(capacity_bytes)

    def fail(
        self,
        *operations: Operation,
        path: str | Callable[[str], bool] = "*",
        error: int = errno.EIO,
        times: int | None = 1,
    ) -> Fault:
        """Make the next operations of these kinds fail: `times` of them, or all when None.

        `path` is a pattern as of `fnmatch` or a predicate; a rename goes by its old name.
        """
        matches = (lambda name: fnmatchcase(name, path)) if isinstance(path, str) else path
        fault = Fault(frozenset(operations), matches, error, times)
        self._faults.append(fault)
        return fault

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Let the byte at `offset` rot: flip the bits of `mask`."""
        with self.guard:
            node = self._find(path)
            if not isinstance(node, FileNode) or not 0 <= offset < len(node.visible):
                raise _error(errno.ENOENT, path)
            node.flip(offset, mask)

    def enter(self, operation: Operation, path: str, detail: str | None = None) -> None:
        """Every operation begins here, so that it can be made to fail. A detail is for the log."""
        if self.on_operation is not None:
            self.on_operation(operation, path)
        for fault in self._faults:
            if fault.hits(operation, path):
                raise _error(fault.error, path)
        if self.log is not None and detail is not None:
            self.log.append(f"{operation} {path} {detail}".rstrip())

    def _create(self, path: str) -> FileNode:
        directory, name = self._parent(path)
        self.enter("create", path, "")
        if not directory.disk.free_bytes:
            raise _error(errno.ENOSPC, path)
        node = FileNode(directory.disk)
        self._change_names((directory, name, node))
        return node

    def _change_names(
        self, *edits: tuple[DirectoryNode, str, FileNode | DirectoryNode | None]
    ) -> None:
        change = NameChange(edits)
        change.apply_visible()
        self._unsynced.append(change)

    def _find(self, path: str) -> FileNode | DirectoryNode | None:
        node: FileNode | DirectoryNode | None = self._root
        for name in _parts(path):
            if not isinstance(node, DirectoryNode):
                return None
            node = node.visible.get(name)
        return node

    def _directory(self, path: str) -> DirectoryNode:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, FileNode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[DirectoryNode, str]:
        parent, name = posixpath.split(posixpath.normpath(path))
        return self._directory(parent), name


@lru_cache(maxsize=1024)
def _parts(path: str) -> tuple[str, ...]:
    names = posixpath.normpath(path).split("/")
    return tuple(name for name in names if name not in ("", "."))


def _put(node: FileNode, offset: int, data: bytes, *, durable: bool) -> int:
    """Write what there is room for; how many bytes that is."""
    disk = node.disk
    growth = max(0, offset + len(data) - len(node.visible))
    lacking = growth - disk.free_bytes
    if lacking > 0:
        data = data[: max(0, len(data) - lacking)]
        growth = disk.free_bytes
    if not data:
        return 0
    disk.used_bytes += growth
    if durable:
        node.write_through(offset, data)
    else:
        node.change((offset, data))
    return len(data)


def _release_if_unused(node: FileNode | DirectoryNode) -> None:
    """Give the room of a file back once it has no name and nobody holds it open."""
    if isinstance(node, FileNode) and not node.linked and not node.open_count:
        node.disk.used_bytes -= len(node.visible)
        node.visible = bytearray()


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
