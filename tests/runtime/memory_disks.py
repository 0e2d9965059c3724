"""Files in memory, and what may be left of them."""

from __future__ import annotations

import random
from collections.abc import Iterable

from runtime.memory_files import MemoryFile, MemoryFileSystem

SEEDS = range(200)


def durable_file(content: bytes = b"", **options: bool) -> tuple[MemoryFileSystem, MemoryFile]:
    """A file system with one file, `d/a`, whose name and content are durable."""
    fs = MemoryFileSystem()
    fs.make_directories("d")
    file = fs.open("d/a", create=True, **options)
    file.write(content, 0)
    file.sync()
    fs.sync_directory("d")
    return fs, file


def content(fs: MemoryFileSystem, path: str = "d/a") -> bytes:
    file = fs.open(path)
    return file.read(file.size(), 0)


def outcomes(fs: MemoryFileSystem, path: str = "d/a", seeds: Iterable[int] = SEEDS) -> set[bytes]:
    """What the file may hold after a power loss, by many throws of the dice."""
    return {content(fs.crashed_copy(random.Random(seed)), path) for seed in seeds}


def listings(fs: MemoryFileSystem, path: str = "d") -> set[tuple[str, ...]]:
    return {tuple(fs.crashed_copy(random.Random(seed)).list_directory(path)) for seed in SEEDS}
