"""A real ZooKeeper for tests: one server per pytest process, started when first asked for.

    async def test_something() -> None:
        async with opened_store() as store:        # a session of its own
            root = await fresh_root(store)         # an empty znode that no other test uses
            await store.create(f"{root}/ledgers")

`shared_zookeeper().address` is what goes into a URI for whole processes. The shared server must
not be stopped or paused; tests that do such things start a `LocalZookeeper` of their own.
`expire` ends a session as a long silence would, without waiting for it.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from metadata.access import ZookeeperAccess
from metadata.store import MetadataStore
from metadata.zookeeper_store import ZookeeperStore
from runtime.local_zookeeper import LocalZookeeper
from runtime.logs import Secret
from runtime.tls import TlsOptions

#: For one operation: how busy the machine is must not decide a test.
PATIENCE_SECONDS = 30.0
#: Long enough for a busy machine, short enough to wait for an expiry.
SESSION_SECONDS = 4.0

_numbers = itertools.count(1)


@functools.cache
def shared_zookeeper() -> LocalZookeeper:
    """The server that all tests of this process share. It ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="zookeeper-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = LocalZookeeper(folder, durable=False).start()
    atexit.register(server.stop)
    return server


def fresh_root_path() -> str:
    """The path of a znode that no other test uses. It does not exist yet."""
    return f"/test-{os.getpid()}-{next(_numbers)}"


async def fresh_root(store: MetadataStore) -> str:
    """The same, created."""
    return await store.create(fresh_root_path(), open_acl=True)


def access_for(
    credentials: str | None, *, private: bool = False, tls: TlsOptions | None = None
) -> ZookeeperAccess:
    """`user:password` for the digest scheme, or nobody."""
    if credentials is None:
        return ZookeeperAccess(private=private, tls=tls)
    user, _, password = credentials.partition(":")
    return ZookeeperAccess(
        scheme="digest", user=user, password=Secret(password), private=private, tls=tls
    )


@asynccontextmanager
async def opened_store(
    address: str | None = None,
    *,
    session_seconds: float = SESSION_SECONDS,
    timeout_seconds: float | None = PATIENCE_SECONDS,
    credentials: str | None = None,
    private: bool = False,
    tls: TlsOptions | None = None,
) -> AsyncIterator[ZookeeperStore]:
    """A store on the shared server, or on another one; closed afterwards."""
    store = await ZookeeperStore.connect(
        shared_zookeeper().address if address is None else address,
        session_seconds=session_seconds,
        timeout_seconds=timeout_seconds,
        access=access_for(credentials, private=private, tls=tls),
    )
    try:
        yield store
    finally:
        await store.close()


async def expire(store: ZookeeperStore, address: str | None = None) -> None:
    """End the session of `store` on the server: somebody else enters it and closes it."""
    session = store._session
    assert session is not None
    number, password = session._client.client_id
    host, _, port = (address or shared_zookeeper().address).rpartition(":")
    await trio.to_thread.run_sync(_close_session, (host, int(port)), number, password)


def _close_session(address: tuple[str, int], session: int, password: bytes) -> None:
    with socket.create_connection(address, timeout=10.0) as connection:
        connect = struct.pack(">iqiqi", 0, 0, 10_000, session, len(password)) + password + b"\0"
        connection.sendall(struct.pack(">i", len(connect)) + connect)
        _read_frame(connection)
        close = struct.pack(">ii", 1, -11)
        connection.sendall(struct.pack(">i", len(close)) + close)
        _read_frame(connection)


def _read_frame(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _read(connection, 4))
    return _read(connection, length)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        assert chunk, "the server closed the connection"
        data += chunk
    return data
