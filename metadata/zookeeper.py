"""ZooKeeper sessions, one kazoo client each. The door to kazoo, with `zookeeper_handler.py`.

kazoo would open a new session behind our back once the old one has expired, and send there
whatever is queued. Our handler refuses to make another connection for a client whose session is
over; the store (`metadata/zookeeper_store.py`) goes on with a new client instead. What is sent
through a `ZookeeperSession` can therefore not reach the server under any other session.

kazoo reads and writes in one thread per client. We give it neither the two further threads that
it would use for callbacks nor a worker per call: answers, watch events and changes of state are
posted to the event loop (`runtime/inbox.py`) in the order in which they came over the wire, and
nothing of ours runs in kazoo's thread beyond that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

import kazoo.exceptions
import trio
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from metadata import store as errors
from metadata.access import ANONYMOUS, ZookeeperAccess
from metadata.store import (
    Change,
    Check,
    Create,
    Delete,
    MetadataError,
    Node,
    SessionId,
    SetData,
    Stat,
    WatchEvent,
)
from metadata.zookeeper_ending import SessionTicket
from metadata.zookeeper_handler import Handler, log_in_by_sasl
from metadata.zookeeper_watches import StoreWatch, Target, WatchKind, WatchTable, seen_of, stat_of
from runtime.inbox import Answer, Inbox
from runtime.tls import Certificates

_log = logging.getLogger(__name__)
#: kazoo warns at every attempt to reconnect. We say once what matters ourselves.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)

_RECONNECT_SECONDS_MIN: Final = 0.1
_RECONNECT_SECONDS_MAX: Final = 2.0
_UNKNOWN: Final = (errors.ConnectionLostError, "connection lost, the outcome is unknown")

#: One table, by what the caller can conclude. A class stands for its subclasses too.
_ERRORS: Final[Mapping[type[Exception], tuple[type[MetadataError], str]]] = {
    kazoo.exceptions.NoNodeError: (errors.NoNodeError, "does not exist"),
    kazoo.exceptions.NodeExistsError: (errors.NodeExistsError, "exists already"),
    kazoo.exceptions.BadVersionError: (errors.BadVersionError, "changed since it was read"),
    kazoo.exceptions.NotEmptyError: (errors.NotEmptyError, "still has children"),
    kazoo.exceptions.NoChildrenForEphemeralsError: (
        errors.EphemeralParentError,
        "the parent is ephemeral and cannot have children",
    ),
    kazoo.exceptions.NoAuthError: (
        errors.NotAuthorizedError,
        "the access list of the node does not admit us: check the credentials for ZooKeeper",
    ),
    kazoo.exceptions.AuthFailedError: (
        errors.NotAuthorizedError,
        "ZooKeeper refused the credentials: want user:password as the cluster has them",
    ),
    kazoo.exceptions.InvalidACLError: (
        errors.NotAuthorizedError,
        "a private access list needs credentials for ZooKeeper, and none were accepted",
    ),
    kazoo.exceptions.BadArgumentsError: (errors.InvalidPathError, "ZooKeeper refuses this path"),
    # These two come from kazoo itself or from a server that did not look at the request.
    kazoo.exceptions.SessionExpiredError: (
        errors.SessionExpiredError,
        "the session is over; nothing was done",
    ),
    kazoo.exceptions.ThrottledOpError: (
        errors.StoreUnavailableError,
        "ZooKeeper is overloaded; nothing was done",
    ),
    kazoo.exceptions.ConnectionLoss: _UNKNOWN,
    kazoo.exceptions.SessionMovedError: _UNKNOWN,
    kazoo.exceptions.RequestTimeoutError: _UNKNOWN,
}

_EVENTS: Final = {
    EventType.CREATED: WatchEvent.CREATED,
    EventType.DELETED: WatchEvent.DELETED,
    EventType.CHANGED: WatchEvent.DATA_CHANGED,
    EventType.CHILD: WatchEvent.CHILDREN_CHANGED,
}


class SessionState(Enum):
    CONNECTING = "connecting"  # for the first time, or again
    CONNECTED = "connected"
    EXPIRED = "expired"
    REFUSED = "refused"  # the server did not take our credentials


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach ZooKeeper and who we are there."""

    servers: str  # host:port,host:port
    session_seconds: float
    access: ZookeeperAccess = ANONYMOUS
    certificates: Certificates | None = None  # for TLS


