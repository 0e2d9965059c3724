"""Faults of disks: full, slow, failing, torn, rotten, wiped, exchanged.

Where bits rot matters. A flip in the last block of a journal cannot be told from a write that was
never finished, by nobody: such a bookie would deny what it has acknowledged. That is no fault that
a protocol can answer, so flips in journals leave the last block alone.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookie.storage.journal_inspect import inspect_blocks, journal_files
from runtime.files import OSFileSystem
from tests.chaos.cluster import Bookie
from tests.chaos.fault import Fault, bring_up, wipe
from wire.errors import LedgerError

_BALLAST: Final = "ballast"


@dataclass(slots=True)
class _OnBookie(Fault):
    bookie: Bookie | None = None

    def take(self) -> Bookie:
        bookie = self.bookie = self.pick_bookie()
        return bookie

    def taken(self) -> Bookie:
        assert self.bookie is not None
        return self.bookie

    def lift(self) -> None:
        """Whatever it was: orders end, and the bookie runs."""
        bookie = self.taken()
        bookie.no_orders()
        if not bookie.is_running:
            bookie.kill()
            self.told = " ".join(filter(None, (self.told, bring_up(bookie))))


@dataclass(slots=True)
class FillDisk(_OnBookie):
    """To the last byte, on a bookie whose disk is small."""

    def inject(self) -> None:
        self.kind = "disk full"
        self.seconds = 8.0
        small = [bookie for bookie in self.cluster.bookies if bookie.has_small_disk]
        bookie = self.bookie = self.pick(small)
        with (bookie.disk / _BALLAST).open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(1 << 20))
            except OSError:
                return

    def lift(self) -> None:
        (self.taken().disk / _BALLAST).unlink(missing_ok=True)
        _OnBookie.lift(self)


@dataclass(slots=True)
class SlowDisk(_OnBookie):
    def inject(self) -> None:
        self.kind = "slow disk"
        self.seconds = 8.0
        seconds = self.chance.choice((0.2, 1.0, 6.0))
        suffix = self.chance.choice((".jnl", ".jnl", ".log", ""))
        self.told = f"{seconds} s for each sync of {suffix or 'any file'}"
        self.take().order(json.dumps({"slow_seconds": seconds, "slow": suffix}))


@dataclass(slots=True)
class ReadErrors(_OnBookie):
    def inject(self) -> None:
        self.kind = "read errors"
        self.seconds = 8.0
        bookie = self.take()
        self.damages = (bookie.name,)  # what cannot be read may be given up by compaction
        bookie.order(json.dumps({"unreadable": self.chance.choice((0.1, 0.5, 1.0))}))

    def lift(self) -> None:
        # Counts of damage, and what was concluded from them, last as long as the process.
        self.taken().stop()
        _OnBookie.lift(self)


@dataclass(slots=True)
class TornWrite(_OnBookie):
    """The power goes in the middle of one write, or just before a sync."""

    def inject(self) -> None:
        self.kind = "power cut within a write"
        suffix = self.chance.choice((".jnl", ".jnl", ".log", "mark"))
        crash = {
            "suffix": suffix,
            "after": self.chance.randint(1, 12 if suffix == ".jnl" else 2),
            "sync": suffix != ".jnl" and self.chance.random() < 0.5,
        }
        self.seconds = 5.0
        self.told = json.dumps(crash)
        self.take().order(json.dumps({"crash": crash}))

    def lift(self) -> None:
        bookie = self.taken()
        bookie.kill()  # if it was not reached
        _OnBookie.lift(self)


@dataclass(slots=True)
class RotInLog(_OnBookie):
    """Bits flip in entry logs of a bookie that runs."""

    def inject(self) -> None:
        self.kind = "bit flips in entry logs"
        self.seconds = 1.0
        self.is_rot = True
        bookie = self.take()
        self.damages = (bookie.name,)
        logs = [path for folder in bookie.directories for path in folder.rglob("*.log")]
        logs = sorted(path for path in logs if path.parent.name == "current")
        flipped = sum(flip(self, path, 4096, None) for path in logs[-8:] for _ in range(3))
        # The first header of the log that still grows, which a start has to get past.
        flipped += sum(flip(self, path, 4096, 4096 + 56) for path in logs[-1:])
        self.told = f"{flipped} bits in {len(logs[-8:])} logs"
        if self.chance.random() < 0.5:  # and found by a start instead of a reader
            bookie.kill()


@dataclass(slots=True)
class RotInIndex(_OnBookie):
    def inject(self) -> None:
        self.kind = "bit flips in the index"
        self.seconds = 1.0
        bookie = self.take()
        self.damages = (bookie.name,)
        bookie.kill()
        suffixes = (".sst", ".log")
        tables = [path for folder in bookie.directories for path in folder.rglob("index/*")]
        tables = [path for path in tables if path.suffix in suffixes]
        flipped = sum(flip(self, path, 0, None) for path in tables for _ in range(2))
        self.told = f"{flipped} bits in {len(tables)} files"


@dataclass(slots=True)
class RotInJournal(_OnBookie):
    def inject(self) -> None:
        self.kind = "bit flips in the journal"
        self.seconds = 1.0
        bookie = self.take()
        self.damages = (bookie.name,)
        bookie.kill()
        blocks = newest_blocks(bookie)
        if len(blocks) < 2:
            self.told = "it had no block to lose"
            return
        path, first, end = self.chance.choice(blocks[:-1])
        flip(self, path, first, end)
        self.told = f"one bit of block {blocks.index((path, first, end)) + 1} of {len(blocks)}"


@dataclass(slots=True)
class WipeAll(_OnBookie):
    def inject(self) -> None:
        self.kind = "wiped directories"
        self.seconds = 1.0
        bookie = self.take()
        self.damages = (bookie.name,)
        bookie.kill()
        wipe(bookie)
        if self.chance.random() < 0.5:  # else it is back before anybody has missed it
            if bookie.begin(dataIntegrityChecking="false"):
                raise RuntimeError(f"{bookie.name} started on empty disks as if new")
            self.told = "refused without the integrity check;"


@dataclass(slots=True)
class WipeJournal(_OnBookie):
    """Only the journal, after a crash: what was acknowledged may have been there alone."""

    def inject(self) -> None:
        self.kind = "wiped journal"
        self.seconds = 1.0
        bookie = self.take()
        self.damages = (bookie.name,)
        bookie.kill()
        shutil.rmtree(bookie.journal)
        if bookie.begin(dataIntegrityChecking="false"):
            raise RuntimeError(f"{bookie.name} started without its journal")


@dataclass(slots=True)
class SwapDirectories(_OnBookie):
    """Disks of two bookies in each other's place; both must refuse, and nothing is lost."""

    other: Bookie | None = None

    def inject(self) -> None:
        self.kind = "swapped directories"
        self.seconds = 1.0
        one, other = self.chance.sample(self.cluster.bookies, 2)
        self.bookie, self.other = one, other
        self.targets = (one.name, other.name)
        for bookie in (one, other):
            bookie.kill()
        exchange(one.directories[0], other.directories[0])
        for bookie in (one, other):
            if bookie.begin():
                raise RuntimeError(f"{bookie.name} started on the disk of another bookie")
        self.told = "both refused to start"

    def lift(self) -> None:
        assert self.bookie is not None
        assert self.other is not None
        exchange(self.bookie.directories[0], self.other.directories[0])
        for bookie in (self.bookie, self.other):
            words = bring_up(bookie)
            if words:
                raise RuntimeError(f"{bookie.name} is not itself after a swap: {words}")


# ---------------------------------------------------------------------- on files at rest


def flip(fault: Fault, path: Path, first: int, end: int | None) -> int:
    """Turn one bit between two offsets; how many were turned."""
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        size = size if end is None else min(size, end)
        if size <= first:
            return 0
        offset = fault.chance.randrange(first, size)
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ (1 << fault.chance.randrange(8))]))
    return 1


def newest_blocks(bookie: Bookie) -> list[tuple[Path, int, int]]:
    """File, start and end of the journal's last blocks, in the order of writing."""
    files = OSFileSystem()
    found = []
    for _, path in journal_files(files, str(bookie.journal / "current"))[-2:]:
        try:
            for block in inspect_blocks(files, path):
                start = block.position.offset
                found.append((Path(path), start, start + len(block.payload)))
        except LedgerError:
            continue  # a file that was being made ready
    return found


def exchange(one: Path, other: Path) -> None:
    """Between two file systems, too."""
    aside = one.with_name(one.name + ".aside")
    shutil.move(one, aside)
    shutil.move(other, one)
    shutil.move(aside, other)
