"""Watches that outlive a broken connection, as those of ZooKeeper's own clients do.

kazoo forgets its watches when the connection breaks, although the session goes on. We remember
what each of ours had seen; once connected again we read once more, which sets the watch anew, and
compare: whatever changed in between fires now. Only the end of the session ends a watch.

Everything here runs in the event loop. Tables hold watches weakly: one that nobody waits for any
more is not set again. The server's side of it stays until it fires, so share a watch, do not
collect them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import trio

from metadata.store import SessionId, Stat, WatchEvent


class Seen(NamedTuple):
    """The transactions that created a node and last changed what is watched of it."""

    created: int
    changed: int


class WatchKind(Enum):
    DATA = "data"
    CHILDREN = "children"

    @property
    def change(self) -> WatchEvent:
        if self is WatchKind.DATA:
            return WatchEvent.DATA_CHANGED
        return WatchEvent.CHILDREN_CHANGED


class StoreWatch:
    """What the reader gets. `seen` is None where there was no node."""

    def __init__(self) -> None:
        self.seen: Seen | None = None
        self._event: WatchEvent | None = None
        self._fired = trio.Event()

    @property
    def event(self) -> WatchEvent | None:
        return self._event

    async def wait(self) -> WatchEvent:
        await self._fired.wait()
        assert self._event is not None
        return self._event

    def fire(self, event: WatchEvent) -> None:
        if self._event is None:
            self._event = event
            self._fired.set()


@dataclass(frozen=True, slots=True)
class Target:
    kind: WatchKind
    path: str


class WatchTable:
    """The watches of one session."""

    def __init__(self) -> None:
        self._watches: dict[Target, weakref.WeakSet[StoreWatch]] = {}

    def add(self, target: Target, watch: StoreWatch) -> None:
        self._watches.setdefault(target, weakref.WeakSet()).add(watch)

    def fire(self, target: Target, event: WatchEvent) -> None:
        """The server says that something happened: it has forgotten the watch."""
        for watch in self._watches.pop(target, ()):
            watch.fire(event)

    def fire_all(self, event: WatchEvent) -> None:
        for target in list(self._watches):
            self.fire(target, event)

    def wanted(self) -> Iterator[Target]:
        """The targets to watch again after a reconnect; forgets those nobody waits for."""
        for target in list(self._watches):
            if self._watches[target]:
                yield target
            else:
                del self._watches[target]

    def compare(self, target: Target, now: Seen | None) -> None:
        """The watch is set again; fire those of us that missed something in between."""
        watches = self._watches.get(target)
        if watches is None:
            return
        for watch in list(watches):
            event = _missed(target.kind, watch.seen, now)
            if event is not None:
                watches.discard(watch)
                watch.fire(event)


def _missed(kind: WatchKind, before: Seen | None, now: Seen | None) -> WatchEvent | None:
    if before == now:
        return None
    if before is None:
        return WatchEvent.CREATED
    if now is None or before.created != now.created:
        return WatchEvent.DELETED
    return kind.change


def stat_of(stat: Any) -> Stat:
    """A stat of kazoo's, in our words."""
    return Stat(
        version=stat.version,
        children_version=stat.cversion,
        children_count=stat.numChildren,
        owner=SessionId(stat.ephemeralOwner) if stat.ephemeralOwner else None,
        created_ms=stat.ctime,
        modified_ms=stat.mtime,
    )


def seen_of(kind: WatchKind, stat: Any) -> Seen | None:
    if stat is None:
        return None
    return Seen(stat.czxid, stat.mzxid if kind is WatchKind.DATA else stat.pzxid)
