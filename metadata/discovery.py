"""Finding bookies: the two lists of live ones, and where each can be reached.

A `BookieWatcher` follows both lists and the payload of every node in them, and shows them as one
immutable snapshot. It outlives lost sessions and absent stores: the last snapshot stays up, since
bookies do not vanish because we cannot ask about them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import trio

from metadata.latest import Latest
from metadata.model import InvalidMetadataError, check_bookie_id
from metadata.paths import ClusterPaths
from metadata.service_info import BookieServiceInfo, Endpoint, decode_service_info
from metadata.store import (
    MetadataStore,
    Node,
    NoNodeError,
    Stat,
    StoreUnavailableError,
    Watch,
    WatchEvent,
)
from wire.errors import BookieUnavailableError
from wire.types import BookieId

_log = logging.getLogger(__name__)

#: After an error or a lost session, before asking again.
_PAUSE_SECONDS: Final = 0.2
#: A watch that the network swallowed is made up for by a read this often.
_RECHECK_SECONDS: Final = 60.0
_READONLY_NAME: Final = "readonly"


@dataclass(frozen=True, slots=True)
class Bookies:
    """The live bookies at one moment. In both lists for an instant is normal, while switching."""

    writable: frozenset[BookieId] = frozenset()
    read_only: frozenset[BookieId] = frozenset()
    #: Where they are. A bookie whose announcement is missing or unreadable is listed without.
    info: Mapping[BookieId, BookieServiceInfo] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def all(self) -> frozenset[BookieId]:
        return self.writable | self.read_only

    def endpoint(self, bookie_id: BookieId) -> Endpoint:
        """Where to connect. BookieUnavailableError says why that is not known."""
        found = self.info.get(bookie_id)
        if found is not None and found.rpc is not None:
            return found.rpc
        if bookie_id not in self.all:
            why = "it is not registered"
        elif found is None:
            why = "its registration could not be read"
        else:
            why = "it announces no bookie-rpc endpoint"
        raise BookieUnavailableError(f"bookie {bookie_id} cannot be reached: {why}")


@dataclass(slots=True)
class _List:
    """One of the two lists as last seen."""

    path: str
    is_mandatory: bool
    names: frozenset[BookieId] = frozenset()
    #: When the list was made and how often it changed since. A list that was removed and made
    #: again counts from zero; by the changes alone it would be ignored until they caught up.
    version: tuple[int, int] = (-1, -1)


class BookieWatcher:
    """Start it with `await nursery.start(watcher.run)`: it returns once the lists were read."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._paths = ClusterPaths(root)
        self._writable = _List(self._paths.available, is_mandatory=True)
        self._read_only = _List(self._paths.readonly, is_mandatory=False)
        self._info: dict[BookieId, BookieServiceInfo] = {}
        self._followed: set[BookieId] = set()
        self._latest = Latest(Bookies())
        self._nursery: trio.Nursery | None = None  # while it runs

    @property
    def bookies(self) -> Bookies:
        return self._latest.value

    async def wait_changed(self, seen: Bookies) -> Bookies:
        """The present snapshot, as soon as it is not `seen` any more."""
        return await self._latest.wait_other_than(seen)

    async def refresh(self) -> Bookies:
        """The bookies as of now: watches come late, and the server that we read from may lag.

        For decisions that cannot be taken back. StoreUnavailableError: that is not known now.
        """
        assert self._nursery is not None
        await self._store.sync(self._paths.available)
        # The writable ones once more: who has become one meanwhile was not in the first list, and
        # is in the other one no longer.
        for followed in (self._writable, self._read_only, self._writable):
            try:
                names, stat = await self._store.children(followed.path)
            except NoNodeError:
                if followed.is_mandatory:
                    raise
                continue
            taken = trio.Event()
            # Not as a part of the caller, who may be cancelled: whoever is new is followed.
            self._nursery.start_soon(self._take_and_tell, followed, names, stat, taken)
            await taken.wait()
        # Somebody else may have taken the same list, and still be asking where its bookies are.
        self._show()
        return self.bookies

    async def _take_and_tell(
        self, followed: _List, names: list[str], stat: Stat, taken: trio.Event
    ) -> None:
        assert self._nursery is not None
        await self._take_list(followed, names, stat, self._nursery)
        taken.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the lists until cancelled. Fails only at first, if there is no writable list."""
        await self._store.children(self._paths.available)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            # The read-only list may be missing, and nobody needs it to begin with.
            for followed in (self._writable, self._read_only):
                await nursery.start(self._follow_list, followed, nursery)
            task_status.started()

    # ------------------------------------------------------------------ lists

    async def _follow_list(
        self,
        followed: _List,
        nursery: trio.Nursery,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        while True:
            try:
                names, stat, watch = await self._list(followed)
                await self._take_list(followed, names, stat, nursery)
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                if await self._wait_list(followed, watch, nursery) is not WatchEvent.SESSION_LOST:
                    continue
            except (StoreUnavailableError, NoNodeError) as error:
                _log.info("cannot list %s at present: %s", followed.path, error)
                if not followed.is_mandatory:
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(_PAUSE_SECONDS)

    async def _list(self, followed: _List) -> tuple[list[str], Stat | None, Watch]:
        """The names and a watch on them. A list that may be missing is empty until it is made."""
        while True:
            try:
                return await self._store.children_and_watch(followed.path)
            except NoNodeError:
                if followed.is_mandatory:
                    raise
            stat, watch = await self._store.exists_and_watch(followed.path)
            if stat is None:
                return [], None, watch

    async def _wait_list(self, followed: _List, watch: Watch, nursery: trio.Nursery) -> WatchEvent:
        while True:
            with trio.move_on_after(_RECHECK_SECONDS):
                return await watch.wait()
            names, stat = await self._store.children(followed.path)
            await self._take_list(followed, names, stat, nursery)

    async def _take_list(
        self, followed: _List, names: list[str], stat: Stat | None, nursery: trio.Nursery
    ) -> None:
        """Deliver a list, unless it is older than the one we have."""
        if stat is not None:
            version = (stat.created_ms, stat.children_version)
            if version <= followed.version:
                return
            followed.version = version
        followed.names = frozenset(
            BookieId(name) for name in names if name != _READONLY_NAME and _is_bookie(name)
        )
        # A list is shown together with where its bookies are, as far as that can be found out.
        async with trio.open_nursery() as readers:
            for bookie_id in sorted(followed.names - self._followed):
                self._followed.add(bookie_id)
                readers.start_soon(nursery.start, self._follow_info, bookie_id)
        self._show()

    def _show(self) -> None:
        listed = self._writable.names | self._read_only.names
        info = {bookie: self._info[bookie] for bookie in listed if bookie in self._info}
        snapshot = Bookies(self._writable.names, self._read_only.names, MappingProxyType(info))
        if snapshot != self.bookies:
            self._latest.put(snapshot)

    # ------------------------------------------------------------------ where they are

    async def _follow_info(
        self, bookie_id: BookieId, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep one bookie's announcement up to date, for as long as it is in a list."""
        while True:
            event: WatchEvent | None = None
            try:
                path, node, watch = await self._read_info(bookie_id)
                self._take_info(bookie_id, node)
                self._started(task_status)
                task_status = trio.TASK_STATUS_IGNORED
                event = await self._wait_info(path, node, watch)
            except NoNodeError:
                self._info.pop(bookie_id, None)
                if not self._is_listed(bookie_id):
                    break
            except StoreUnavailableError as error:
                _log.info("cannot read where bookie %s is at present: %s", bookie_id, error)
            self._started(task_status)
            task_status = trio.TASK_STATUS_IGNORED
            if event is None or event is WatchEvent.SESSION_LOST:
                await trio.sleep(_PAUSE_SECONDS)
        # No await between the last look at the lists and this: whoever lists it again starts anew.
        self._followed.discard(bookie_id)
        self._started(task_status)

    def _started(self, task_status: trio.TaskStatus[None]) -> None:
        """After the first look the list that waits for it shows all; later ones show themselves."""
        if task_status is trio.TASK_STATUS_IGNORED:
            self._show()
        task_status.started()

    async def _read_info(self, bookie_id: BookieId) -> tuple[str, Node, Watch]:
        path = self._paths.registration(bookie_id)
        try:
            return path, *await self._store.get_and_watch(path)
        except NoNodeError:
            path = self._paths.registration(bookie_id, readonly=True)
            return path, *await self._store.get_and_watch(path)

    async def _wait_info(self, path: str, node: Node, watch: Watch) -> WatchEvent:
        while True:
            with trio.move_on_after(_RECHECK_SECONDS):
                return await watch.wait()
            if await self._store.get(path) != node:
                return WatchEvent.DATA_CHANGED

    def _take_info(self, bookie_id: BookieId, node: Node) -> None:
        try:
            self._info[bookie_id] = decode_service_info(node.data, bookie_id)
        except InvalidMetadataError as error:
            _log.warning("%s", error)
            self._info.pop(bookie_id, None)

    def _is_listed(self, bookie_id: BookieId) -> bool:
        return bookie_id in self._writable.names or bookie_id in self._read_only.names


async def read_bookies(store: MetadataStore, root: str) -> Bookies:
    """The live bookies now, for whoever asks once."""
    paths = ClusterPaths(root)
    writable, _ = await store.children(paths.available)
    try:
        read_only, _ = await store.children(paths.readonly)
    except NoNodeError:
        read_only = []
    lists = [
        frozenset(BookieId(name) for name in names if name != _READONLY_NAME and _is_bookie(name))
        for names in (writable, read_only)
    ]
    info: dict[BookieId, BookieServiceInfo] = {}
    for bookie_id in sorted(lists[0] | lists[1]):
        path = paths.registration(bookie_id, readonly=bookie_id not in lists[0])
        try:
            info[bookie_id] = decode_service_info((await store.get(path)).data, bookie_id)
        except NoNodeError:
            continue
        except InvalidMetadataError as error:
            _log.warning("%s", error)
    return Bookies(lists[0], lists[1], MappingProxyType(info))


def _is_bookie(name: str) -> bool:
    try:
        check_bookie_id(name)
    except InvalidMetadataError as error:
        _log.warning("ignoring a registration: %s", error)
        return False
    return True
