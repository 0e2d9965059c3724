"""Journal files: opening them, making new ones, using old ones again.

A file is written from end to end before its first block, because overwriting bytes that the
device has already placed syncs in half the time of growing a file, and because a write into room
that exists cannot run out of it. That work is slow, so a file is prepared before it is needed.

The order of operations is what a power loss tests. A file gets its name only after its header is
durable, and is used only after its name is. One that is used again first loses its old name,
durably: otherwise a power loss could leave the new header under the old name.
"""

from __future__ import annotations

import errno
import posixpath
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bookie.storage.journal_format import (
    FILE_HEADER_BYTES,
    FIRST_OFFSET,
    FileHeader,
    JournalError,
    aligned,
    decode_file_header,
    encode_file_header,
    file_id_of,
    file_name,
    is_spare,
    spare_name,
)
from runtime.files import File, FileSystem
from wire.errors import TransientError

_FILL_STEP: Final = memoryview(bytes(1024 * 1024))
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class JournalSpaceError(TransientError):
    """No room for another journal file. Nothing is lost; it is tried again when asked."""


def journal_file_ids(files: FileSystem, directory: str) -> list[int]:
    """The ids of all journal files in a directory, in the order in which they were used."""
    ids = map(file_id_of, files.list_directory(directory))
    return sorted(file_id for file_id in ids if file_id is not None)


def read_file_header(file: File, file_id: int, store_id: bytes) -> FileHeader:
    """The header of an open file; an error unless it is ours and stands under its own name."""
    header = decode_file_header(file.read(FILE_HEADER_BYTES, 0), file.path)
    if header.store_id != store_id:
        raise JournalError(
            f"{file.path}: belongs to store {header.store_id.hex()}, this one is "
            f"{store_id.hex()}; put the right journal directory in its place"
        )
    if header.file_id != file_id:
        raise JournalError(
            f"{file.path}: the header says file id {header.file_id:016x}; "
            "journal files must not be renamed or copied"
        )
    return header


class JournalFile:
    """A file that blocks are written to, by two ways: durable at once, or after a sync."""

    __slots__ = ("_durable", "_files", "_plain", "file_id", "path", "size")

    def __init__(self, files: FileSystem, path: str, *, file_id: int, size: int) -> None:
        self.path = path
        self.file_id = file_id
        self.size = size
        self._files = files
        self._durable: File | None = None
        self._plain: File | None = None

    def write(self, block: Sequence[bytes | memoryview], offset: int, *, durable: bool) -> None:
        if durable:
            if self._durable is None:
                self._durable = self._files.open(self.path, durable=True)
            self._durable.write_pieces(block, offset)
        else:
            self._plain_file().write_pieces(block, offset)

    def sync(self) -> None:
        """Make everything durable that was written to the file, by whichever way."""
        self._plain_file().sync()

    def extend(self, size: int) -> None:
        """Make room for a block that is bigger than a whole file."""
        if size > self.size:
            file = self._plain_file()
            file.allocate(size)
            file.sync()
            self.size = size

    def close(self) -> None:
        for file in (self._durable, self._plain):
            if file is not None:
                file.close()
        self._durable = self._plain = None

    def _plain_file(self) -> File:
        if self._plain is None:
            self._plain = self._files.open(self.path)
        return self._plain


