"""Locks: who may repair which ledger, and what that is worth after a lost session."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from metadata.codec import encode_ledger_metadata
from metadata.faults import Fault, Outcome
from metadata.ledgers import Ledgers
from metadata.model import new_ledger
from metadata.paths import LayoutType
from metadata.store import ANY_VERSION, ConnectionLostError, SessionExpiredError
from metadata.underreplication import Lock
from metadata.update import Backoff, ReplaceBookies
from tests.metadata.marks_world import (
    CAPTURED,
    PATHS,
    ROOT,
    A,
    B,
    C,
    World,
    manager,
    take,
    writes_below,
)
from tests.metadata.places import Place, dump, place, planted
from wire.types import DigestType, LedgerId

__all__ = ["place"]


async def test_a_repair_writes_what_java_writes() -> None:
    """Lock, delete the mark, prune its directories, release: in this order (captured run)."""
    sequence = next(s for s in CAPTURED["sequences"] if s["name"].startswith("bookies come back"))
    session, ledger_id = "s2", 8
    name = f"urL{ledger_id:010d}"
    expected = [
        write
        for write in writes_below(
            [op for op in sequence["ops"] if op.get("session") == session], "/underreplication/"
        )
        if name in write[1] or write[1].endswith(f"/0000/{ledger_id:04x}")
    ]
    assert [op for op, _, _ in expected] == ["create", "delete", "delete", "delete"]

    world = World()
    await world.other.mark(LedgerId(ledger_id), [A])
    await world.other.mark(LedgerId(9), [A])  # so that upper directories stay
    world.requests.clear()
    lock = await world.mine.lock(LedgerId(ledger_id))
    assert lock is not None
    data = world.metadata.tree.get(PATHS.lock(LedgerId(ledger_id))).data
    mark = await world.mine.read_mark(LedgerId(ledger_id))
    assert await world.mine.finish(Lock(lock.ledger_id, lock.session, mark))
    written = [(r.verb, r.path) for r in world.requests if r.writes]
    assert written == [(op, ROOT + "/" + path.split("/", 2)[2]) for op, path, _ in expected]
    assert data.hex() == expected[0][2]


async def test_finishing_leaves_an_empty_tree(place: Place) -> None:
    async with place.connected() as store:
        await store.create(place.root)
        under = manager(store, place.root)
        await under.open()
        empty = await dump(store, place.root)
        for number in (5, 4294967296):
            await under.mark(LedgerId(number), [A, B])
        seen = set()
        for _ in range(2):
            lock = await take(under)
            assert lock.mark is not None
            assert lock.mark.content.replicas == (A, B)
            assert lock.session == store.session
            seen.add(lock.ledger_id)
            assert await under.finish(lock)
        assert seen == {5, 4294967296}
        assert await under.try_acquire() is None
        assert await dump(store, place.root) == empty


async def test_a_lock_keeps_others_away_until_released(place: Place) -> None:
    async with place.connected() as one, place.connected() as two:
        await one.create(place.root)
        mine, theirs = manager(one, place.root), manager(two, place.root, owner="elsewhere")
        await mine.open()
        await mine.mark(LedgerId(5), [A])
        lock = await take(mine)
        assert await theirs.try_acquire() is None
        assert await theirs.lock(LedgerId(5)) is None
        assert await mine.lock(LedgerId(5)) is None
        assert await mine.holder(LedgerId(5)) == "localhost"
        await mine.release(lock)
        assert await mine.holder(LedgerId(5)) is None
        second = await theirs.lock(LedgerId(5))
        assert second is not None
        assert await mine.holder(LedgerId(5)) == "elsewhere"


async def test_workers_share_the_ledgers_out() -> None:
    world = World()
    numbers = [0, 1, 65536, 4294967296, 2**40]
    for number in numbers:
        await world.mine.mark(LedgerId(number), [A])
    taken = [(await take(under)).ledger_id for under in (world.mine, world.other) * 2]
    taken.append((await take(world.mine)).ledger_id)
    assert sorted(taken) == numbers
    assert await world.mine.try_acquire() is None


async def test_the_order_is_by_chance() -> None:
    world = World()
    for number in range(20):
        await world.mine.mark(LedgerId(number), [A])
    orders = set()
    for seed in range(5):
        under = manager(world.metadata.connect(), seed=seed)
        locks = [await take(under) for _ in range(20)]
        orders.add(tuple(lock.ledger_id for lock in locks))
        for lock in locks:
            await under.release(lock)
    assert len(orders) == 5


async def test_picking_reads_little_when_nothing_changed() -> None:
    """Lists are kept with their watches: a pick costs a look at the mark, a lock, a read."""
    world = World()
    for number in range(50):
        await world.other.mark(LedgerId(number), [A])
    first = await take(world.mine)
    world.requests.clear()
    await take(world.mine)
    verbs = [request.verb for request in world.requests if request.verb != "open"]
    # The list of locks is read again, since our own lock changed it.
    assert verbs == ["children", "exists", "create", "get"]
    assert first.mark is not None


async def test_a_mark_extended_under_the_lock_survives() -> None:
    """A second bookie is lost while the worker copies (F41)."""
    world = World()
    await world.other.mark(LedgerId(5), [A])
    lock = await take(world.mine)
    await world.other.mark(LedgerId(5), [B])
    assert not await world.mine.finish(lock)
    assert world.mark_of(5) is not None
    assert not world.is_locked(5), "the lock is released all the same"
    again = await take(world.mine)
    assert again.mark is not None
    assert again.mark.content.replicas == (A, B)
    assert await world.mine.finish(again)
    assert world.mark_of(5) is None


async def test_a_mark_that_is_gone_is_finished() -> None:
    world = World()
    await world.other.mark(LedgerId(5), [A])
    lock = await take(world.mine)
    await world.other_store.delete(PATHS.mark(LedgerId(5)), version=ANY_VERSION)
    assert await world.mine.finish(lock)
    assert not world.is_locked(5)


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_finishing_survives_a_lost_answer(
    outcome: Outcome, autojump_clock: trio.testing.MockClock
) -> None:
    world = World()
    await world.other.mark(LedgerId(5), [A])
    lock = await take(world.mine)
    world.script.add(Fault(outcome=outcome), verb="delete", path=PATHS.mark(LedgerId(5)))
    assert await world.mine.finish(lock)
    assert world.script.is_played_out
    assert world.mark_of(5) is None
    assert not world.is_locked(5)


async def test_a_new_mark_is_not_deleted_by_the_repetition_of_a_lost_delete(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Our delete was applied, the answer lost; a new mark has version 0, like the old one had."""
    world = World()
    path = PATHS.mark(LedgerId(5))
    await world.other.mark(LedgerId(5), [A])
    lock = await take(world.mine)
    assert lock.mark is not None
    assert lock.mark.version == 0
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="delete", path=path)
    world.script.add(
        Fault(meanwhile=lambda: planted(world.metadata, [path], b'replica: "bk2:3181"\n')),
        verb="sync",
        path=path,
    )
    assert not await world.mine.finish(lock)
    assert world.script.is_played_out
    assert world.mark_of(5) == b'replica: "bk2:3181"\n'


