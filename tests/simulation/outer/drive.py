"""The disk of a bookie in the outer ring, and everything that can happen to one."""

from __future__ import annotations

import errno
from random import Random
from typing import Final, Literal

from bookie.storage.memory_index import MemoryIndexes
from runtime.memory_files import Fault, MemoryFileSystem, Operation
from runtime.memory_inodes import Keep

JOURNAL: Final = "/disk/journal"
LEDGERS: Final = "/disk/ledgers"
CAPACITY_BYTES: Final = 1 << 30

#: What a wiped disk has lost.
Part = Literal["everything", "the journal", "the ledgers"]
PARTS: Final[tuple[Part, ...]] = ("everything", "everything", "the journal", "the ledgers")


class Drive:
    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.files = MemoryFileSystem(capacity_bytes=CAPACITY_BYTES)
        self.indexes = MemoryIndexes()
        self.slowness = 1.0
        self.stalled_until = 0.0
        self._faults: list[Fault] = []

    def step_seconds(self, now: float) -> float:
        """How long the next step of a thread takes that uses it."""
        return max(0.002 * self._chance.random() * self.slowness, self.stalled_until - now)

    def crash(self, keep: Keep) -> None:
        self.files.crash(self._chance, keep=keep)
        self.indexes.crash(lambda pieces: self._chance.randint(0, pieces))

    def fill(self) -> None:
        space = self.files.space("/")
        self.files.set_capacity("/", space.total_bytes - space.free_bytes + 700)

    def fail(self, path: str) -> None:
        operation: Operation = self._chance.choice(("write", "sync"))
        self._faults.append(self.files.fail(operation, path=f"{path}/*", error=errno.EIO))

    def rot(self) -> bool:
        """A byte of an entry log flips; False if there is none yet."""
        logs = [
            path
            for path in self._files_below(LEDGERS)
            if path.endswith(".log") and self._size(path) > 600
        ]
        if not logs:
            return False
        path = self._chance.choice(logs)
        offset = self._chance.randrange(512, self._size(path))
        self.files.flip(path, offset, mask=1 << self._chance.randrange(8))
        return True

    def wipe(self, part: Part) -> None:
        """Nobody may have it open."""
        if part == "everything":
            self.files = MemoryFileSystem(capacity_bytes=CAPACITY_BYTES)
            self.indexes = MemoryIndexes()
            self._faults.clear()
            return
        for path in self._files_below(JOURNAL if part == "the journal" else LEDGERS):
            self.files.remove(path)
        if part == "the ledgers":
            self.indexes = MemoryIndexes()

    def heal(self) -> None:
        self.files.set_capacity("/", CAPACITY_BYTES)
        for fault in self._faults:
            fault.clear()
        self.slowness, self.stalled_until = 1.0, 0.0

    def _files_below(self, path: str) -> list[str]:
        found = []
        for name in self.files.list_directory(path):
            below = f"{path}/{name}"
            try:
                found += self._files_below(below)
            except NotADirectoryError:
                found.append(below)
        return found

    def _size(self, path: str) -> int:
        file = self.files.open(path, read_only=True)
        try:
            return file.size()
        finally:
            file.close()
