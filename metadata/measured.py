"""A metadata store that counts what is asked of it, by the names of Apache's ZooKeeper client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from metadata.store import (
    BadVersionError,
    Change,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    SessionId,
    Stat,
    Watch,
)
from runtime.metrics import Registry

T = TypeVar("T")

OPERATIONS: Final = (
    "create", "delete", "exists", "get_children", "get_data", "multi", "set_data", "sync",
)  # fmt: skip
#: Answers, and no failures of the store.
_ANSWERS: Final = (NoNodeError, NodeExistsError, BadVersionError)


class MeasuredStore:
    """Another store, with a summary for each kind of request. It is opened and closed elsewhere."""

    def __init__(self, store: MetadataStore, registry: Registry, *, prefix: str) -> None:
        self._store = store
        self._summaries = {name: registry.summary(f"{prefix}{name}") for name in OPERATIONS}

    async def _timed(self, name: str, request: Awaitable[T]) -> T:
        summary, started = self._summaries[name], time.perf_counter()
        try:
            found = await request
        except _ANSWERS:
            summary.success.record((time.perf_counter() - started) * 1000)
            raise
        except Exception:
            summary.failure.record((time.perf_counter() - started) * 1000)
            raise
        summary.success.record((time.perf_counter() - started) * 1000)
        return found

    @property
    def session(self) -> SessionId | None:
        return self._store.session

    @property
    def ticket(self) -> str | None:
        return self._store.ticket

    async def require_session(self) -> SessionId:
        return await self._store.require_session()

    async def wait_session_lost(self, session: SessionId) -> None:
        await self._store.wait_session_lost(session)

    async def end_session(self, ticket: str) -> bool:
        return await self._store.end_session(ticket)

    async def get(self, path: str) -> Node:
        return await self._timed("get_data", self._store.get(path))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._timed("get_data", self._store.get_many(paths))

    async def get_and_watch(self, path: str) -> tuple[Node, Watch]:
        return await self._timed("get_data", self._store.get_and_watch(path))

    async def exists(self, path: str) -> Stat | None:
        return await self._timed("exists", self._store.exists(path))

    async def exists_and_watch(self, path: str) -> tuple[Stat | None, Watch]:
        return await self._timed("exists", self._store.exists_and_watch(path))

    async def children(self, path: str) -> tuple[list[str], Stat]:
        return await self._timed("get_children", self._store.children(path))

    async def children_and_watch(self, path: str) -> tuple[list[str], Stat, Watch]:
        return await self._timed("get_children", self._store.children_and_watch(path))

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
        request = self._store.create(
            path,
            data,
            ephemeral=ephemeral,
            sequential=sequential,
            parents=parents,
            open_acl=open_acl,
            session=session,
        )
        return await self._timed("create", request)

    async def set(
        self, path: str, data: bytes, *, version: int, session: SessionId | None = None
    ) -> Stat:
        request = self._store.set(path, data, version=version, session=session)
        return await self._timed("set_data", request)

    async def delete(self, path: str, *, version: int, session: SessionId | None = None) -> None:
        await self._timed("delete", self._store.delete(path, version=version, session=session))

    async def transact(
        self, changes: Sequence[Change], *, session: SessionId | None = None
    ) -> None:
        await self._timed("multi", self._store.transact(changes, session=session))

    async def sync(self, path: str) -> None:
        await self._timed("sync", self._store.sync(path))

    async def close(self) -> None:
        await self._store.close()
