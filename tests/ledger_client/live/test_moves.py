"""A bookie that comes back at another address under the same id, as in Kubernetes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from ledger_client import LedgerClient
from metadata.cluster import init_new_cluster
from metadata.paths import ClusterPaths
from metadata.service_info import bookie_service_info, encode_service_info
from metadata.uri import parse_metadata_uri
from runtime.sockets import ByteStream, SocketNetwork
from tests.support.zookeeper import fresh_root_path, opened_store, shared_zookeeper
from wire.codec_v3 import decode_request, encode_response
from wire.errors import Status
from wire.framing import FrameBuffer
from wire.messages import BookieInfoResponse
from wire.types import BookieId

BOOKIE = BookieId("bookie-0")


@asynccontextmanager
async def bookie_with(total_bytes: int, *, answers: bool = True) -> AsyncIterator[int]:
    """Something at an address that says how big it is, or nothing; its port."""

    async def serve(stream: ByteStream) -> None:
        frames = FrameBuffer()
        try:
            while data := await stream.receive_some(1 << 16):
                frames.feed(data)
                while (payload := frames.next_frame()) is not None:
                    header, _ = decode_request(payload)
                    response = BookieInfoResponse(
                        status=Status.OK, total_bytes=total_bytes, free_bytes=1
                    )
                    if answers:
                        number = header.transaction_id
                        await stream.send_all(encode_response(response, transaction_id=number))
        except OSError:
            return
        finally:
            stream.close()

    async with trio.open_nursery() as nursery:
        listener = await SocketNetwork().listen("127.0.0.1", 0)

        async def accept() -> None:
            while True:
                nursery.start_soon(serve, await listener.accept())

        nursery.start_soon(accept)
        yield listener.port
        nursery.cancel_scope.cancel()
        listener.close()


def registration_at(port: int) -> bytes:
    return encode_service_info(bookie_service_info(host="127.0.0.1", port=port))


async def test_bookie_is_followed_to_its_new_address_by_its_registration() -> None:
    """The old address takes requests and answers nothing: only the registration tells."""
    uri = f"zk://{shared_zookeeper().address}{fresh_root_path()}"
    parsed = parse_metadata_uri(uri)
    path = ClusterPaths(parsed.root).registration(BOOKIE)
    async with (
        opened_store() as store,
        bookie_with(1) as first,
        bookie_with(2, answers=False) as swallowing,
        bookie_with(3) as last,
    ):
        await init_new_cluster(store, parsed, chance=random.Random(1))
        await store.create(path, registration_at(first))
        async with LedgerClient(uri) as client:
            assert (await client.bookie_info(BOOKIE)).total_bytes == 1

            async def move(port: int) -> None:
                before = client.bookies()
                stat = (await store.get(path)).stat
                await store.set(path, registration_at(port), version=stat.version)
                with trio.fail_after(30):
                    while client.bookies() is before:
                        await trio.testing.wait_all_tasks_blocked()
                await trio.testing.wait_all_tasks_blocked()  # the connections were told, too

            await move(swallowing)
            with trio.move_on_after(0.5) as scope:
                await client.bookie_info(BOOKIE)
            assert scope.cancelled_caught
            await move(last)
            assert (await client.bookie_info(BOOKIE)).total_bytes == 3
