"""The store on three ZooKeeper servers, one of which dies."""

from __future__ import annotations

from pathlib import Path

import trio

from metadata.store import ConnectionLostError, StoreUnavailableError
from metadata.zookeeper_store import ZookeeperStore
from runtime.local_zookeeper import LocalZookeeper, quorum


def _start(servers: list[LocalZookeeper]) -> None:
    for server in servers:
        server.launch()
    for server in servers:
        server.wait_ready()


def _kill_leader(servers: list[LocalZookeeper]) -> None:
    [leader] = [server for server in servers if b"Mode: leader" in server.ask("srvr")]
    leader.kill()


async def test_store_outlives_the_leader_of_a_quorum(tmp_path: Path) -> None:
    """The session, its ephemeral node and its watch survive; a write in between may be repeated."""
    servers = quorum(tmp_path)
    try:
        await trio.to_thread.run_sync(_start, servers)
        addresses = ",".join(server.address for server in servers)
        store = await ZookeeperStore.connect(addresses, session_seconds=8, timeout_seconds=30)
        try:
            await store.create("/here", ephemeral=True)
            session = store.session
            _, watch = await store.exists_and_watch("/later")
            await trio.to_thread.run_sync(_kill_leader, servers)
            with trio.fail_after(30):
                while await store.exists("/later") is None:
                    try:
                        await store.create("/later", b"made after the loss")
                    except ConnectionLostError:
                        continue  # outcome unknown: look
                    except StoreUnavailableError:
                        await trio.sleep(0.1)
                await watch.wait()
            assert store.session == session
            assert (await store.get("/later")).data == b"made after the loss"
            stat = await store.exists("/here")
            assert stat is not None
            assert stat.owner == session
        finally:
            await store.close()
    finally:
        for server in servers:
            await trio.to_thread.run_sync(server.stop)