class FilePool:
    """Keeps the next file ready, out of files that are no longer needed or out of nothing.

    Two threads work here: the preparer, ahead of time, and the writer when it cannot wait. They
    share one preparation under a lock, which is held for one short piece of work at a time. The
    loop only says what is no longer needed, and never waits.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        store_id: bytes,
        *,
        file_bytes: int,
        spare_files_max: int,
        tail_file_id: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`tail_file_id` is the last file with blocks of the log; what is behind it is unused."""
        self._files = files
        self._directory = directory
        self._store_id = store_id
        self._file_bytes = aligned(file_bytes)
        self._spare_files_max = spare_files_max
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._released_below = 0
        self._ready: JournalFile | None = None
        self._preparation: Iterator[JournalFile | None] | None = None
        self._spare: File | None = None  # what is half prepared
        self._is_urgent = False  # the writer waits: a file that is merely allocated will do
        self._closed = False
        self.recycled_count = 0
        self.created_count = 0

        for name in files.list_directory(directory):
            if is_spare(name):
                files.remove(posixpath.join(directory, name))
        ids = journal_file_ids(files, directory)
        # Never an id that a file on disk has: blocks are told from stale ones by it.
        self._next_id = ids[-1] + 1 if ids else 1
        self._used = [file_id for file_id in ids if file_id <= tail_file_id]
        self._obsolete = deque(file_id for file_id in ids if file_id > tail_file_id)

    def release(self, below_file_id: int) -> None:
        """Files with smaller ids are no longer needed. From the loop; the preparer acts on it."""
        self._released_below = max(self._released_below, below_file_id)

    def prepare_step(self) -> bool:
        """One piece of work ahead of time; False when there is nothing left to do."""
        with self._lock:
            if self._closed:
                return False
            self._collect_released()
            if self._ready is None:
                self._advance()
                return True
            if len(self._obsolete) <= self._spare_files_max:
                return False
            surplus = self._path(self._obsolete.popleft())
        # Outside the lock: a big file is removed slowly. A power loss may bring it back, which is
        # harmless: it stands below the mark.
        self._files.remove(surplus)
        return True

    def take(self, block_bytes: int) -> JournalFile:
        """The next file, with room for a block of this size. Prepares it if none is ready."""
        with self._lock:
            self._collect_released()
            self._is_urgent = True
            try:
                while self._ready is None:
                    self._advance()
            finally:
                self._is_urgent = False
            file = self._ready
            with _SpaceErrors(self._directory):
                file.extend(FIRST_OFFSET + block_bytes)
            self._ready = None
            self._used.append(file.file_id)
            return file

    def close(self) -> None:
        """Drop what is half prepared. A file that is ready stays, for the next start."""
        with self._lock:
            self._closed = True
            if self._spare is not None:
                self._drop(self._spare)

    @property
    def has_ready_file(self) -> bool:
        return self._ready is not None

    def file_count(self) -> int:
        """How many files the directory holds, by what this pool knows."""
        return len(self._used) + len(self._obsolete) + (self._ready is not None)

    def _collect_released(self) -> None:
        below = self._released_below
        self._obsolete.extend(file_id for file_id in self._used if file_id < below)
        self._used = [file_id for file_id in self._used if file_id >= below]

    def _advance(self) -> None:
        if self._preparation is None:
            self._preparation = self._prepare(self._next_id)
        try:
            with _SpaceErrors(self._directory):
                self._ready = next(self._preparation)
        except BaseException:
            self._preparation = None
            raise
        if self._ready is not None:
            self._preparation = None
            self._next_id += 1

    def _prepare(self, file_id: int) -> Iterator[JournalFile | None]:
        """Yields None between short pieces of work, and at last the file."""
        spare = posixpath.join(self._directory, spare_name(file_id))
        recycled = bool(self._obsolete)
        if recycled:
            self._files.rename(self._path(self._obsolete[0]), spare)
            self._obsolete.popleft()
            self._files.sync_directory(self._directory)
        self._spare = file = self._files.open(spare, create=not recycled)
        try:
            filled = file.size()
            if filled > self._file_bytes:  # it held a block bigger than a file
                file.truncate(self._file_bytes)
            elif filled < self._file_bytes:  # new, or from days of a smaller setting
                file.allocate(self._file_bytes)
                yield from self._fill(file, filled)
            file.write(self._header(file_id), 0)
            file.sync()
        except OSError:
            self._drop(file)  # gives the room back that it already took
            raise
        self._spare = None
        file.close()
        path = self._path(file_id)
        self._files.rename(spare, path)
        self._files.sync_directory(self._directory)
        self.recycled_count += recycled
        self.created_count += not recycled
        yield JournalFile(self._files, path, file_id=file_id, size=self._file_bytes)

    def _fill(self, file: File, start: int) -> Iterator[None]:
        """Write zeros: blocks sync faster over bytes that were written before.

        Synced step by step, so that no other sync has to wait for all of them. Only speed is at
        stake, so it ends when the writer is in need of the file; allocated room reads as zeros.
        """
        for offset in range(start, self._file_bytes, len(_FILL_STEP)):
            if self._is_urgent:
                return
            file.write(_FILL_STEP[: self._file_bytes - offset], offset)
            file.sync()
            yield None

    def _drop(self, spare: File) -> None:
        self._spare = self._preparation = None
        spare.close()
        self._files.remove(spare.path)

    def _header(self, file_id: int) -> bytes:
        return encode_file_header(
            FileHeader(
                file_id=file_id,
                file_bytes=self._file_bytes,
                store_id=self._store_id,
                prepared_ms=self._now_ms(),
            )
        )

    def _path(self, file_id: int) -> str:
        return posixpath.join(self._directory, file_name(file_id))


class _SpaceErrors:
    """Tells a full disk, which passes, from every other error, which does not."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise JournalSpaceError(
                f"{self._directory}: no room for the next journal file; free space on that disk"
            ) from error
