"""The collector with the real metadata, on the store in memory, and the real engine."""

from __future__ import annotations

import random

import trio

from bookie.collector import Collector, CollectorOptions
from bookie.collector_metadata import StoreMetadata
from metadata.cluster import init_new_cluster
from metadata.ledgers import Ledgers
from metadata.memory import MemoryMetadata
from metadata.model import LedgerMetadata, new_ledger
from metadata.paths import LayoutType
from metadata.store import ANY_VERSION
from metadata.underreplication import UnderReplication
from metadata.update import Close
from metadata.uri import parse_metadata_uri
from tests.bookie.collector_world import ME, OTHER, World
from tests.bookie.garbage_world import RECOVERY, checkpoint, fill, options, runs_of
from tests.bookie.machine import Machine
from wire.errors import Status
from wire.types import BookieId, DigestType, LedgerId

TEMPLATE = new_ledger(
    ledger_id=LedgerId(0),
    ensemble=[OTHER],
    write_quorum=1,
    ack_quorum=1,
    digest_type=DigestType.CRC32C,
    password=b"",
)


class Cluster:
    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        self.store = self.metadata.connect()
        self.ledgers = Ledgers(
            self.store, "/ledgers", LayoutType.HIERARCHICAL, chance=random.Random(1)
        )
        self.repair = UnderReplication(
            self.store, "/ledgers", owner="me", chance=random.Random(2), now_ms=lambda: 0
        )
        self.view = StoreMetadata(self.ledgers, self.repair)

    async def open(self) -> str:
        uri = parse_metadata_uri("zk+hierarchical://x/ledgers")
        made = await init_new_cluster(self.store, uri, chance=random.Random(3))
        await self.repair.open()
        assert made.instance_id is not None
        return made.instance_id

    async def create(self, ledger_id: int, *bookies: BookieId, closed: bool = True) -> None:
        template: LedgerMetadata = new_ledger(
            ledger_id=LedgerId(0), ensemble=bookies, write_quorum=1, ack_quorum=1,
            digest_type=DigestType.CRC32C, password=b"",
        )  # fmt: skip
        await self.ledgers.create(template, ledger_id=LedgerId(ledger_id))
        if closed:
            close = Close(last_entry_id=9, length=90)
            await self.ledgers.update(LedgerId(ledger_id), close)


async def test_view_answers_from_the_store() -> None:
    cluster = Cluster()
    instance_id = await cluster.open()
    await cluster.create(3, ME)
    await cluster.create(7, OTHER, closed=False)
    view = cluster.view
    assert [list(ids) async for ids in view.ranges()] == [[3, 7]]
    assert await view.instance_id() == instance_id
    assert not await view.is_gone(LedgerId(3))
    assert await view.is_gone(LedgerId(4))
    assert await view.read(LedgerId(4)) is None
    record = await view.read(LedgerId(3))
    assert record is not None
    assert record.is_closed
    assert record.mentions(ME)
    lock = await view.lock(LedgerId(3))
    assert lock is not None
    assert view.is_held(lock)
    assert await view.lock(LedgerId(3)) is None
    await view.release(lock)
    assert await view.lock(LedgerId(3)) is not None


async def test_view_sees_past_a_lagging_follower() -> None:
    cluster = Cluster()
    await cluster.open()
    other = Cluster()
    other.store = cluster.metadata.connect()
    cluster.store.lag()
    ledgers = Ledgers(other.store, "/ledgers", LayoutType.HIERARCHICAL, chance=random.Random(1))
    await ledgers.create(TEMPLATE, ledger_id=LedgerId(5))
    assert not await cluster.view.is_gone(LedgerId(5))
    cluster.store.lag()
    await ledgers.create(TEMPLATE, ledger_id=LedgerId(6))
    assert await cluster.view.glance(LedgerId(6)) is None
    assert await cluster.view.read(LedgerId(6)) is not None


async def test_lock_of_an_expired_session_is_not_held() -> None:
    cluster = Cluster()
    await cluster.open()
    await cluster.create(3, OTHER)
    lock = await cluster.view.lock(LedgerId(3))
    session = cluster.store.session
    assert lock is not None
    assert session is not None
    cluster.metadata.expire(session)
    assert not cluster.view.is_held(lock)


async def test_collector_drops_deleted_and_surplus_ledgers_of_an_engine() -> None:
    cluster = Cluster()
    instance_id = await cluster.open()
    machine = Machine(options=options())
    machine.start()
    machine.settle()
    fill(machine, range(1, 7), range(10))
    checkpoint(machine)
    for ledger_id in (1, 2, 3, 4):
        await cluster.create(ledger_id, ME)
    await cluster.create(5, OTHER)
    await cluster.create(6, ME)
    await cluster.ledgers.delete(LedgerId(2))
    collecting = Collector(
        machine.engine,
        cluster.view,
        bookie_id=ME,
        instance_id=instance_id,
        options=CollectorOptions(operations_per_second=0),
        now_ms=lambda: 0,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(machine.workers.run)
        found = await collecting.collect()
        machine.settle()
        nursery.cancel_scope.cancel()
    assert (found.dropped, found.over_replicated, found.error) == ([2], [5], "")
    [directory] = machine.engine.directories
    assert {run.ledger_id for run in runs_of(directory)} == {1, 3, 4, 6}
    assert machine.add(2, [(10, b"zombie")], None) == [Status.FENCED]
    assert machine.add(5, [(0, b"repair")], None, flags=RECOVERY) == [Status.OK]


async def test_collector_passes_over_bytes_in_the_store_that_are_no_record() -> None:
    cluster = Cluster()
    instance_id = await cluster.open()
    for ledger_id in (1, 2, 3):
        await cluster.create(ledger_id, OTHER)
    path = cluster.ledgers.paths.path_of(LedgerId(2))
    await cluster.store.set(path, b"no record", version=ANY_VERSION)
    made = World(living=[1, 2, 3])
    collecting = Collector(
        made,
        cluster.view,
        bookie_id=ME,
        instance_id=instance_id,
        options=CollectorOptions(operations_per_second=0),
        now_ms=lambda: 0,
    )
    found = await collecting.collect()
    assert made.dropped == found.over_replicated == [1, 3]
    assert (found.undecoded, found.error) == ([2], "")
