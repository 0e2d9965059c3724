"""A disk that can really be full: a small file system of its own, mounted for one test."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system, and a file in it that takes the room of others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    @property
    def free_bytes(self) -> int:
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Take all room but this much. Everybody else now meets ENOSPC.

        RocksDB has threads of its own: one that writes between the look at the room and the taking
        of it leaves less than was seen, so look again.
        """
        with self._filler.open("ab") as file:
            for _ in range(100):
                end = file.tell() + max(self.free_bytes - leave_bytes, 0)
                if not end:
                    return
                try:
                    return os.posix_fallocate(file.fileno(), 0, end)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        raise AssertionError(f"{self.path} does not come to rest")

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a file system of this size: in memory, else in a file behind a loop device."""
    mounted = path / "disk"
    mounted.mkdir()
    image = path / "image"
    reasons = []
    for command in (
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(mounted)],
        ["mount", "-o", "loop", str(image), str(mounted)],
    ):
        if "loop" in command:
            with image.open("wb") as file:
                file.truncate(megabytes << 20)
            reasons.append(_run(["mkfs.ext4", "-q", "-m", "0", str(image)]))
        reasons.append(_run(command))
        if not reasons[-1]:
            break
    else:
        pytest.fail(
            "cannot mount a small file system, and nothing else shows what a full disk does: run "
            "the tests as root, in a container with CAP_SYS_ADMIN: " + "; ".join(reasons)
        )
    try:
        yield SmallDisk(mounted)
    finally:
        if _run(["umount", str(mounted)]):  # a bookie that died in this process has files open
            assert not _run(["umount", "--lazy", str(mounted)])


def _run(command: list[str]) -> str:
    """What is wrong, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return (done.stderr.strip() or f"{command[0]} failed") if done.returncode else ""
