"""What memory files and directories hold, and which of it a power loss could leave behind.

A file has two contents: `visible`, what the operating system shows, and `stored`, what the
device surely has. Between them stand the changes not yet synced, in order. A power loss may
keep, drop or tear each of them by itself, because the kernel writes pages back as it likes.

The model is that of a journaling file system, a little harsher where POSIX allows it:

- a torn write leaves any subset of its 512-byte sectors, and the new file size with or without
  the bytes (zeros where they are missing); one sector is never torn;
- a sync that failed writes nothing later: the kernel takes the pages for clean. They stay
  visible, no further sync saves them, and a power loss may keep or drop them;
- names of one directory change in order: a power loss keeps a prefix of the unsynced changes
  of each directory. A rename is one change, also between two directories, so a file whose
  name was durable is found under the old name or the new one, never under none or both;
- syncing a file does not save its name (ext4 happens to, POSIX does not promise it).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

SECTOR_BYTES: Final = 512

#: A write at an offset, or (with None) a new size of the file.
Change = tuple[int, bytes | None]

_NO_END: Final = 2**63


class Keep(Enum):
    """What a crash keeps of the changes that nobody synced."""

    ALL = "all"  # the process was killed; the operating system still has them
    SOME = "some"  # power loss: chance decides about each of them
    NONE = "none"  # power loss: not one of them


@dataclass(slots=True, eq=False)
class Disk:
    """The room that the files below one directory share."""

    capacity_bytes: int
    used_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)


@dataclass(slots=True, eq=False)
class FileNode:
    disk: Disk
    visible: bytearray = field(default_factory=bytearray)
    stored: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)
    abandoned: list[Change] = field(default_factory=list)  # unsynced when a sync failed
    open_count: int = 0
    linked: bool = True
    locked: bool = False

    def change(self, change: Change) -> None:
        """Make one change visible; it is not durable yet."""
        _apply(self.visible, change)
        self.unsynced.append(change)

    def write_through(self, offset: int, data: bytes) -> None:
        """Write, durable at once: the device gets these bytes and the size of the file.

        Earlier unsynced writes stay unsynced, except that they cannot come back over these bytes.
        """
        self._store_sizes()
        for content in (self.visible, self.stored):
            _apply(content, (offset, data))
        self._forget(offset, offset + len(data))

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.stored, change)
            if self.abandoned:
                start, data = change
                end = _NO_END if data is None else start + len(data)
                self.abandoned = _without(self.abandoned, start, end)
        self.unsynced.clear()

    def fail_sync(self) -> None:
        self.abandoned += self.unsynced
        self.unsynced.clear()

    def flip(self, offset: int, mask: int) -> None:
        """Damage one byte, on the device and in what is visible of it."""
        self.visible[offset] ^= mask
        if offset < len(self.stored):
            self.stored[offset] ^= mask

    def after_crash(self, rng: random.Random, keep: Keep, leaning: float) -> bytearray:
        """The content after a crash. `leaning` is the share of changes that tends to survive."""
        if keep is Keep.ALL:
            return bytearray(self.visible)
        content = bytearray(self.stored)
        if keep is Keep.SOME:
            for change in (*self.abandoned, *self.unsynced):
                if rng.random() < leaning:
                    _apply(content, change)
                elif rng.random() < 0.5:
                    _tear(content, change, rng)
        return content

    def _store_sizes(self) -> None:
        """Make the unsynced changes of size durable: size belongs to the inode, not to a write."""
        writes: list[Change] = []
        for change in self.unsynced:
            if change[1] is None:
                _apply(self.stored, change)
                writes = _without(writes, change[0], _NO_END)
            else:
                writes.append(change)
        self.unsynced = writes

    def _forget(self, start: int, end: int) -> None:
        self.unsynced = _without(self.unsynced, start, end)
        self.abandoned = _without(self.abandoned, start, end)


@dataclass(slots=True, eq=False)
class DirectoryNode:
    disk: Disk
    visible: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    stored: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NameChange:
    """One atomic change of names. None takes the name away."""

    edits: tuple[tuple[DirectoryNode, str, FileNode | DirectoryNode | None], ...]

    def touches(self, directories: list[DirectoryNode]) -> bool:
        return any(edit[0] in directories for edit in self.edits)

    def directory_keys(self) -> set[int]:
        return {id(edit[0]) for edit in self.edits}

    def apply_visible(self) -> None:
        for directory, name, node in self.edits:
            _name(directory.visible, name, node)

    def apply_stored(self) -> None:
        for directory, name, node in self.edits:
            _name(directory.stored, name, node)


def sync_names(unsynced: list[NameChange], directory: DirectoryNode) -> list[NameChange]:
    """Make the changes of one directory durable; those that remain unsynced.

    A rename from another directory takes along what happened in that directory before it:
    names of a directory change in order.
    """
    reached = [directory]
    durable: list[NameChange] = []
    remaining: list[NameChange] = []
    for change in reversed(unsynced):
        if change.touches(reached):
            reached += [edit[0] for edit in change.edits]
            durable.append(change)
        else:
            remaining.append(change)
    for change in reversed(durable):
        change.apply_stored()
    return remaining[::-1]


def let_go_of_all(root: DirectoryNode) -> None:
    """The process that had files open and locked is gone; files without a name go with it."""
    used: dict[Disk, int] = {}

    def visit(directory: DirectoryNode) -> None:
        used.setdefault(directory.disk, 0)
        for node in directory.visible.values():
            if isinstance(node, DirectoryNode):
                visit(node)
            else:
                node.open_count = 0
                node.locked = False
                used[node.disk] += len(node.visible)

    visit(root)
    for disk, size in used.items():
        disk.used_bytes = size


def tree_after_crash(
    root: DirectoryNode, unsynced: list[NameChange], rng: random.Random, keep: Keep
) -> DirectoryNode:
    """A copy of the tree as a crash would leave it. The tree itself stays as it is."""
    names = _Names()
    if keep is Keep.SOME:
        _keep_prefixes(names, unsynced, rng)
    leaning = rng.choice((0.1, 0.5, 0.9)) if keep is Keep.SOME else 0.0
    disks: dict[int, Disk] = {}

    def copy(directory: DirectoryNode) -> DirectoryNode:
        disk = directory.disk
        new = DirectoryNode(disks.setdefault(id(disk), Disk(disk.capacity_bytes)))
        entries = directory.visible if keep is Keep.ALL else names.of(directory)
        for name, node in sorted(entries.items()):
            if isinstance(node, DirectoryNode):
                new.visible[name] = new.stored[name] = copy(node)
            else:
                content = node.after_crash(rng, keep, leaning)
                new.disk.used_bytes += len(content)
                new.visible[name] = new.stored[name] = FileNode(
                    new.disk, visible=content, stored=bytearray(content)
                )
        return new

    return copy(root)


class _Names:
    """The names of directories as a crash leaves them, kept apart from the living tree."""

    def __init__(self) -> None:
        self._changed: dict[int, dict[str, FileNode | DirectoryNode]] = {}

    def of(self, directory: DirectoryNode) -> dict[str, FileNode | DirectoryNode]:
        return self._changed.get(id(directory), directory.stored)

    def apply(self, change: NameChange) -> None:
        for directory, name, node in change.edits:
            entries = self._changed.setdefault(id(directory), dict(directory.stored))
            _name(entries, name, node)


def _keep_prefixes(names: _Names, unsynced: list[NameChange], rng: random.Random) -> None:
    """Keep a random number of changes from the front of each directory's unsynced ones."""
    counts: dict[int, int] = {}
    for change in unsynced:
        for key in change.directory_keys():
            counts[key] = counts.get(key, 0) + 1
    left = {key: rng.randint(0, count) for key, count in counts.items()}
    for change in unsynced:
        keys = change.directory_keys()
        if all(left[key] for key in keys):
            names.apply(change)
            for key in keys:
                left[key] -= 1
        else:  # the other directory of a rename stops here too
            for key in keys:
                left[key] = 0


