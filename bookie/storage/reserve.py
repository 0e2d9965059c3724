"""Emergency space: a file that is given up when a full disk keeps the bookie from freeing space.

Compaction copies before it deletes, and a checkpoint writes before the journal can be trimmed; so
a disk that is full to the last byte could never be emptied again. The reserve breaks that knot.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

from runtime.files import FileSystem

#: One log and one journal file of the default sizes: what a bookie should be configured with. A
#: local cluster does with much less, tests with nothing.
RESERVE_BYTES: Final = 1280 << 20
RESERVE_NAME: Final = "reserve"


class Reserve:
    """The reserve of one directory. Any thread may give it up; none waits for another long."""

    def __init__(self, files: FileSystem, directory: str, *, size: int) -> None:
        self.size = size
        self.path = os.path.join(directory, RESERVE_NAME)
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()

    @property
    def is_there(self) -> bool:
        return self._files.exists(self.path)

    @property
    def is_due(self) -> bool:
        """Whether it ought to be there and is not, or is of another size."""
        return self.size != self._size()

    def release(self) -> bool:
        """Give the space back to the disk; whether there was any."""
        with self._lock:
            try:
                self._files.remove(self.path)
            except OSError:
                return False
            return True

    def restore(self) -> bool:
        """Take the space again; False if the disk has no room for it."""
        with self._lock:
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(self.path)
            if not self.size:
                return True
            try:
                file = self._files.open(self.path, create=True)
                try:
                    file.allocate(self.size)
                    file.sync()
                finally:
                    file.close()
                self._files.sync_directory(self._directory)
            except OSError:
                with contextlib.suppress(OSError):
                    self._files.remove(self.path)
                return False
            return True

    def _size(self) -> int:
        try:
            file = self._files.open(self.path, read_only=True)
        except OSError:
            return 0
        try:
            return file.size()
        finally:
            file.close()