async def test_a_lock_whose_answer_was_lost_is_given_back_by_one_who_never_picks_work() -> None:
    """A bookie that drops surplus copies: its session, and with it the lock, would last long."""
    world = World()
    path = PATHS.lock(LedgerId(5))
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create", path=path)
    with pytest.raises(ConnectionLostError):
        await world.mine.lock(LedgerId(5))
    assert world.is_locked(5)
    await world.mine.settle()
    assert not world.is_locked(5)


async def test_a_release_that_was_cut_short_is_made_up_for() -> None:
    """A collector gives it five seconds; a store that hangs takes longer."""
    world = World()
    lock = await world.mine.lock(LedgerId(5))
    assert lock is not None
    with trio.CancelScope() as hurry:
        hurry.cancel()
        await world.mine.release(lock)
    assert world.is_locked(5)
    await world.mine.settle()
    assert not world.is_locked(5)
    assert await world.mine.lock(LedgerId(5)) is not None


# ---------------------------------------------------------------------- sessions


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_a_lock_whose_answer_was_lost_can_be_taken_by_the_one_who_asked(
    outcome: Outcome,
) -> None:
    """Or who waits for it waits for a lock that is its own (simulation, outer ring, seed 150)."""
    world = World()
    world.script.add(Fault(outcome=outcome), verb="create", path=PATHS.lock(LedgerId(5)))
    with pytest.raises(ConnectionLostError):
        await world.mine.lock(LedgerId(5))
    assert await world.mine.lock(LedgerId(5)) is not None
    assert world.is_locked(LedgerId(5))


