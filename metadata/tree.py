"""Small moves on the tree that several services need: make parents, prune them, delete below.

All of them stop at the cluster's root. A client that re-created a root which an operator has just
removed would leave half a cluster behind, so a missing root is an error here, never a parent to
be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from metadata.store import (
    ANY_VERSION,
    Delete,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionId,
)
from metadata.znodes import parent_of

#: Parents may vanish as often as we make them, when others delete the last ledger below.
_ATTEMPTS: Final = 8
#: Deletes per transaction; well below the default limit of ZooKeeper on the size of a request.
_BATCH: Final = 500


async def create_below(
    store: MetadataStore,
    root: str,
    path: str,
    data: bytes = b"",
    *,
    ephemeral: bool = False,
    sequential: bool = False,
    open_acl: bool = False,
    session: SessionId | None = None,
) -> str:
    """Create `path` and whatever is missing between it and `root`; NoNodeError without `root`.

    The leaf is tried first, as its parents nearly always exist.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return await store.create(
                path,
                data,
                ephemeral=ephemeral,
                sequential=sequential,
                open_acl=open_acl,
                session=session,
            )
        except NoNodeError:
            if attempt == _ATTEMPTS - 1:
                raise
            await _ensure(store, root, parent_of(path), open_acl=open_acl, session=session)
    raise AssertionError("the loop returns or raises")


async def ensure_below(
    store: MetadataStore,
    root: str,
    path: str,
    *,
    open_acl: bool = False,
    session: SessionId | None = None,
) -> None:
    """Make sure that an empty, persistent node exists at `path`."""
    with suppress(NodeExistsError):
        await create_below(store, root, path, open_acl=open_acl, session=session)


async def _ensure(
    store: MetadataStore, root: str, path: str, *, open_acl: bool, session: SessionId | None
) -> None:
    if path == root or not path.startswith(root + "/"):
        raise NoNodeError(f"{root} does not exist: the cluster is not initialised there")
    await ensure_below(store, root, path, open_acl=open_acl, session=session)


async def prune_parents(store: MetadataStore, parents: Sequence[str]) -> None:
    """Delete directories, nearest first, as long as they are empty.

    Each is deleted with the version it was seen with. Another client may put a child in at any
    time; the store then refuses the delete and we are done. A missing directory was pruned by
    somebody else, who may not have come further, so the climb goes on.
    """
    for parent in parents:
        stat = await store.exists(parent)
        if stat is None:
            continue
        if stat.children_count > 0:
            return
        try:
            await store.delete(parent, version=stat.version)
        except NotEmptyError:
            return
        except NoNodeError:
            continue


async def delete_tree(store: MetadataStore, path: str) -> None:
    """Delete a node and everything below it; a missing node is as good as deleted.

    Children that appear meanwhile are deleted too, a bounded number of times.
    """
    for _ in range(_ATTEMPTS):
        try:
            await _delete_children(store, path)
            await store.delete(path, version=ANY_VERSION)
        except NoNodeError:
            return
        except NotEmptyError:
            continue
        return
    raise NotEmptyError(f"{path} is being filled as fast as it is emptied: stop whoever writes")


async def _delete_children(store: MetadataStore, path: str) -> None:
    """Whole batches in one transaction where all are leaves, which most nodes of a tree are."""
    names, _ = await store.children(path)
    children = [f"{path}/{name}" for name in names]
    for start in range(0, len(children), _BATCH):
        batch = children[start : start + _BATCH]
        try:
            await store.transact([Delete(child, ANY_VERSION) for child in batch])
        except (NoNodeError, NotEmptyError):
            for child in batch:
                await delete_tree(store, child)
