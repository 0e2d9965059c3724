"""A whole bookie, as operators run it: a process, loopback sockets, files, ZooKeeper."""

from __future__ import annotations

import random
import signal
import socket
from pathlib import Path

import pytest

from metadata.cluster import init_new_cluster
from metadata.paths import ClusterPaths
from metadata.service_info import decode_service_info
from metadata.store import MetadataStore
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import free_port
from tests.bookie_server.live import bookie_process, write_conf
from tests.bookie_server.live_clients import answers_in
from tests.bookie_server.world import KEY, entry_of
from tests.support.zookeeper import fresh_root_path, opened_store, shared_zookeeper
from wire.build_v2 import add_requests, read_requests
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.scan_v2 import AddAnswers, ReadAnswers
from wire.types import BookieId


async def new_cluster(store: MetadataStore) -> str:
    """The address of a cluster of this test's own."""
    uri = f"zk://{shared_zookeeper().address}{fresh_root_path()}"
    await init_new_cluster(store, parse_metadata_uri(uri), chance=random.Random(1))
    return uri


def exchange(port: int, request: bytes, count: int) -> list[AddAnswers | ReadAnswers]:
    """Send v2 requests and take the answers to `count` of them."""
    frames = FrameBuffer()
    found: list[AddAnswers | ReadAnswers] = []
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        while sum(len(answers.entry_ids) for answers in found) < count:
            data = connection.recv(1 << 16)
            assert data, "the bookie closed the connection"
            frames.feed(data)
            found += answers_in(frames)
    return found


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_entries_survive_the_end_of_the_process(tmp_path: Path, end: signal.Signals) -> None:
    entries = [entry_of(5, entry_id, b"x" * 100, entry_id - 1) for entry_id in range(500)]
    async with opened_store() as store:
        uri = await new_cluster(store)
        port = free_port()
        conf = write_conf(tmp_path, uri, port)
        with bookie_process(conf) as bookie:
            added = exchange(port, add_requests(entries, master_key=KEY), len(entries))
            assert {answers.status for answers in added} == {Status.OK}
            code = bookie.stop(end)
            assert code == (0 if end is signal.SIGTERM else -signal.SIGKILL), bookie.log.read_text()
        with bookie_process(conf, log_name="second.log") as bookie:
            read = exchange(port, read_requests(range(500), ledger_id=5), 500)
            assert {answers.status for answers in read} == {Status.OK}
            assert bookie.stop() == 0
            assert "Traceback" not in bookie.log.read_text()


async def test_bookie_registers_as_one_that_takes_batches_and_leaves_the_list(
    tmp_path: Path,
) -> None:
    async with opened_store() as store:
        uri = await new_cluster(store)
        paths = ClusterPaths(parse_metadata_uri(uri).root)
        port = free_port()
        bookie_id = BookieId(f"127.0.0.1:{port}")
        with bookie_process(write_conf(tmp_path, uri, port)) as bookie:
            node = await store.get(paths.registration(bookie_id, readonly=False))
            info = decode_service_info(node.data, bookie_id)
            assert info.takes_batches
            assert info.rpc is not None
            assert (info.rpc.host, info.rpc.port) == ("127.0.0.1", port)
            assert bookie.stop() == 0
        assert await store.exists(paths.registration(bookie_id, readonly=False)) is None
        assert await store.exists(paths.cookie(bookie_id)) is not None