class ZookeeperSession:
    """One session, from the first connection to its end. All methods are for the event loop."""

    def __init__(
        self, connection: Connection, inbox: Inbox, on_change: Callable[[ZookeeperSession], None]
    ) -> None:
        """Begins to connect at once; `on_change` is called in the loop when `state` changed."""
        self.id: SessionId | None = None
        self.state = SessionState.CONNECTING
        self.lost = trio.Event()
        self._connection = connection
        self._inbox = inbox
        self._on_change = on_change
        self._watches = WatchTable()
        self._retired: trio.Event | None = None
        self._handler = Handler(connection.session_seconds, connection.certificates)
        self._first_id: int | None = None  # kazoo's thread only
        access = connection.access
        auth = [("digest", access.credentials)] if access.credentials else None
        self._client = KazooClient(
            hosts=connection.servers,
            timeout=connection.session_seconds,
            handler=self._handler,
            auth_data=auth,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=_RECONNECT_SECONDS_MIN,
                max_delay=_RECONNECT_SECONDS_MAX,
                sleep_func=self._handler.sleep_func,
            ),
            logger=_kazoo_log,
        )
        if access.scheme == "sasl":
            log_in_by_sasl(self._client, access)
        self._client.add_listener(self._listen)
        self._client.start_async()

    @property
    def is_usable(self) -> bool:
        # kazoo's own word too: ours may be one message behind it.
        return self.state is SessionState.CONNECTED and self._client.connected

    @property
    def ticket(self) -> SessionTicket | None:
        return None if self.id is None else SessionTicket(*self._client.client_id)

    @property
    def trouble(self) -> str:
        """Why there is no connection, for a message."""
        return self._handler.trouble

    # Requests. Each waits for its answer until `deadline` and raises ConnectionLostError then.

    async def get(self, path: str, watch: StoreWatch | None, deadline: float) -> Node:
        trigger = self._trigger(WatchKind.DATA, path, watch)
        data, stat = await self._ask(
            f"get {path}",
            self._client.get_async(path, watch=trigger),
            deadline,
            lambda answer: self._set(trigger, watch, answer[1]),
        )
        return Node(data, stat_of(stat))

    async def get_many(self, paths: Sequence[str], deadline: float) -> list[Node | None]:
        """One task waits for all of them: answers come in order, so for the last one."""
        results: list[Any] = []
        for path in paths:
            sent = self._client.get_async(path)
            sent.rawlink(lambda result: self._inbox.post(partial(results.append, result)))
        with suppress(errors.NoNodeError):
            await self._ask(f"get {paths[-1]}", sent, deadline)
        nodes: list[Node | None] = []
        for path, result in zip(paths, results, strict=True):
            error = result.exception
            if error is not None and not isinstance(error, kazoo.exceptions.NoNodeError):
                raise _translated(error, f"get {path}") from error
            nodes.append(None if error else Node(result.value[0], stat_of(result.value[1])))
        return nodes

    async def exists(self, path: str, watch: StoreWatch | None, deadline: float) -> Stat | None:
        trigger = self._trigger(WatchKind.DATA, path, watch)
        stat = await self._ask(
            f"exists {path}",
            self._client.exists_async(path, watch=trigger),
            deadline,
            lambda answer: self._set(trigger, watch, answer),
        )
        return None if stat is None else stat_of(stat)

    async def children(
        self, path: str, watch: StoreWatch | None, deadline: float
    ) -> tuple[list[str], Stat]:
        trigger = self._trigger(WatchKind.CHILDREN, path, watch)
        names, stat = await self._ask(
            f"children {path}",
            self._client.get_children_async(path, watch=trigger, include_data=True),
            deadline,
            lambda answer: self._set(trigger, watch, answer[1]),
        )
        return sorted(names), stat_of(stat)

    async def sync(self, path: str, deadline: float) -> None:
        await self._ask(f"sync {path}", self._client.sync_async(path), deadline)

    async def create(
        self,
        path: str,
        data: bytes,
        deadline: float,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        open_acl: bool = False,
    ) -> str:
        sent = self._client.create_async(
            path, data, acl=self._acl(open_acl), ephemeral=ephemeral, sequence=sequential
        )
        return str(await self._ask(f"create {path}", sent, deadline))

    async def set(self, path: str, data: bytes, version: int, deadline: float) -> Stat:
        sent = self._client.set_async(path, data, version)
        return stat_of(await self._ask(f"set {path}", sent, deadline))

    async def delete(self, path: str, version: int, deadline: float) -> None:
        await self._ask(f"delete {path}", self._client.delete_async(path, version), deadline)

    async def transact(self, changes: Sequence[Change], deadline: float) -> None:
        transaction = self._client.transaction()
        for change in changes:
            match change:
                case Create(path, data, ephemeral):
                    transaction.create(path, data, self._acl(False), ephemeral)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        results = await self._ask("transaction", transaction.commit_async(), deadline)
        for change, result in zip(changes, results, strict=False):
            # Those before the culprit are "rolled back", those after it were not looked at.
            if isinstance(result, Exception) and not isinstance(
                result, kazoo.exceptions.RolledBackError
            ):
                verb = type(change).__name__.lower()
                raise _translated(result, f"transaction, {verb} {change.path}") from result

    def _acl(self, open_acl: bool) -> Any:
        return (
            CREATOR_ALL_ACL if self._connection.access.private and not open_acl else OPEN_ACL_UNSAFE
        )

    async def _ask(
        self,
        what: str,
        sent: Any,
        deadline: float,
        on_answer: Callable[[Any], None] | None = None,
    ) -> Any:
        """Wait for an answer. If cancelled, the request goes on and its answer is dropped."""
        answer = Answer(on_answer)
        socket_then = self._handler.socket
        sent.rawlink(
            lambda result: self._inbox.post(partial(answer.arrive, result.value, result.exception))
        )
        with trio.move_on_at(deadline):
            await answer.arrived.wait()
        if not answer.arrived.is_set():
            # A server that is silent for so long is worth a new connection, perhaps to another.
            self._handler.drop(socket_then)
            raise errors.ConnectionLostError(f"{what}: no answer in time, the outcome is unknown")
        if answer.error is not None:
            raise _translated(answer.error, what) from answer.error
        return answer.value

    # Watches.

    def _trigger(self, kind: WatchKind, path: str, watch: StoreWatch | None) -> _Trigger | None:
        return None if watch is None else _Trigger(self, Target(kind, path))

    def _set(
        self, trigger: _Trigger | None, watch: StoreWatch | None, stat: ZnodeStat | None
    ) -> None:
        """Before the next event from the wire is looked at: it may be about this watch."""
        if trigger is not None and watch is not None:
            watch.seen = seen_of(trigger.target.kind, stat)
            self._watches.add(trigger.target, watch)

    def on_event(self, target: Target, event: WatchedEvent) -> None:
        """In kazoo's thread. A broken connection (NONE) is heard of by `_listen`."""
        if event.type in _EVENTS:
            self._inbox.post(partial(self._watches.fire, target, _EVENTS[event.type]))

    def _watch_again(self) -> None:
        for target in self._watches.wanted():
            trigger = _Trigger(self, target)
            if target.kind is WatchKind.DATA:
                sent = self._client.exists_async(target.path, watch=trigger)
            else:
                sent = self._client.get_children_async(
                    target.path, watch=trigger, include_data=True
                )
            sent.rawlink(
                lambda result, target=target: self._inbox.post(
                    partial(self._watched_again, target, result)
                )
            )

    def _watched_again(self, target: Target, result: Any) -> None:
        match result.exception:
            case None:
                stat = result.value if target.kind is WatchKind.DATA else result.value[1]
                self._watches.compare(target, seen_of(target.kind, stat))
            case kazoo.exceptions.NoNodeError():
                self._watches.compare(target, None)
            case kazoo.exceptions.ConnectionLoss() | kazoo.exceptions.SessionExpiredError():
                pass  # the next connection tries again, or the end of the session fires all
            case _:
                self._watches.fire(target, WatchEvent.SESSION_LOST)

    # The session itself.

    def _listen(self, state: str) -> None:
        """In kazoo's thread, before it goes on: the moment to forbid a second session."""
        if state == KazooState.CONNECTED:
            self._handler.is_greeting = False
            session_id = self._client.client_id[0]
            if self._first_id is None:
                self._first_id = session_id
            if session_id == self._first_id:
                self._inbox.post(partial(self._connected, SessionId(session_id)))
                return
        if state == KazooState.SUSPENDED:
            self._inbox.post(self._suspended)
            return
        self._handler.refuse()
        refused = self._client.client_state == KeeperState.AUTH_FAILED
        end = SessionState.REFUSED if refused else SessionState.EXPIRED
        self._inbox.post(partial(self._end, end))

    def _connected(self, session: SessionId) -> None:
        if not self.lost.is_set():
            again, self.id = self.id is not None, session
            self.state = SessionState.CONNECTED
            if again:
                self._watch_again()
            self._on_change(self)

    def _suspended(self) -> None:
        if not self.lost.is_set():
            self.state = SessionState.CONNECTING
            self._on_change(self)

    def _end(self, state: SessionState) -> None:
        if not self.lost.is_set():
            self.state = state
            self.lost.set()
            self._watches.fire_all(WatchEvent.SESSION_LOST)
            self._on_change(self)

    def retire(self) -> trio.Event:
        """End the session if it lives, and kazoo's thread. Set when nothing is left of them."""
        if self._retired is None:
            self._retired = trio.Event()
            self._end(SessionState.EXPIRED)
            self._stopper = threading.Thread(target=self._stop, name="zookeeper-close", daemon=True)
            self._stopper.start()
        return self._retired

    def hang_up(self) -> None:
        """Do not wait for the server's farewell any longer."""
        self._handler.refuse()

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            _log.warning("a connection to ZooKeeper did not end cleanly: %s", error)
        self._inbox.post(self._stopped)

    def _stopped(self) -> None:
        assert self._retired is not None
        self._stopper.join()  # posting to us was the last thing it did
        self._retired.set()


@dataclass(frozen=True, slots=True)
class _Trigger:
    """What kazoo calls. Equal ones are one to kazoo, so it keeps one for a path, not for a read."""

    session: ZookeeperSession
    target: Target

    def __call__(self, event: WatchedEvent) -> None:
        self.session.on_event(self.target, event)


def _translated(error: Exception, what: str) -> MetadataError:
    for kind, (translation, text) in _ERRORS.items():
        if isinstance(error, kind):
            return translation(f"{what}: {text}")
    if getattr(error, "code", 0) <= kazoo.exceptions.APIError.code:
        return MetadataError(f"{what}: ZooKeeper refused it ({type(error).__name__})")
    # Whatever else: do not claim to know what became of the request.
    return errors.ConnectionLostError(f"{what}: {type(error).__name__}, the outcome is unknown")
