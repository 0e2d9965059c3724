"""ZooKeeper's data model without the server: znodes, versions, counters, and what changed.

Synchronous and pure. Whoever applies a change collects `take_events()` afterwards and fires
watches from it. Errors come in ZooKeeper's order: a missing node, then the version, then children.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from metadata.store import (
    ANY_VERSION,
    BadVersionError,
    Change,
    Check,
    Create,
    Delete,
    EphemeralParentError,
    InvalidPathError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionId,
    SetData,
    Stat,
    WatchEvent,
)
from metadata.znodes import parent_of


@dataclass(slots=True)
class Znode:
    data: bytes
    owner: SessionId | None
    open_acl: bool
    created_ms: int
    modified_ms: int
    version: int = 0
    creations: int = 0  # children ever created below it: the next sequence number
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        return Stat(
            version=self.version,
            # ZooKeeper counts creations and reports creations plus deletions.
            children_version=2 * self.creations - len(self.children),
            children_count=len(self.children),
            owner=self.owner,
            created_ms=self.created_ms,
            modified_ms=self.modified_ms,
        )


@dataclass(frozen=True, slots=True)
class TreeEvent:
    path: str
    event: WatchEvent


class Tree:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._znodes = {"/": Znode(b"", None, True, now_ms(), now_ms())}
        self._events: list[TreeEvent] = []

    def copy(self) -> Tree:
        """As it is now, for a reader that lags behind."""
        assert not self._events
        return copy.deepcopy(self, {id(self._now_ms): self._now_ms})

    def take_events(self) -> list[TreeEvent]:
        events, self._events = self._events, []
        return events

    def find(self, path: str) -> Znode | None:
        return self._znodes.get(path)

    def get(self, path: str) -> Znode:
        znode = self._znodes.get(path)
        if znode is None:
            raise NoNodeError(f"{path} does not exist")
        return znode

    def owned_by(self, session: SessionId) -> list[str]:
        return sorted(path for path, znode in self._znodes.items() if znode.owner == session)

    def create(
        self,
        path: str,
        data: bytes,
        *,
        owner: SessionId | None = None,
        sequential: bool = False,
        open_acl: bool = False,
    ) -> str:
        if path == "/":
            raise NodeExistsError("/ exists already")
        parent_path = parent_of(path)
        parent = self._znodes.get(parent_path)
        if parent is None:
            raise NoNodeError(f"{path} cannot be created: {parent_path} does not exist")
        if sequential:
            path += f"{parent.creations:010d}"
        if path in self._znodes:
            raise NodeExistsError(f"{path} exists already")
        if parent.owner is not None:
            raise EphemeralParentError(f"{path} cannot be created: {parent_path} is ephemeral")
        now = self._now_ms()
        self._znodes[path] = Znode(data, owner, open_acl, now, now)
        parent.children.add(path.rpartition("/")[2])
        parent.creations = _as_int32(parent.creations + 1)
        self._events += [
            TreeEvent(path, WatchEvent.CREATED),
            TreeEvent(parent_path, WatchEvent.CHILDREN_CHANGED),
        ]
        return path

    def set(self, path: str, data: bytes, version: int) -> Stat:
        znode = self.get(path)
        _check_version(path, znode, version)
        znode.data = data
        znode.version = _as_int32(znode.version + 1)
        znode.modified_ms = self._now_ms()
        self._events.append(TreeEvent(path, WatchEvent.DATA_CHANGED))
        return znode.stat()

    def delete(self, path: str, version: int) -> None:
        if path == "/":
            raise InvalidPathError("/ cannot be deleted")
        znode = self.get(path)
        _check_version(path, znode, version)
        if znode.children:
            raise NotEmptyError(f"{path} still has {len(znode.children)} children")
        del self._znodes[path]
        parent_path = parent_of(path)
        self._znodes[parent_path].children.remove(path.rpartition("/")[2])
        self._events += [
            TreeEvent(path, WatchEvent.DELETED),
            TreeEvent(parent_path, WatchEvent.CHILDREN_CHANGED),
        ]

    def check(self, path: str, version: int) -> None:
        _check_version(path, self.get(path), version)

    def transact(self, changes: Sequence[Change], owner: SessionId | None = None) -> None:
        """All or nothing: the first change that cannot be made undoes those before it."""
        before: dict[str, Znode | None] = {}
        events = len(self._events)
        try:
            for change in changes:
                for path in (change.path, parent_of(change.path)):
                    before.setdefault(path, copy.deepcopy(self._znodes.get(path)))
                self._apply(change, owner)
        except MetadataError:
            for path, znode in before.items():
                if znode is None:
                    self._znodes.pop(path, None)
                else:
                    self._znodes[path] = znode
            del self._events[events:]
            raise

    def _apply(self, change: Change, owner: SessionId | None) -> None:
        match change:
            case Create(path, data, is_ephemeral):
                self.create(path, data, owner=owner if is_ephemeral else None)
            case SetData(path, data, version):
                self.set(path, data, version)
            case Delete(path, version):
                self.delete(path, version)
            case Check(path, version):
                self.check(path, version)


def _check_version(path: str, znode: Znode, version: int) -> None:
    if version not in (ANY_VERSION, znode.version):
        raise BadVersionError(f"{path} has version {znode.version}, not {version}")


def _as_int32(value: int) -> int:
    """Counters are Java ints: they wrap, and whoever draws ids from them has to notice."""
    return (value + 2**31) % 2**32 - 2**31