async def test_a_lock_that_was_just_taken_is_not_given_back_as_a_doubtful_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """While somebody is about to delete the doubtful one, another task takes the ledger."""
    world = World()
    path = PATHS.lock(LedgerId(5))
    world.script.add(Fault(outcome=Outcome.ANSWER_LOST), verb="create", path=path)
    with pytest.raises(ConnectionLostError):
        await world.mine.lock(LedgerId(5))
    world.script.add(Fault(request_seconds=1.0), verb="delete", path=path)
    locks: list[Lock | None] = []

    async def take_it() -> None:
        await trio.sleep(0.5)
        locks.append(await world.mine.lock(LedgerId(5)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.mine.settle)
        nursery.start_soon(take_it)
    assert locks != [None]
    assert world.is_locked(LedgerId(5))


async def test_nothing_is_done_under_a_lock_that_is_lost(place: Place) -> None:
    async with place.connected() as one, place.connected() as two:
        await one.create(place.root)
        mine, theirs = manager(one, place.root), manager(two, place.root, owner="elsewhere")
        await mine.open()
        await mine.mark(LedgerId(5), [A])
        lock = await take(mine)
        await place.expire(one)
        with trio.fail_after(20):
            await mine.wait_lost(lock)
        assert await take(theirs) is not None
        with pytest.raises(SessionExpiredError):
            await mine.finish(lock)
        assert await theirs.marked() == [5]
        assert await mine.holder(LedgerId(5)) == "elsewhere"


async def test_a_lock_goes_with_its_session(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    await world.other.mark(LedgerId(5), [A])
    lock = await take(world.mine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.mine.wait_lost, lock)
        await trio.testing.wait_all_tasks_blocked()
        world.expire()
    theirs = await take(world.other)
    assert theirs.ledger_id == 5

    await world.mine.release(lock)
    assert world.is_locked(5), "theirs, and none of our business"
    with pytest.raises(SessionExpiredError):
        await world.mine.finish(lock)
    assert world.mark_of(5) is not None
    assert world.is_locked(5)


async def test_a_commit_under_a_lost_lock_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The worker does not know yet that its session is over; the store does (F34)."""
    world = World()
    closed = new_ledger(
        ledger_id=LedgerId(5),
        ensemble=[A, B],
        write_quorum=2,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
    ).closed_at(last_entry_id=3, length=30)
    ledgers = Ledgers(world.store, ROOT, LayoutType.HIERARCHICAL, chance=random.Random(1))
    path = ledgers.paths.path_of(LedgerId(5))
    planted(world.metadata, [path], encode_ledger_metadata(closed))
    await world.other.mark(LedgerId(5), [A])
    lock = await take(world.mine)
    known = await ledgers.read(LedgerId(5))
    world.expire(silently=True)
    assert world.store.session == lock.session, "it has not heard of it"
    update = ReplaceBookies(first_entry_id=0, replacements={0: (A, C)})
    with pytest.raises(SessionExpiredError):
        await ledgers.update(LedgerId(5), update, known=known, session=lock.session)
    assert world.metadata.tree.get(path).version == 0


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
async def test_a_lock_of_unknown_end_does_not_stay_in_the_way(
    outcome: Outcome, autojump_clock: trio.testing.MockClock
) -> None:
    """It is ours and nobody knows: without a second look no worker would ever take the ledger."""
    world = World()
    await world.other.mark(LedgerId(5), [A])
    world.script.add(Fault(outcome=outcome), verb="create", path=PATHS.lock(LedgerId(5)))
    with pytest.raises(ConnectionLostError):
        await world.mine.try_acquire()
    assert world.is_locked(5) == (outcome is Outcome.ANSWER_LOST)
    lock = await take(world.mine)
    assert lock.ledger_id == 5
    assert await world.mine.finish(lock)


async def test_a_release_that_failed_is_made_up_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    under = manager(world.store, backoff=Backoff(attempts_max=3))
    await world.other.mark(LedgerId(5), [A])
    lock = await take(under)
    world.script.add(
        Fault(outcome=Outcome.UNAVAILABLE), verb="delete", path=PATHS.lock(LedgerId(5)), times=3
    )
    await under.release(lock)
    assert world.is_locked(5)
    assert (await take(under)).ledger_id == 5


async def test_a_mark_that_vanishes_before_the_lock_gives_the_lock_back() -> None:
    world = World()
    path = PATHS.mark(LedgerId(5))
    await world.other.mark(LedgerId(5), [A])

    def vanish() -> None:
        world.metadata.tree.delete(path, ANY_VERSION)
        world.metadata.publish()

    world.script.add(Fault(meanwhile=vanish), verb="create", path=PATHS.lock(LedgerId(5)))
    assert await world.mine.try_acquire() is None
    assert world.script.is_played_out
    assert not world.is_locked(5)


async def test_sample_names_marked_ledgers_that_are_not_locked() -> None:
    world = World()
    for number in (1, 2, 70_000, 70_001, 2**40):
        await world.other.mark(LedgerId(number), [A])
    locked = await world.other.take(LedgerId(70_000))
    assert locked is not None
    assert sorted(await world.mine.sample(10)) == [1, 2, 70_001, 2**40]
    assert len(await world.mine.sample(2)) == 2
    assert await world.mine.take(LedgerId(70_000)) is None
    assert await world.mine.take(LedgerId(3)) is None, "not marked"
    taken = await world.mine.take(LedgerId(2))
    assert taken is not None
    assert taken.mark is not None
    assert sorted(await world.mine.sample(10)) == [1, 70_001, 2**40]


async def test_waiting_after_a_sample_ends_with_the_next_mark(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    assert await world.mine.sample(10) == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.other.mark, LedgerId(5), [A])
        await world.mine.wait_for_work()
    assert await world.mine.sample(10) == [5]


async def crowded() -> World:
    """So many marks that deleting one leaves the directories above as they are."""
    world = World()
    for number in range(120):
        await world.other.mark(LedgerId(number), [A])
    await world.mine.sample(1)
    return world


async def test_one_of_many_is_finished_in_one_transaction() -> None:
    world = await crowded()
    lock = await world.mine.take(LedgerId(7))
    assert lock is not None
    world.requests.clear()
    assert await world.mine.finish(lock)
    assert [request.verb for request in world.requests if request.writes] == ["transact"]
    assert world.mark_of(7) is None
    assert not world.is_locked(7)
    assert world.metadata.tree.find(PATHS.mark_parents(LedgerId(7))[0]) is None
    again = await world.mine.lock(LedgerId(7))
    assert again is not None, "nobody remembers the lock as held"


async def test_mark_that_grew_stays_also_among_many() -> None:
    world = await crowded()
    lock = await world.mine.take(LedgerId(7))
    assert lock is not None
    await world.other.mark(LedgerId(7), [B])
    assert not await world.mine.finish(lock)
    assert world.mark_of(7) is not None
    assert not world.is_locked(7)


@pytest.mark.parametrize("is_applied", [True, False])
async def test_lost_answer_among_many_deletes_no_later_mark(
    autojump_clock: trio.testing.MockClock, is_applied: bool
) -> None:
    """I21: the new mark has the same version as the one that was deleted."""
    world = await crowded()
    lock = await world.mine.take(LedgerId(7))
    assert lock is not None
    outcome = Outcome.ANSWER_LOST if is_applied else Outcome.REQUEST_LOST
    world.script.add(Fault(outcome=outcome), verb="transact")

    async def mark_again() -> None:
        await world.other.mark(LedgerId(7), [C])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.mine.finish, lock)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(mark_again)
    found = await world.other.read_mark(LedgerId(7))
    assert found is not None
    assert C in found.content.replicas
    assert not world.is_locked(7)


async def test_lost_session_among_many_finishes_nothing() -> None:
    world = await crowded()
    lock = await world.mine.take(LedgerId(7))
    assert lock is not None
    world.expire()
    with pytest.raises(SessionExpiredError):
        await world.mine.finish(lock)
    assert world.mark_of(7) is not None
