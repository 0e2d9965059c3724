"""A real ZooKeeper for tests: one server per pytest process, started when first asked for.

    async def test_something() -> None:
        async with opened_store() as store:        # a session of its own
            root = await fresh_root(store)         # an empty znode that no other test uses
            await store.create(f"{root}/ledgers")

`shared_zookeeper().address` is what goes into a URI for whole processes. The shared server must
not be stopped or paused; tests that do such things start a `LocalZookeeper` of their own.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import tempfile
from pathlib import Path

from runtime.local_zookeeper import LocalZookeeper

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
