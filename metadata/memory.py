"""A metadata store of memory: what tests and the simulator run on. Passes ZooKeeper's suite.

`MemoryMetadata` is the server. Each `connect()` gives a `MemoryStore`, which is to the tree what a
process with its own session is to ZooKeeper. Nothing runs in the background: the same calls in the
same order give the same answers, with any clock.

A request takes one checkpoint and is applied after it, so a cancelled request was not applied;
requests of different tasks may overtake each other. Everything worse (requests that are applied
although nobody hears of it, sessions that end, watches that come late) is asked for by name, by a
hook per request (`metadata/faults.py`) or on the store itself:

    metadata = MemoryMetadata()
    script = Script()
    store = metadata.connect(script)
    script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="set")     # applied, ConnectionLostError
    script.add(metadata.conflict("/a"), verb="set", path="/a")     # BadVersionError
    store.lag()                                                    # stale reads until sync
    metadata.expire(store.session)                                 # ephemeral nodes go
    metadata.available = False                                     # StoreUnavailableError
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from metadata.faults import Fault, FaultHook, Outcome, Request, Verb
from metadata.memory_tree import Tree, TreeEvent, Znode
from metadata.memory_watch import MemoryWatch
from metadata.store import (
    ANY_VERSION,
    Change,
    ConnectionLostError,
    Node,
    NoNodeError,
    SessionExpiredError,
    SessionId,
    Stat,
    StoreClosedError,
    StoreUnavailableError,
    Watch,
    WatchEvent,
)
from metadata.znodes import check_change, check_data, check_path, create_with_parents

T = TypeVar("T")

_FINE = Fault()
_FIRST_SESSION = 0x1000_0000_0000_0000


class MemoryMetadata:
    """The tree and its sessions; may be shared by any number of stores."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        """Without `now_ms` each change is stamped one millisecond after the one before it."""
        self.tree = Tree(now_ms if now_ms is not None else itertools.count(1).__next__)
        self.available = True
        self._sessions: dict[SessionId, MemoryStore] = {}
        self._session_ids = itertools.count(_FIRST_SESSION)

    def connect(self, faults: FaultHook | None = None) -> MemoryStore:
        """A new connection, as of another process, with a session of its own."""
        store = MemoryStore(self, faults)
        store.open_session()
        return store

    def expire(self, session: SessionId, *, silently: bool = False) -> None:
        """End a session and its ephemeral nodes.

        Its store is told at once, or `silently` not before its next request: until then it
        believes to hold what others already see gone.
        """
        store = self._sessions.pop(session, None)
        if store is None:
            return
        for path in self.tree.owned_by(session):
            self.tree.delete(path, ANY_VERSION)
        self.publish()
        if not silently:
            store.lose_session(session)

    def conflict(self, path: str, data: bytes | None = None) -> Fault:
        """Somebody else writes to `path` just before: `data`, or again what is there."""

        def write() -> None:
            znode = self.tree.get(path)
            self.tree.set(path, znode.data if data is None else data, ANY_VERSION)
            self.publish()

        return Fault(meanwhile=write)

    def set_child_counter(self, path: str, creations: int) -> None:
        """Let the next sequential child of `path` get this number."""
        self.tree.get(path).creations = creations

    # For stores only.

    def open_session(self, store: MemoryStore) -> SessionId:
        session = SessionId(next(self._session_ids))
        self._sessions[session] = store
        return session

    def is_live(self, session: SessionId) -> bool:
        return session in self._sessions

    def publish(self) -> None:
        """Tell every connection what changed."""
        events = self.tree.take_events()
        for store in list(self._sessions.values()):
            store.deliver(events)


class MemoryStore:
    """One connection to the tree. See `metadata/store.py` for what its methods promise."""

    def __init__(self, metadata: MemoryMetadata, faults: FaultHook | None = None) -> None:
        self._metadata = metadata
        self._faults = faults
        self._session: SessionId | None = None
        self._session_lost = trio.Event()
        self._closed = False
        self._watches: dict[str, list[MemoryWatch]] = {}
        self._late_watches: list[MemoryWatch] = []
        self._stale_view: Tree | None = None
        self._withheld: list[TreeEvent] | None = None

    # Misbehaviour that lasts.

    def lag(self) -> None:
        """Read from a follower that has stopped following: until `sync`, a write, or `catch_up`.

        Its watches wait with it, as a follower fires them when it applies a change.
        """
        if self._stale_view is None:
            self._stale_view = self._metadata.tree.copy()
            self.hold_watches()

    def catch_up(self) -> None:
        if self._stale_view is not None:
            self._stale_view = None
            self.release_watches()

    def hold_watches(self) -> None:
        """No watch fires until `release_watches`, or until the session is lost."""
        if self._withheld is None:
            self._withheld = []

    def release_watches(self) -> None:
        withheld, self._withheld = self._withheld, None
        self.deliver(withheld or [])

    # The session.

    @property
    def session(self) -> SessionId | None:
        return self._session

    def open_session(self) -> SessionId:
        if self._session is None:
            self._session = self._metadata.open_session(self)
            self._session_lost = trio.Event()
        return self._session

    def lose_session(self, session: SessionId) -> None:
        """Called when this store learns that its session is over."""
        if session != self._session:
            return
        self._session = None
        self._session_lost.set()
        self._stale_view = self._withheld = None
        watches = [*self._late_watches, *itertools.chain.from_iterable(self._watches.values())]
        self._late_watches, self._watches = [], {}
        for watch in watches:
            watch.lose()

    async def require_session(self) -> SessionId:
        return await self._request(Request("open", "/"), self.open_session)

    async def wait_session_lost(self, session: SessionId) -> None:
        if session != self._session:
            await trio.lowlevel.checkpoint()
        else:
            await self._session_lost.wait()

    @property
    def ticket(self) -> str | None:
        return None if self._session is None else f"{self._session:x}"

    async def end_session(self, ticket: str) -> bool:
        session = SessionId(int(ticket, 16))

        def end() -> bool:
            was_live = self._metadata.is_live(session)
            self._metadata.expire(session)
            return was_live

        return await self._request(Request("end", "/"), end)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._session is not None:
                self._metadata.expire(self._session)
                # Expired already, silently: nobody else will tell our own waiters.
                if self._session is not None:
                    self.lose_session(self._session)
        await trio.lowlevel.checkpoint()

    # Reading.

    async def get(self, path: str) -> Node:
        return await self._read("get", path, lambda tree: _node(tree.get(path)))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        found: list[Node | None] = []
        for path in paths:
            try:
                found.append(await self.get(path))
            except NoNodeError:
                found.append(None)
        return found

    async def get_and_watch(self, path: str) -> tuple[Node, Watch]:
        return await self._read_and_watch(
            "get", path, _DATA_EVENTS, lambda tree: _node(tree.get(path))
        )

    async def exists(self, path: str) -> Stat | None:
        return await self._read("exists", path, lambda tree: _stat(tree.find(path)))

    async def exists_and_watch(self, path: str) -> tuple[Stat | None, Watch]:
        return await self._read_and_watch(
            "exists", path, _DATA_EVENTS, lambda tree: _stat(tree.find(path))
        )

    async def children(self, path: str) -> tuple[list[str], Stat]:
        return await self._read("children", path, lambda tree: _children(tree.get(path)))

    async def children_and_watch(self, path: str) -> tuple[list[str], Stat, Watch]:
        (names, stat), watch = await self._read_and_watch(
            "children", path, _CHILD_EVENTS, lambda tree: _children(tree.get(path))
        )
        return names, stat, watch

    async def sync(self, path: str) -> None:
        check_path(path)
        await self._request(Request("sync", path), self.catch_up)

    async def _read(self, verb: Verb, path: str, look: Callable[[Tree], T]) -> T:
        check_path(path)
        return await self._request(Request(verb, path), lambda: look(self._view))

    async def _read_and_watch(
        self, verb: Verb, path: str, events: frozenset[WatchEvent], look: Callable[[Tree], T]
    ) -> tuple[T, Watch]:
        check_path(path)
        watch = MemoryWatch(events)

        def look_and_watch() -> T:
            found = look(self._view)  # what does not exist is not watched, but for `exists`
            self._watches.setdefault(path, []).append(watch)
            return found

        request = Request(verb, path, watched=True)
        return await self._request(request, look_and_watch, watch=watch), watch

    @property
    def _view(self) -> Tree:
        return self._metadata.tree if self._stale_view is None else self._stale_view

    # Writing.

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
        open_acl: bool = False,
        session: SessionId | None = None,
    ) -> str:
        check_path(path)
        check_data(path, data)

        async def create_one() -> str:
            def apply(tree: Tree) -> str:
                owner = self._session if ephemeral else None
                return tree.create(
                    path, data, owner=owner, sequential=sequential, open_acl=open_acl
                )

            return await self._write("create", path, apply, session)

        async def create_parent(parent: str) -> str:
            def apply(tree: Tree) -> str:
                return tree.create(parent, b"", open_acl=open_acl)

            return await self._write("create", parent, apply, session)

        if not parents:
            return await create_one()
        return await create_with_parents(path, create_one, create_parent)

    async def set(
        self, path: str, data: bytes, *, version: int, session: SessionId | None = None
    ) -> Stat:
        check_path(path)
        check_data(path, data)
        return await self._write("set", path, lambda tree: tree.set(path, data, version), session)

    async def delete(self, path: str, *, version: int, session: SessionId | None = None) -> None:
        check_path(path)
        await self._write("delete", path, lambda tree: tree.delete(path, version), session)

    async def transact(
        self, changes: Sequence[Change], *, session: SessionId | None = None
    ) -> None:
        changes = tuple(changes)
        for change in changes:
            check_change(change)
        path = changes[0].path if changes else "/"
        await self._write(
            "transact", path, lambda tree: tree.transact(changes, self._session), session
        )

    async def _write(
        self, verb: Verb, path: str, apply: Callable[[Tree], T], session: SessionId | None
    ) -> T:
        def apply_and_publish() -> T:
            self.catch_up()  # a follower answers its client's write only once it has applied it
            result = apply(self._metadata.tree)
            self._metadata.publish()
            return result

        return await self._request(Request(verb, path), apply_and_publish, session)

    # The one way in.

    async def _request(
        self,
        request: Request,
        apply: Callable[[], T],
        bound_to: SessionId | None = None,
        watch: MemoryWatch | None = None,
    ) -> T:
        self._refuse_if_closed()
        fault = (self._faults(request) if self._faults is not None else None) or _FINE
        await trio.sleep(fault.request_seconds)  # a checkpoint, also for zero seconds
        self._refuse_if_closed()
        if fault.outcome is Outcome.UNAVAILABLE or not self._metadata.available:
            raise StoreUnavailableError(
                f"{request.verb} {request.path}: no connection to the store"
            )
        if fault.outcome is Outcome.REQUEST_LOST:
            raise _lost(request)
        if fault.meanwhile is not None:
            fault.meanwhile()
        if fault.expires == "before" and self._session is not None:
            self._metadata.expire(self._session)
        self._bind(bound_to)
        if watch is not None:
            watch.late_seconds = fault.watch_seconds
        result = apply()
        if fault.expires == "after" and self._session is not None:
            self._metadata.expire(self._session)
            raise _lost(request)
        if fault.outcome is Outcome.ANSWER_LOST:
            raise _lost(request)
        if fault.answer_seconds > 0:
            await trio.sleep(fault.answer_seconds)
        return result

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosedError("the connection to the metadata store is closed")

    def _bind(self, session: SessionId | None) -> None:
        """Make sure that there is a session, and that it is the one asked for."""
        if self._session is not None and not self._metadata.is_live(self._session):
            self.lose_session(self._session)
        if session is not None and session != self._session:
            raise SessionExpiredError(f"session 0x{session:x} is over; nothing was done")
        self.open_session()

    def deliver(self, events: Sequence[TreeEvent]) -> None:
        """Fire the watches that these changes concern."""
        if self._withheld is not None:
            self._withheld += events
            return
        for event in events:
            watches = self._watches.pop(event.path, [])
            kept = [watch for watch in watches if not watch.is_about(event.event)]
            if kept:
                self._watches[event.path] = kept
            for watch in watches:
                if watch.is_about(event.event):
                    watch.fire(event.event)
                    if watch.event is None:
                        self._late_watches.append(watch)


def _lost(request: Request) -> StoreUnavailableError:
    if request.writes:
        return ConnectionLostError(f"{request.verb} {request.path}: connection lost, unknown end")
    return StoreUnavailableError(f"{request.verb} {request.path}: no answer from the store")


_DATA_EVENTS = frozenset({WatchEvent.CREATED, WatchEvent.DELETED, WatchEvent.DATA_CHANGED})
_CHILD_EVENTS = frozenset({WatchEvent.CHILDREN_CHANGED, WatchEvent.DELETED})


def _node(znode: Znode) -> Node:
    return Node(znode.data, znode.stat())


def _stat(znode: Znode | None) -> Stat | None:
    return None if znode is None else znode.stat()


def _children(znode: Znode) -> tuple[list[str], Stat]:
    return sorted(znode.children), znode.stat()