def _name(
    entries: dict[str, FileNode | DirectoryNode], name: str, node: FileNode | DirectoryNode | None
) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _apply(content: bytearray, change: Change) -> None:
    offset, data = change
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _tear(content: bytearray, change: Change, rng: random.Random) -> None:
    offset, data = change
    if data is None:
        return  # a size is one field of the inode: there or not
    end = offset + len(data)
    if rng.random() < 0.5 and end > len(content):
        content.extend(bytes(end - len(content)))
    first = offset // SECTOR_BYTES
    count = -(-end // SECTOR_BYTES) - first
    # Half of the tears are a cut, as of a write that was under way; half are any subset.
    mask = (1 << rng.randint(0, count)) - 1 if rng.random() < 0.5 else rng.getrandbits(count)
    for sector in range(count):
        if mask >> sector & 1:
            start = max(offset, (first + sector) * SECTOR_BYTES)
            stop = min(end, (first + sector + 1) * SECTOR_BYTES)
            _apply(content, (start, data[start - offset : stop - offset]))


def _without(changes: list[Change], start: int, end: int) -> list[Change]:
    """The changes, less what they write between `start` and `end`."""
    kept: list[Change] = []
    for change in changes:
        offset, data = change
        if data is None or offset >= end or offset + len(data) <= start:
            kept.append(change)
            continue
        if offset < start:
            kept.append((offset, data[: start - offset]))
        if offset + len(data) > end:
            kept.append((end, data[end - offset :]))
    return kept
