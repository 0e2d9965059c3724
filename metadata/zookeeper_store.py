"""The metadata store on ZooKeeper: `metadata/store.py` kept by one session after another.

A request is sent only while connected, so "no connection in time" means that nothing was done.
After that, silence for the time allowed means an unknown outcome. Should kazoo still hold such a
request, it goes out before any later one of that session; so whoever reads again to find out what
became of it sees the truth.

A new session is opened by the first request that needs one: a store that nobody uses after an
expiry stays quiet.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self, TypeVar

import trio

from metadata.access import ANONYMOUS, ZookeeperAccess
from metadata.store import (
    Change,
    ConnectionLostError,
    Node,
    NotAuthorizedError,
    SessionExpiredError,
    SessionId,
    Stat,
    StoreClosedError,
    StoreUnavailableError,
    Watch,
)
from metadata.znodes import check_change, check_data, check_path, create_with_parents
from metadata.zookeeper import Connection, SessionState, ZookeeperSession
from metadata.zookeeper_ending import SessionTicket, end_session
from metadata.zookeeper_watches import StoreWatch
from runtime.inbox import Inbox
from runtime.tls import Certificates, client_context

T = TypeVar("T")
_Ask = Callable[[ZookeeperSession, float], Awaitable[T]]

_log = logging.getLogger(__name__)

SESSION_SECONDS: Final = 10.0  # BookKeeper's zkTimeout

#: Requests under way at a time; more wait their turn. Bounds memory, hardly throughput.
_REQUESTS_MAX: Final = 2000
#: How long a server may take to say goodbye before we hang up.
_CLOSE_SECONDS: Final = 3.0
#: How often certificates are looked at, when a connection is made.
_REFRESH_SECONDS: Final = 60.0


class ZookeeperStore:
    """A connection to ZooKeeper. Make it with `connect`, end it with `close`."""

    def __init__(self, connection: Connection, timeout_seconds: float | None = None) -> None:
        """To be made in the event loop; does not connect before it is used."""
        self._connection = connection
        self._timeout = connection.session_seconds if timeout_seconds is None else timeout_seconds
        self._inbox = Inbox()
        self._session: ZookeeperSession | None = None
        self._retiring: list[ZookeeperSession] = []
        self._changed = trio.Event()
        self._slots = trio.Semaphore(_REQUESTS_MAX)
        self._closed = False

    @classmethod
    async def connect(
        cls,
        servers: str,
        *,
        session_seconds: float = SESSION_SECONDS,
        timeout_seconds: float | None = None,
        access: ZookeeperAccess = ANONYMOUS,
    ) -> Self:
        """Connect to `host:port,host:port` and see that the server takes us.

        `timeout_seconds` bounds every operation, this one too; by default it is as long as the
        session.
        """
        certificates = None
        if access.tls is not None:
            certificates = Certificates(
                access.tls, client_context, refresh_seconds=_REFRESH_SECONDS
            )
        connection = Connection(servers, session_seconds, access, certificates)
        store = cls(connection, timeout_seconds)
        try:
            await store.exists("/")
        except BaseException:
            await store.close()
            raise
        return store

    # The session.

    @property
    def session(self) -> SessionId | None:
        return None if self._session is None else self._session.id

    async def require_session(self) -> SessionId:
        await trio.lowlevel.checkpoint()
        session = await self._usable("open session", None, self._deadline())
        assert session.id is not None
        return session.id

    async def wait_session_lost(self, session: SessionId) -> None:
        if self._session is None or self._session.id != session:
            await trio.lowlevel.checkpoint()
        else:
            await self._session.lost.wait()

    @property
    def ticket(self) -> str | None:
        ticket = None if self._session is None else self._session.ticket
        return None if ticket is None else ticket.encode()

    async def end_session(self, ticket: str) -> bool:
        found, ours = SessionTicket.decode(ticket), self._connection.certificates
        context = None if ours is None else ours.current()
        return await end_session(self._connection.servers, found, self._timeout, context)

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            self._retire(self._session)
        self._wake()
        # Also when cancelled: a session left behind would keep its ephemeral nodes.
        with trio.CancelScope(shield=True):
            for session in self._retiring:
                await _farewell(session)
        await trio.lowlevel.checkpoint()

    def _retire(self, session: ZookeeperSession) -> None:
        if session is self._session:
            self._session = None
        self._retiring = [old for old in self._retiring if not old.retire().is_set()]
        self._retiring.append(session)
        session.retire()

    def _on_change(self, session: ZookeeperSession) -> None:
        if session is self._session:
            _log_change(session, self._connection.servers)
            if session.lost.is_set():
                self._retire(session)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # Reading.

    async def get(self, path: str) -> Node:
        return await self._read("get", path, lambda session, by: session.get(path, None, by))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        if not paths:
            await trio.lowlevel.checkpoint()
            return []
        for path in paths:
            check_path(path)
        what = f"get of {len(paths)} nodes,"
        return await self._read(what, paths[0], lambda session, by: session.get_many(paths, by))

    async def get_and_watch(self, path: str) -> tuple[Node, Watch]:
        watch = StoreWatch()
        node = await self._read("get", path, lambda session, by: session.get(path, watch, by))
        return node, watch

    async def exists(self, path: str) -> Stat | None:
        return await self._read("exists", path, lambda session, by: session.exists(path, None, by))

    async def exists_and_watch(self, path: str) -> tuple[Stat | None, Watch]:
        watch = StoreWatch()
        stat = await self._read("exists", path, lambda session, by: session.exists(path, watch, by))
        return stat, watch

    async def children(self, path: str) -> tuple[list[str], Stat]:
        return await self._read(
            "children", path, lambda session, by: session.children(path, None, by)
        )

    async def children_and_watch(self, path: str) -> tuple[list[str], Stat, Watch]:
        watch = StoreWatch()
        names, stat = await self._read(
            "children", path, lambda session, by: session.children(path, watch, by)
        )
        return names, stat, watch

    async def sync(self, path: str) -> None:
        await self._read("sync", path, lambda session, by: session.sync(path, by))

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
            def ask(live: ZookeeperSession, by: float) -> Awaitable[str]:
                return live.create(
                    path, data, by, ephemeral=ephemeral, sequential=sequential, open_acl=open_acl
                )

            return await self._write(f"create {path}", ask, session)

        async def create_parent(parent: str) -> str:
            def ask(live: ZookeeperSession, by: float) -> Awaitable[str]:
                return live.create(parent, b"", by, open_acl=open_acl)

            return await self._write(f"create {parent}", ask, session)

        if not parents:
            return await create_one()
        return await create_with_parents(path, create_one, create_parent)

    async def set(
        self, path: str, data: bytes, *, version: int, session: SessionId | None = None
    ) -> Stat:
        check_path(path)
        check_data(path, data)
        return await self._write(
            f"set {path}", lambda live, by: live.set(path, data, version, by), session
        )

    async def delete(self, path: str, *, version: int, session: SessionId | None = None) -> None:
        check_path(path)
        await self._write(
            f"delete {path}", lambda live, by: live.delete(path, version, by), session
        )

    async def transact(
        self, changes: Sequence[Change], *, session: SessionId | None = None
    ) -> None:
        changes = tuple(changes)
        for change in changes:
            check_change(change)
        await self._write("transaction", lambda live, by: live.transact(changes, by), session)

    # The one way out.

    async def _read(self, verb: str, path: str, ask: _Ask[T]) -> T:
        """Repeated until answered: a read that got lost has done nothing."""
        check_path(path)
        what, deadline = f"{verb} {path}", self._deadline()
        while True:
            try:
                return await self._request(what, ask, None, deadline)
            except ConnectionLostError as error:
                if trio.current_time() >= deadline:
                    raise StoreUnavailableError(f"{what}: no answer in time") from error

    async def _write(self, what: str, ask: _Ask[T], bound: SessionId | None) -> T:
        return await self._request(what, ask, bound, self._deadline())

    async def _request(
        self, what: str, ask: _Ask[T], bound: SessionId | None, deadline: float
    ) -> T:
        await self._take_slot(what, deadline)
        try:
            while True:
                session = await self._usable(what, bound, deadline)
                try:
                    return await ask(session, deadline)
                except SessionExpiredError:
                    # It was not carried out, so without a bond the next session will do.
                    if bound is not None:
                        raise
        finally:
            self._slots.release()

    async def _take_slot(self, what: str, deadline: float) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()  # whoever was cancelled sends nothing
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_at(deadline) as waiting:
                await self._slots.acquire()
            if waiting.cancelled_caught:
                raise StoreUnavailableError(
                    f"{what}: {_REQUESTS_MAX} requests wait for ZooKeeper"
                ) from None

    async def _usable(
        self, what: str, bound: SessionId | None, deadline: float
    ) -> ZookeeperSession:
        """A session that is connected now, and is the one asked for."""
        while True:
            if self._closed:
                raise StoreClosedError(f"{what}: the connection to ZooKeeper was closed")
            if bound is not None and bound != self.session:
                raise SessionExpiredError(f"{what}: session 0x{bound:x} is over; nothing was done")
            if self._session is None:
                self._session = ZookeeperSession(self._connection, self._inbox, self._on_change)
            session = self._session
            if session.is_usable:
                return session
            with trio.move_on_at(deadline) as waiting:
                await self._changed.wait()
            if session.state is SessionState.REFUSED:
                raise NotAuthorizedError(
                    f"{what}: {self._connection.servers} refused the credentials for ZooKeeper"
                )
            if waiting.cancelled_caught:
                raise self._unreachable(what, session)

    def _unreachable(self, what: str, session: ZookeeperSession) -> StoreUnavailableError:
        if session.id is None and session is self._session:
            self._retire(session)  # it never was one; whoever comes next begins afresh
        return StoreUnavailableError(
            f"{what}: no connection to ZooKeeper at {self._connection.servers} within "
            f"{self._timeout:g} s ({session.trouble}): check that it runs and the address is right"
        )

    def _deadline(self) -> float:
        return trio.current_time() + self._timeout


async def _farewell(session: ZookeeperSession) -> None:
    """Wait for the end of a session, not for ever."""
    retired = session.retire()
    with trio.move_on_after(_CLOSE_SECONDS):
        await retired.wait()
    if not retired.is_set():
        session.hang_up()
        with trio.move_on_after(_CLOSE_SECONDS):
            await retired.wait()


def _log_change(session: ZookeeperSession, servers: str) -> None:
    """Once per change, for whoever reads the log of a night."""
    number = session.id or 0
    match session.state:
        case SessionState.CONNECTED:
            _log.info("connected to ZooKeeper at %s, session 0x%x", servers, number)
        case SessionState.CONNECTING:
            _log.warning("lost the connection to ZooKeeper, session 0x%x", number)
        case SessionState.EXPIRED:
            _log.warning("ZooKeeper ended session 0x%x", number)
        case SessionState.REFUSED:
            _log.error("ZooKeeper at %s refused our credentials", servers)
