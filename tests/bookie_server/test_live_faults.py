"""A bookie's process under real faults: kills, stops, a ZooKeeper that goes away, bad neighbours.

Nothing here waits for a time to pass: each step waits for what it needs to see, and only a hang
runs into a limit.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from metadata.store import MetadataStore, Stat
from runtime.local_zookeeper import LocalZookeeper, running_zookeeper
from tests.bookie_server.live import Process, bookie_process
from tests.bookie_server.live_clients import HANGS_SECONDS, Writer, connected, one_round
from tests.bookie_server.live_site import Site, memory_mib, stop
from tests.support.zookeeper import opened_store, shared_zookeeper
from wire.build_v2 import read_requests
from wire.errors import Status

#: How long ZooKeeper stays away, beyond what the writers need. A minute is a fair trial; nothing
#: else depends on it, so the suite does not wait.
AWAY_SECONDS = float(os.environ.get("QUIRE_AWAY_SECONDS", "0"))


async def wait_registration(store: MetadataStore, path: str, *, present: bool) -> Stat | None:
    """Until the node is there, or is not."""
    with trio.fail_after(HANGS_SECONDS):
        while True:
            stat, watch = await store.exists_and_watch(path)
            if (stat is not None) == present:
                return stat
            # A watch may be late for ever when the server went away: look again now and then.
            with trio.move_on_after(0.5):
                await watch.wait()


async def wait_log(bookie: Process, words: str, count: int) -> None:
    with trio.fail_after(HANGS_SECONDS):
        while bookie.log.read_text().count(words) < count:  # noqa: ASYNC110 - another process's file
            await trio.sleep(0.05)


@pytest.mark.parametrize(
    ("end", "syncs"), [(signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGTERM, True)]
)
async def test_bookie_that_ends_under_load_keeps_what_it_acknowledged_and_its_fences(
    tmp_path: Path, end: signal.Signals, syncs: bool
) -> None:
    """Without syncs, too: what was written outlives the process, if not the machine (F26)."""
    changes = {"journalSyncData": str(syncs).lower()}
    site = Site(tmp_path, shared_zookeeper().address, session_ms=10_000, changes=changes)
    writers = [Writer(ledger_id) for ledger_id in range(1, 5)]
    fenced = writers[0]
    async with opened_store() as store:
        await site.initialise(store)
    with bookie_process(site.conf) as bookie:
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(writer.run, site.port)
            await fenced.wait_acknowledged(1000)
            async with connected(site.port) as client:
                assert await client.fence(fenced.ledger_id) is Status.OK
            for writer in writers[1:]:
                await writer.wait_acknowledged(2000)
            code = await stop(bookie, end)
        assert code == (0 if end is signal.SIGTERM else -signal.SIGKILL), bookie.log.read_text()
        assert "Traceback" not in bookie.log.read_text()
    assert set(fenced.refused) == {Status.FENCED}
    assert [writer.refused for writer in writers[1:]] == [[], [], []]

    with bookie_process(site.conf, log_name="second.log") as bookie:
        assert [await writer.missing(site.port) for writer in writers] == [[], [], [], []]
        async with connected(site.port) as client:
            beyond = len(fenced.acknowledged) + 10_000
            assert await client.add(fenced.ledger_id, [beyond], b"late") == {Status.FENCED}
            assert await client.add(writers[1].ledger_id, [beyond], b"more") == {Status.OK}
        assert await stop(bookie) == 0
        said = bookie.log.read_text()
        is_killed = end is signal.SIGKILL
        assert ("entries_replayed=0" in said) != is_killed, "a stop leaves nothing to replay"
        # Whether it ended the session of the life before, or that was over, is a matter of time.
        assert "goes on" not in said


async def test_bookie_serves_without_zookeeper_and_is_registered_when_it_is_back(
    tmp_path: Path,
) -> None:
    """Writers go on all the time; then a kill shows that what they were told is on disk."""
    (tmp_path / "zookeeper").mkdir()
    zookeeper = LocalZookeeper(tmp_path / "zookeeper", durable=False)
    writers = [Writer(ledger_id) for ledger_id in (1, 2)]
    async with running_zookeeper(zookeeper):
        site = Site(tmp_path, zookeeper.address)
        async with opened_store(zookeeper.address) as store:
            await site.initialise(store)
        with bookie_process(site.conf) as bookie:
            async with trio.open_nursery() as nursery:
                for writer in writers:
                    nursery.start_soon(writer.run, site.port)
                await trio.to_thread.run_sync(zookeeper.kill)
                await wait_log(bookie, "connection to ZooKeeper", 1)
                for writer in writers:
                    await writer.wait_acknowledged(len(writer.acknowledged) + 1000)
                await trio.sleep(AWAY_SECONDS)
                await trio.to_thread.run_sync(zookeeper.start)
                await wait_log(bookie, "connected to ZooKeeper", 2)
                async with opened_store(zookeeper.address) as store:
                    await wait_registration(store, site.registration, present=True)
                for writer in writers:
                    await writer.wait_acknowledged(len(writer.acknowledged) + 1000)
                assert await stop(bookie, signal.SIGKILL) == -signal.SIGKILL
            assert "Traceback" not in bookie.log.read_text()
        assert [writer.refused for writer in writers] == [[], []]

        with bookie_process(site.conf, log_name="second.log") as bookie:
            assert [await writer.missing(site.port) for writer in writers] == [[], []]
            async with opened_store(zookeeper.address) as store:
                assert await stop(bookie) == 0
                # It left the list itself, so it was connected; a session would last longer.
                assert await store.exists(site.registration) is None
            assert "could not unregister" not in bookie.log.read_text()


async def test_bookie_whose_session_expired_registers_again_without_a_restart(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, shared_zookeeper().address)
    async with opened_store() as store:
        await site.initialise(store)
        with bookie_process(site.conf) as bookie:
            before = await wait_registration(store, site.registration, present=True)
            async with connected(site.port) as client:
                assert await client.add(1, range(100), b"before") == {Status.OK}
                bookie.process.send_signal(signal.SIGSTOP)  # too long a pause, for ZooKeeper
                await wait_registration(store, site.registration, present=False)
                bookie.process.send_signal(signal.SIGCONT)
                after = await wait_registration(store, site.registration, present=True)
                assert before is not None
                assert after is not None
                assert before.owner != after.owner
                assert await client.add(1, range(100, 200), b"after") == {Status.OK}
                assert len(await client.read(1, range(200))) == 200
            assert await stop(bookie) == 0
            assert "Traceback" not in bookie.log.read_text()


# ---------------------------------------------------------------------- bad neighbours

#: A thousand connections in all.
IDLE, HALF_OPEN, DEAF, SLOW = 750, 100, 100, 50
SIP_BYTES = 2000
HALF_FRAME = (4 << 20).to_bytes(4, "big") + bytes(1 << 20)
ENTRY_BYTES, ENTRY_COUNT = 10_000, 1000
#: What the clients below ask the bookie to hold is more than a GiB. Its own limits are 64 MiB of
#: half frames, 64 MiB of unsent answers and the caches; the rest is Python and RocksDB.
MEMORY_MIB_MAX = 320


class Crowd:
    """Clients that take without giving."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[trio.SocketStream] = []
        self.turned_away = 0  # half-open clients that the bookie has closed
        self.sips = 0  # answers, a little at a time

    async def gather(self, nursery: trio.Nursery) -> None:
        for _ in range(IDLE):
            self._idle.append(await self._connect())
        requests = read_requests(range(ENTRY_COUNT), ledger_id=1)
        for _ in range(DEAF):
            nursery.start_soon(self._ask_and_never_read, await self._connect(), requests)
        for _ in range(SLOW):
            nursery.start_soon(self._read_in_sips, await self._connect(), requests)
        for _ in range(HALF_OPEN):
            nursery.start_soon(self._send_half, await self._connect())

    async def leave(self) -> None:
        for stream in self._idle:
            await stream.aclose()

    async def _connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self._port)

    async def _ask_and_never_read(self, stream: trio.SocketStream, requests: bytes) -> None:
        async with stream:
            await stream.send_all(requests)
            await trio.sleep_forever()

    async def _read_in_sips(self, stream: trio.SocketStream, requests: bytes) -> None:
        async with stream:
            await stream.send_all(requests)
            while True:
                assert await stream.receive_some(SIP_BYTES), "a slow reader is not turned away"
                self.sips += 1
                await trio.sleep(0.05)

    async def _send_half(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await stream.send_all(HALF_FRAME)
                assert not await stream.receive_some(1)
            except trio.BrokenResourceError:
                pass
            self.turned_away += 1


async def test_crowd_of_bad_clients_takes_neither_memory_nor_the_neighbours_turn(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, shared_zookeeper().address)
    async with opened_store() as store:
        await site.initialise(store)
    with bookie_process(site.conf) as bookie:
        async with connected(site.port) as client:
            for at in range(0, ENTRY_COUNT, 100):
                added = await client.add(1, range(at, at + 100), b"x" * ENTRY_BYTES)
                assert added == {Status.OK}
            async with trio.open_nursery() as nursery:
                crowd = Crowd(site.port)
                await crowd.gather(nursery)
                rounds = 0
                # All half frames together exceed their limit: some are turned away.
                while crowd.turned_away < HALF_OPEN // 4 or crowd.sips < 5 * SLOW or rounds < 30:
                    await one_round(client, rounds)
                    rounds += 1
                assert memory_mib(bookie.pid) < MEMORY_MIB_MAX
                await crowd.leave()
                nursery.cancel_scope.cancel()
            await one_round(client, rounds)
        assert await stop(bookie) == 0
        assert "Traceback" not in bookie.log.read_text()
