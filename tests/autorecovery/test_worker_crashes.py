"""A worker that dies at every step, loses its session, loses answers: what it leaves is sound.

At any moment the record names only bookies that hold all they must (or are gone), and the mark is
there as long as a copy is missing. Whoever comes next finishes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from autorecovery.config import WorkerConfig
from autorecovery.context import RecoveryContext
from autorecovery.worker_repair import CommitCopies
from metadata.faults import Fault, Outcome
from metadata.model import LedgerState
from metadata.paths import LayoutType, LedgerPaths
from metadata.store import SessionId
from metadata.update import MetadataConflictError
from tests.autorecovery.auditor_world import ROOT
from tests.autorecovery.worker_world import PATHS, RepairWorld, bookie, until
from wire.types import LedgerId

Clock = trio.testing.MockClock

RECORD = LedgerPaths(ROOT, LayoutType.HIERARCHICAL).path_of(LedgerId(1))
MARK = PATHS.mark(LedgerId(1))
LOCK = PATHS.lock(LedgerId(1))


def closed_world() -> RepairWorld:
    world = RepairWorld(6)
    world.ledger(1, (0, (0, 1, 2, 3)), (20, (0, 3, 2, 1)), entries=40, write_quorum=3)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    return world


def open_world() -> RepairWorld:
    """Recovery is among the steps, too."""
    world = RepairWorld(6, worker=WorkerConfig(open_grace_ms=100))
    world.ledger(1, (0, (0, 1, 2)), entries=2, state=LedgerState.OPEN)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])
    return world


def check_sound(world: RepairWorld) -> None:
    assert not world.incomplete(1), "the record names a bookie that lacks entries"
    assert world.is_whole(1) or world.marked(), "the mark is gone, and a copy is missing"


async def steps_of(make: Callable[[], RepairWorld]) -> list[int]:
    """The steps of a repair at which to die: all but most of the reads, of which there are many."""
    world = make()
    await world.heal()
    reads = [i for i, name in enumerate(world.steps) if name.startswith("Reads")]
    skipped = set(reads) - set(reads[:: max(1, len(reads) // 8)])
    return [step for step in range(len(world.steps)) if step not in skipped]


@pytest.mark.parametrize("make", [closed_world, open_world])
async def test_worker_killed_at_any_step_leaves_a_sound_ledger(
    autojump_clock: Clock, make: Callable[[], RepairWorld]
) -> None:
    """F45: before and after every request to a bookie, and with every request to the store."""
    steps = await steps_of(make)
    assert len(steps) > 30
    for step in steps:
        world = make()
        world.crash_at = step
        await world.work_until(lambda w=world: not w.marked())  # type: ignore[misc]
        assert len(world.steps) > step
        check_sound(world)
        world.crash_at = None
        await world.heal(number=8)
        assert world.is_whole(1)
        assert world.record(1).last_entry_id in (1, 39)


async def test_session_lost_at_any_step_leaves_a_sound_ledger(autojump_clock: Clock) -> None:
    """F34: the worker lives on; what it does without its lock must not count."""
    steps = await steps_of(closed_world)
    for step in steps:
        world = closed_world()
        world.on_step = _expire_at(world, step)
        await world.work_until(lambda w=world: not w.marked())  # type: ignore[misc]
        check_sound(world)
        assert world.is_whole(1)


def _expire_at(world: RepairWorld, step: int) -> Callable[[int], None]:
    def expire(number: int) -> None:
        if number == step and world.worker_session is not None:
            world.metadata.expire(SessionId(world.worker_session))
            check_sound(world)

    return expire


async def test_commit_without_the_lock_is_refused(autojump_clock: Clock) -> None:
    """F34: the session ends just before the commit, and the worker does not know it."""
    world = closed_world()
    before = world.record(1)
    refused = False

    def expire() -> None:
        nonlocal refused
        assert world.worker_session is not None
        world.metadata.expire(SessionId(world.worker_session), silently=True)
        refused = True

    world.script.add(Fault(meanwhile=expire), verb="set", path=RECORD)
    await world.work_until(lambda: refused)
    assert world.record(1) == before
    await world.heal(number=8)
    assert world.is_whole(1)


async def test_copy_stops_when_the_lock_is_lost(autojump_clock: Clock) -> None:
    """F34: whoever has the lock now may give the same bookie up as a target."""
    world = RepairWorld(6, worker=WorkerConfig(bytes_per_second=100_000))
    world.ledger(1, entries=6000)
    world.leave(bookie(0))
    world.mark(1, [bookie(0)])

    async def expire(context: RecoveryContext) -> None:
        await until(lambda: "Adds after" in world.steps)
        assert world.worker_session is not None
        await context.marks.settings.disable()  # it must not simply begin again
        await trio.sleep(2)
        world.metadata.expire(SessionId(world.worker_session))
        lost_at = trio.current_time()
        await trio.sleep(10)
        late = [name for name in world.steps_since(lost_at + 0.01) if name.startswith("Adds")]
        assert not late
        await context.marks.settings.enable()

    worker = await world.work_until(lambda: not world.marked(), beside=expire)
    assert worker.statistics.locks_lost == 1
    assert world.is_whole(1)


def test_commit_is_for_the_range_that_was_copied() -> None:
    """A fragment that ends elsewhere by now holds entries that nobody has copied."""
    world = closed_world()
    metadata = world.record(1)
    swap = {0: (bookie(0), bookie(5))}
    good = CommitCopies(first_entry_id=0, last_entry_id=19, replacements=swap).apply(metadata)
    assert good is not None
    assert good.fragments[0].ensemble[0] == bookie(5)
    assert good.fragments[1] == metadata.fragments[1]
    for first, last in ((0, 18), (0, 39), (1, 19)):
        with pytest.raises(MetadataConflictError):
            CommitCopies(first_entry_id=first, last_entry_id=last, replacements=swap).apply(
                metadata
            )
    done = CommitCopies(first_entry_id=0, last_entry_id=19, replacements=swap).apply(good)
    assert done is None, "what is done already is not done again"


@pytest.mark.parametrize("outcome", [Outcome.ANSWER_LOST, Outcome.REQUEST_LOST])
@pytest.mark.parametrize(
    ("verb", "path"), [("set", RECORD), ("delete", MARK), ("create", LOCK), ("delete", LOCK)]
)
async def test_lost_answer_of_the_store_does_no_harm(
    autojump_clock: Clock, outcome: Outcome, verb: str, path: str
) -> None:
    """F15."""
    world = closed_world()
    world.script.add(Fault(outcome=outcome), verb=verb, path=path)  # type: ignore[arg-type]
    await world.heal()
    await world.work_until(lambda: world.metadata.tree.find(LOCK) is None)
    assert world.is_whole(1)
    assert len(world.record(1).fragments) == 2


@pytest.mark.parametrize("begins", ["Reads before", "Adds after"])
async def test_store_away_for_a_minute_delays_and_loses_nothing(
    autojump_clock: Clock, begins: str
) -> None:
    world = closed_world()
    back_at = 0.0

    async def lose_store(context: object) -> None:
        nonlocal back_at
        await until(lambda: begins in world.steps)
        world.store_is_away = True
        await trio.sleep(60)
        world.store_is_away = False
        back_at = trio.current_time()

    await world.work_until(lambda: back_at > 0 and not world.marked(), beside=lose_store)
    assert world.is_whole(1)


async def test_two_workers_at_once_repair_each_ledger_once(autojump_clock: Clock) -> None:
    world = RepairWorld(6)
    for ledger_id in range(1, 21):
        world.ledger(ledger_id, (0, (0, 1, 2)), entries=5)
        world.mark(ledger_id, [bookie(0)])
    world.leave(bookie(0))

    async def another(context: object) -> None:
        await world.second_worker(7)

    await world.work_until(lambda: not world.marked(), beside=another)
    for ledger_id in range(1, 21):
        assert world.is_whole(ledger_id)
        commits = [
            s
            for s in world.steps
            if s.startswith("store set")
            and s.endswith(LedgerPaths(ROOT, LayoutType.HIERARCHICAL).path_of(LedgerId(ledger_id)))
        ]
        assert len(commits) == 1


async def test_bookie_that_loses_its_registration_only_is_still_replaced(
    autojump_clock: Clock,
) -> None:
    world = closed_world()

    async def come_back(context: object) -> None:
        await until(lambda: "Adds before" in world.steps)
        world.join(bookie(0))
        world.metadata.publish()

    await world.work_until(lambda: not world.marked(), beside=come_back)
    check_sound(world)
