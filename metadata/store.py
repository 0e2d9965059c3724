"""What we ask of a metadata store: ZooKeeper's model, in trio's manner.

Two forms pass the same suite: `metadata/memory.py` (deterministic, can misbehave on purpose) and
`metadata/zookeeper_store.py` (the real one). Rules that both keep:

- Paths are absolute; data is bytes; versions are those of the znode (0 after create).
- A conditional write needs an explicit version; `ANY_VERSION` is never a default.
- `ConnectionLostError` from a write means that its outcome is unknown: read again and decide by a
  predicate on what is there. It is never retried inside the store.
- A read is repeated inside until it is answered or the time allowed is over; then, as for a write
  that was never sent, StoreUnavailableError.
- A request bound to a session runs on that session or not at all.
- A watch fires at most once, perhaps late, and after a lost session always. It may also be
  late for ever when the network is down, so whoever waits sets a deadline and reads again.
- A store lives through session expiry by opening a new session. Whoever needs "the same session
  as before" (a lock, a registration) keeps the `SessionId` it acted under and passes it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NewType, Protocol

from wire.errors import LedgerError

#: Disables the comparison of versions. Say it out loud; never for ledger metadata.
ANY_VERSION: Final = -1

SessionId = NewType("SessionId", int)


class MetadataError(LedgerError):
    """Something between us and the metadata store went wrong."""


class NoNodeError(MetadataError):
    """The path does not exist (or the parent of what should be created)."""


class NodeExistsError(MetadataError):
    """The path exists already."""


class BadVersionError(MetadataError):
    """The node changed since it was read."""


class NotEmptyError(MetadataError):
    """The node still has children."""


class EphemeralParentError(MetadataError):
    """The parent is an ephemeral node, which cannot have children."""


class InvalidPathError(MetadataError):
    """The path is not one that ZooKeeper would accept."""


class StoreClosedError(MetadataError):
    """This connection was closed by its owner; nothing was done."""


class NotAuthorizedError(MetadataError):
    """The store refuses: wrong or missing credentials for this node's access list."""


class StoreUnavailableError(MetadataError):
    """Nothing was done: no connection within the time allowed. Try again later."""


class ConnectionLostError(StoreUnavailableError):
    """The connection broke while the request was under way: its outcome is unknown."""


class SessionExpiredError(StoreUnavailableError):
    """The session that the request was bound to is over; its ephemeral nodes are gone.

    The request was not carried out.
    """


@dataclass(frozen=True, slots=True)
class Stat:
    version: int
    children_version: int
    children_count: int
    owner: SessionId | None  # of an ephemeral node
    created_ms: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    stat: Stat


class WatchEvent(Enum):
    CREATED = "created"
    DELETED = "deleted"
    DATA_CHANGED = "data changed"
    CHILDREN_CHANGED = "children changed"
    SESSION_LOST = "session lost"  # the watch is gone; read again


class Watch(Protocol):
    """A one-shot watch, set by the read it was passed to."""

    async def wait(self) -> WatchEvent:
        """Until it fires. Several tasks may wait; a fired watch returns at once."""

    @property
    def event(self) -> WatchEvent | None:
        """What happened, if it has fired."""


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Fails the whole transaction unless the node has this version."""

    path: str
    version: int


Change = Create | SetData | Delete | Check


class MetadataStore(Protocol):
    """A connection to the store. Made and closed by its owner; safe for many tasks at once."""

    @property
    def session(self) -> SessionId | None:
        """The live session, as far as we know; None while there is none."""

    async def require_session(self) -> SessionId:
        """The present session; waits for one if there is none, StoreUnavailableError if in vain.

        For whoever is about to act under one session: take it here, pass it to every call.
        """

    async def wait_session_lost(self, session: SessionId) -> None:
        """Until `session` has expired (returns at once if it is not the present one)."""

    @property
    def ticket(self) -> str | None:
        """What lets `end_session` end the present session, from any process. A secret."""

    async def end_session(self, ticket: str) -> bool:
        """End a session that was left behind: its ephemeral nodes go at once.

        False if it was over already. For the owner's heirs: whoever still uses it loses it.
        """

    async def get(self, path: str) -> Node:
        """NoNodeError if it does not exist."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """All of these in one go, read in this order; None for each that does not exist.

        For hundreds, not for millions: they are under way at the same time.
        """

    async def get_and_watch(self, path: str) -> tuple[Node, Watch]:
        """The watch fires when the data changes or the node is deleted. NoNodeError sets none."""

    async def exists(self, path: str) -> Stat | None: ...

    async def exists_and_watch(self, path: str) -> tuple[Stat | None, Watch]:
        """The watch fires when the node is created, deleted, or its data changes."""

    async def children(self, path: str) -> tuple[list[str], Stat]:
        """The names of the children, sorted, and the node's own stat. NoNodeError if missing."""

    async def children_and_watch(self, path: str) -> tuple[list[str], Stat, Watch]:
        """The watch fires when a child comes or goes, or the node is deleted."""

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
        """Create a node and return its path (sequential nodes get ten digits appended).

        `parents` creates missing parents, persistent and empty. `open_acl` gives the world access
        even where the store is configured for private access lists.
        """

    async def set(
        self, path: str, data: bytes, *, version: int, session: SessionId | None = None
    ) -> Stat: ...

    async def delete(
        self, path: str, *, version: int, session: SessionId | None = None
    ) -> None: ...

    async def transact(
        self, changes: Sequence[Change], *, session: SessionId | None = None
    ) -> None:
        """All or nothing. Raises the error of the first change that cannot be made."""

    async def sync(self, path: str) -> None:
        """What this connection reads next is at least as new as now. Before acting on absence."""

    async def close(self) -> None:
        """End the session: its ephemeral nodes go at once. Idempotent."""
