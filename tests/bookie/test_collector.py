"""The collector: which ledgers it has dropped, and above all which not."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import trio
import trio.testing

from bookie.collector import DROP_MAX, Collector, CollectorOptions
from bookie.collector_metadata import StoreMetadata
from bookie.storage.garbage_values import Listing
from metadata.cluster import init_new_cluster
from metadata.ledgers import Ledgers
from metadata.memory import MemoryMetadata
from metadata.model import LedgerMetadata, new_ledger
from metadata.paths import LayoutType
from metadata.store import ConnectionLostError
from metadata.underreplication import UnderReplication
from metadata.update import Close
from metadata.uri import parse_metadata_uri
from tests.bookie.garbage_world import RECOVERY, checkpoint, fill, options, runs_of
from tests.bookie.machine import Machine
from wire.errors import LedgerError, Status
from wire.types import BookieId, DigestType, LedgerId

ME = BookieId("bk1:3181")
OTHER = BookieId("bk2:3181")
TEMPLATE = new_ledger(
    ledger_id=LedgerId(0),
    ensemble=[OTHER],
    write_quorum=1,
    ack_quorum=1,
    digest_type=DigestType.CRC32C,
    password=b"",
)


@dataclass
class Record:
    is_closed: bool = True
    bookies: tuple[BookieId, ...] = (ME,)

    def mentions(self, bookie_id: BookieId) -> bool:
        return bookie_id in self.bookies


@dataclass
class World:
    """Metadata and storage in one, both to be tampered with."""

    living: list[int] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    outdated: dict[int, Record] = field(default_factory=dict)  # what some server still says
    hidden: set[int] = field(default_factory=set)  # exist, but a listing lacks them
    instance: str | None = "cluster"
    locked: set[int] = field(default_factory=set)
    dropped: list[int] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)  # how many at a time
    resumed: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    error_after: int = 10**9  # ranges listed before the listing fails
    settled: int = 0
    on_lock: Callable[[], None] = lambda: None
    held: bool = True
    operations: list[float] = field(default_factory=list)

    async def ranges(self) -> AsyncIterator[Sequence[LedgerId]]:
        for number, ledger_id in enumerate(sorted(self.records)):
            if number >= self.error_after:
                raise LedgerError("the listing broke off")
            if ledger_id not in self.hidden:
                yield [LedgerId(ledger_id)]

    async def is_gone(self, ledger_id: LedgerId) -> bool:
        self.operations.append(trio.current_time())
        return ledger_id not in self.records

    async def glance(self, ledger_id: LedgerId) -> Record | None:
        self.operations.append(trio.current_time())
        return self.outdated.get(ledger_id, self.records.get(ledger_id))

    async def read(self, ledger_id: LedgerId) -> Record | None:
        self.operations.append(trio.current_time())
        return self.records.get(ledger_id)

    async def instance_id(self) -> str | None:
        return self.instance

    async def lock(self, ledger_id: LedgerId) -> object | None:
        if ledger_id in self.locked:
            return None
        self.on_lock()
        return ledger_id

    def is_held(self, lock: object) -> bool:
        return self.held

    async def release(self, lock: object) -> None:
        assert isinstance(lock, int)
        self.released.append(lock)

    async def settle(self) -> None:
        self.settled += 1

    def list_ledgers(self, done: Callable[[Listing | LedgerError], None]) -> None:
        done(Listing(list(self.living), list(self.unfinished), []))

    def drop(self, ledger_ids: Sequence[int], now_ms: int) -> None:
        self.dropped += ledger_ids
        self.drops.append(len(ledger_ids))

    def resume_drop(self, ledger_ids: Sequence[int]) -> None:
        self.resumed += ledger_ids


def world(local: int = 10, missing: Sequence[int] = ()) -> World:
    """Local ledgers 0.. that exist, but for those missing."""
    return World(
        living=list(range(local)),
        records={n: Record() for n in range(local) if n not in missing},
    )


def collector(made: World, bookie_id: BookieId = ME, **changes: float) -> Collector:
    return Collector(
        made,
        made,
        bookie_id=bookie_id,
        instance_id="cluster",
        options=replace(CollectorOptions(operations_per_second=0), **changes),
        now_ms=lambda: 7,
    )


async def test_ledger_without_metadata_is_dropped() -> None:
    made = world(missing=[3, 9])
    found = await collector(made).collect()
    assert made.dropped == found.dropped == [3, 9]
    assert (found.local, found.listed, found.candidates) == (10, 8, 2)


async def test_many_ledgers_are_dropped_a_few_at_a_time() -> None:
    """Each drop is one step of the event loop, and of all its clients."""
    made = world(2_000, missing=range(900))
    await collector(made).collect()
    assert made.dropped == list(range(900))
    assert max(made.drops) <= DROP_MAX <= 256


async def test_broken_listing_deletes_nothing() -> None:
    made = world(missing=[3, 9])
    made.error_after = 5
    found = await collector(made).collect()
    assert made.dropped == []
    assert "broke off" in found.error


async def test_candidate_that_a_direct_question_finds_is_kept() -> None:
    made = world(missing=[3])
    made.hidden = {5}
    assert (await collector(made).collect()).dropped == [3]


async def test_ledger_that_came_after_the_local_listing_is_kept() -> None:
    made = world()
    listed = made.list_ledgers

    def list_and_grow(done: Callable[[Listing | LedgerError], None]) -> None:
        listed(done)
        made.living.append(99)

    made.list_ledgers = list_and_grow  # type: ignore[method-assign]
    await collector(made).collect()
    assert made.dropped == []


@pytest.mark.parametrize("missing", [range(6), range(10)])
async def test_suspicious_round_needs_a_second_one_that_agrees(missing: range) -> None:
    made = world(missing=missing)
    collecting = collector(made)
    assert (await collecting.collect()).dropped == []
    made.records[0] = Record()
    assert (await collecting.collect()).dropped == list(missing)[1:]


async def test_empty_listing_is_suspicious_also_for_a_single_ledger() -> None:
    made = world(local=1, missing=[0])
    collecting = collector(made)
    assert (await collecting.collect()).dropped == []
    assert (await collecting.collect()).dropped == [0]


@pytest.mark.parametrize("instance", ["another", None])
async def test_nothing_is_deleted_for_another_cluster(
    instance: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    made = world(missing=[3])
    made.instance = instance
    collecting = collector(made)
    for _ in range(3):
        assert "instance id" in (await collecting.collect()).error
    assert made.dropped == []
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    made.instance = "cluster"
    assert (await collecting.collect()).dropped == [3]


async def test_closed_ledger_without_this_bookie_is_dropped_under_its_lock() -> None:
    made = world()
    made.records[4] = Record(bookies=(OTHER,))
    made.records[5] = Record(bookies=(OTHER,), is_closed=False)
    found = await collector(made).collect()
    assert made.dropped == found.over_replicated == [4]
    assert made.released == [4]


async def test_an_outdated_record_does_not_make_a_ledger_surplus() -> None:
    made = world()
    made.outdated[4] = Record(bookies=(OTHER,))
    await collector(made).collect()
    assert made.dropped == []
    assert made.released == [4]


async def test_bookies_started_together_look_for_surplus_ledgers_apart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """And none of them in its first round: thousands of records would be read then."""
    first: list[float] = []
    for number in range(4):
        made = world()
        made.records[4] = Record(bookies=(OTHER,))
        collecting = collector(made, bookie_id=BookieId(f"10.0.0.{number}:3181"))
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            nursery.start_soon(collecting.run)
            while not made.dropped:  # noqa: ASYNC110
                await trio.sleep(300)
            first.append(trio.current_time() - began)
            nursery.cancel_scope.cancel()
    assert all(8640 <= seconds <= 87000 for seconds in first)
    assert max(first) - min(first) > 3600


async def test_surplus_ledger_is_kept_while_somebody_has_its_lock() -> None:
    made = world()
    made.records[4] = Record(bookies=(OTHER,))
    made.locked = {4}
    await collector(made).collect()
    assert made.dropped == []


async def test_surplus_ledger_is_judged_again_once_the_lock_is_there() -> None:
    made = world()
    made.records[4] = Record(bookies=(OTHER,))
    made.on_lock = lambda: made.records.update({4: Record()})
    await collector(made).collect()
    assert made.dropped == []
    assert made.released == [4]


async def test_lock_that_was_lost_deletes_nothing() -> None:
    made = world()
    made.records[4] = Record(bookies=(OTHER,))
    made.held = False
    await collector(made).collect()
    assert made.dropped == []
    assert made.released == [4]


async def test_surplus_ledgers_are_looked_for_once_a_day(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = world()
    collecting = collector(made)
    await collecting.collect()
    made.records[4] = Record(bookies=(OTHER,))
    await collecting.collect()
    assert made.dropped == []
    await trio.sleep(86400)
    await collecting.collect()
    assert made.dropped == [4]


async def test_unfinished_deletion_is_resumed_only_if_the_ledger_is_still_garbage() -> None:
    made = world(local=4)
    made.unfinished = [10, 11, 12, 13]
    made.records[11] = Record(bookies=(OTHER,))
    made.records[12] = Record(bookies=(ME,))
    made.records[13] = Record(bookies=(OTHER,))
    made.locked = {13}
    found = await collector(made).collect()
    assert made.resumed == found.resumed == [10, 11]
    assert made.released == [11, 12]


async def test_questions_are_spread_over_time(autojump_clock: trio.testing.MockClock) -> None:
    made = world(local=50)
    await collector(made, operations_per_second=10).collect()
    gaps = [b - a for a, b in zip(made.operations, made.operations[1:], strict=False)]
    assert len(made.operations) == 50
    assert min(gaps) == pytest.approx(0.1)


async def test_rounds_go_on_and_can_be_forced(autojump_clock: trio.testing.MockClock) -> None:
    made = world()
    collecting = collector(made)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collecting.run)
        await trio.sleep(599)
        assert collecting.rounds == 0
        await trio.sleep(602)
        assert collecting.rounds == 2
        collecting.force()
        await trio.sleep(1)
        assert collecting.rounds == 3
        collecting.is_suspended = True
        await trio.sleep(6000)
        assert collecting.rounds == 3
        nursery.cancel_scope.cancel()


async def test_storage_that_cannot_list_ends_the_round() -> None:
    made = world(missing=[1])
    made.list_ledgers = lambda done: done(LedgerError("index"))  # type: ignore[method-assign]
    assert (await collector(made).collect()).error == "index"
    assert made.dropped == []


# The real metadata, on the store in memory, and the real engine.


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


async def test_store_that_fails_while_asked_directly_deletes_nothing() -> None:
    made = world(missing=[3, 4])

    async def failing(ledger_id: LedgerId) -> bool:
        if ledger_id == 4:
            raise ConnectionLostError("gone")
        return True

    made.is_gone = failing  # type: ignore[method-assign]
    found = await collector(made).collect()
    assert made.dropped == []
    assert "gone" in found.error


async def test_every_round_begins_by_giving_back_locks_that_were_left_over() -> None:
    made = world()
    collecting = collector(made)
    await collecting.collect()
    made.error_after = 0
    await collecting.collect()
    assert made.settled == 2
