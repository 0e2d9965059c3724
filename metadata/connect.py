"""From the address of the metadata to an open store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from metadata.access import ANONYMOUS, ZookeeperAccess
from metadata.store import MetadataStore
from metadata.uri import MetadataUri
from metadata.zookeeper_store import SESSION_SECONDS, ZookeeperStore


@asynccontextmanager
async def open_store(
    uri: MetadataUri,
    *,
    session_seconds: float = SESSION_SECONDS,
    access: ZookeeperAccess = ANONYMOUS,
) -> AsyncIterator[MetadataStore]:
    """A store on the servers of `uri`, closed with the block. Its root is the caller's business."""
    store = await ZookeeperStore.connect(
        uri.connect_string, session_seconds=session_seconds, access=access
    )
    try:
        yield store
    finally:
        await store.close()
