"""The periodic checks on bookies of memory: what they find, and what does not end them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from autorecovery.auditor import Auditor
from autorecovery.checks import Checks, CheckSummary, FullCheck
from autorecovery.checks_lists import ReplicasCheck
from autorecovery.checks_placement import PlacementCheck
from autorecovery.config import AuditorConfig
from autorecovery.statistics import AuditorStatistics
from ledger_client.core.commands import Outcome
from ledger_client.core.placement import DefaultPolicy
from ledger_client.requests import FenceReads, Reads, Request
from metadata.faults import Fault
from metadata.model import LedgerState
from metadata.paths import LayoutType, LedgerPaths
from metadata.rereplication_settings import PeriodicCheck
from runtime.metrics import Registry
from tests.autorecovery.auditor_world import ROOT, AuditWorld, bookie, spoilt
from wire.types import BookieId, LedgerId

Clock = trio.testing.MockClock
_ONE = LedgerId(1)


async def full_check(world: AuditWorld) -> tuple[CheckSummary, AuditorStatistics]:
    statistics = AuditorStatistics(Registry())
    async with world.context() as context:
        summary = await FullCheck(Checks(context, statistics)).run()
    return summary, statistics


async def replicas_check(world: AuditWorld) -> tuple[CheckSummary, AuditorStatistics]:
    statistics = AuditorStatistics(Registry())
    async with world.context() as context:
        summary = await ReplicasCheck(Checks(context, statistics)).run()
    return summary, statistics


async def test_a_full_check_of_a_whole_cluster_marks_nothing(autojump_clock: Clock) -> None:
    world = AuditWorld(6)
    world.ledger(1)
    world.ledger(2, (0, (0, 1, 2, 3, 4)), write_quorum=3, entries=1500)
    world.ledger(3, (0, (0, 1, 2)), (5, (1, 2, 3)), entries=11)
    world.ledger(4, entries=0)
    summary, statistics = await full_check(world)
    assert (summary.ledgers, summary.marked, summary.undecided) == (4, 0, 0)
    assert statistics.counts.entries_read == 30 + 3 * 1500 + 33
    assert world.marked() == {}


@pytest.mark.parametrize("entry", [0, 5, 9])
async def test_a_full_check_finds_a_missing_copy_anywhere(
    entry: int, autojump_clock: Clock
) -> None:
    """F47: in the middle, with first and last present."""
    world = AuditWorld()
    world.ledger(1)
    del world.pool.entries[bookie(1)][1, entry]
    await full_check(world)
    assert world.marked() == {1: {bookie(1)}}


async def test_a_full_check_finds_the_hole_that_an_ack_quorum_leaves(
    autojump_clock: Clock,
) -> None:
    """F46: acknowledged by two, failed on the third; found before one of the two is lost."""
    world = AuditWorld()
    world.ledger(1, (0, (0, 1, 2)), entries=300, ack_quorum=2)
    del world.pool.entries[bookie(2)][1, 150]
    await full_check(world)
    assert world.marked() == {1: {bookie(2)}}


async def test_a_full_check_verifies_digests_on_every_replica(autojump_clock: Clock) -> None:
    """F30: the copy is there, and rotten."""
    world = AuditWorld()
    world.ledger(1)
    stored = world.pool.entries[bookie(2)]
    stored[1, 7] = spoilt(stored[1, 7])
    await full_check(world)
    assert world.marked() == {1: {bookie(2)}}


async def test_a_full_check_looks_at_striped_slots_for_their_own_entries_only(
    autojump_clock: Clock,
) -> None:
    world = AuditWorld(5)
    world.ledger(1, (0, (0, 1, 2, 3, 4)), write_quorum=2, entries=700)
    del world.pool.entries[bookie(3)][1, 602]
    await full_check(world)
    assert world.marked() == {1: {bookie(3)}}


async def test_a_ledger_repaired_since_its_record_was_read_is_not_marked(
    autojump_clock: Clock,
) -> None:
    """After a loss, workers are faster than a check that has read the records before."""
    world = AuditWorld(5)
    world.ledger(1)
    world.leave(bookie(0))

    def repair() -> None:
        world.delete_ledger(1)
        world.ledger(1, (0, (3, 1, 2)))

    record = LedgerPaths(ROOT, LayoutType.HIERARCHICAL).path_of(LedgerId(1))
    world.script.add(Fault(meanwhile=repair), verb="sync", path=record)
    await full_check(world)
    assert world.script.is_played_out
    assert world.marked() == {}


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.TOO_MANY_REQUESTS])
async def test_an_overloaded_bookie_is_not_marked(outcome: Outcome, autojump_clock: Clock) -> None:
    """F48: no mass marking because a bookie is busy."""
    world = AuditWorld()
    for number in range(10):
        world.ledger(number)
    world.pool.trouble[bookie(0)] = lambda _: outcome
    summary, statistics = await full_check(world)
    assert world.marked() == {}
    assert summary.undecided == 10
    assert statistics.counts.undecided == 10


async def test_a_bookie_that_recovers_from_its_trouble_is_read_to_the_end(
    autojump_clock: Clock,
) -> None:
    """F48: asked again after a pause, it answers, and its hole is found."""
    world = AuditWorld()
    world.ledger(1)
    del world.pool.entries[bookie(0)][1, 9]
    answers = iter([Outcome.TOO_MANY_REQUESTS, Outcome.TIMEOUT])
    world.pool.trouble[bookie(0)] = lambda _: next(answers, None)
    summary, _ = await full_check(world)
    assert summary.undecided == 0
    assert world.marked() == {1: {bookie(0)}}


async def test_a_bookie_in_limbo_is_not_marked(autojump_clock: Clock) -> None:
    """It says "unknown": its own integrity check will tell."""
    world = AuditWorld()
    world.ledger(1)
    world.pool.trouble[bookie(0)] = lambda _: Outcome.UNKNOWN_STATE
    summary, _ = await full_check(world)
    assert world.marked() == {}
    assert summary.undecided == 1


async def test_an_entry_that_stays_unreadable_on_its_disk_is_marked(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.ledger(1)

    def broken(request: Request) -> Outcome | None:
        return Outcome.IO_ERROR if isinstance(request, Reads) else None

    world.pool.trouble[bookie(0)] = broken
    await full_check(world)
    assert world.marked() == {1: {bookie(0)}}


async def test_the_growing_fragment_is_left_to_its_writer(autojump_clock: Clock) -> None:
    """I22: a hole there is an entry on its way; a mark would get the writer fenced."""
    world = AuditWorld()
    world.ledger(1, (0, (0, 1, 2)), (5, (1, 2, 3)), state=LedgerState.OPEN, entries=10)
    del world.pool.entries[bookie(3)][1, 8]
    await full_check(world)
    assert world.marked() == {}
    del world.pool.entries[bookie(0)][1, 2]  # a settled fragment of the same ledger
    await full_check(world)
    assert world.marked() == {1: {bookie(0)}}


async def test_one_bad_ledger_does_not_end_a_check(autojump_clock: Clock) -> None:
    """Apache's ends at the first that it cannot open, every time."""
    world = AuditWorld()
    world.ledger(1)
    world.plant_record(2, b"BookieMetadataFormatVersion\t9\n")
    world.ledger(3)
    del world.pool.entries[bookie(0)][3, 4]
    summary, _ = await full_check(world)
    assert summary.unreadable == 1
    assert world.marked() == {3: {bookie(0)}}


async def test_a_ledger_deleted_while_it_is_read_is_not_marked(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.ledger(1)

    def delete(_: Request) -> Outcome | None:
        if world.pool.entries[bookie(0)]:
            world.pool.entries[bookie(0)].clear()
            world.delete_ledger(1)
        return None

    world.pool.trouble[bookie(0)] = delete
    await full_check(world)
    assert world.marked() == {}


async def test_a_check_by_sample_always_reads_both_ends(autojump_clock: Clock) -> None:
    settings = AuditorConfig(verified_percent=0)
    world = AuditWorld(auditor=settings)
    world.ledger(1, entries=2000)
    world.ledger(2, entries=2000)
    world.ledger(3, entries=2000)
    del world.pool.entries[bookie(0)][1, 0]
    del world.pool.entries[bookie(0)][2, 1999]
    del world.pool.entries[bookie(0)][3, 1000]
    _, statistics = await full_check(world)
    assert set(world.marked()) == {1, 2}
    assert statistics.counts.entries_read < 9 * 600


async def test_a_check_reads_no_faster_than_allowed(autojump_clock: Clock) -> None:
    world = AuditWorld(auditor=AuditorConfig(check_bytes_per_second=1000))
    world.ledger(1, entries=1000)
    start = trio.current_time()
    await full_check(world)
    bytes_read = 3 * 1000 * 136
    assert trio.current_time() - start > 0.8 * bytes_read / 1000


async def test_an_audit_reads_no_more_records_than_allowed(autojump_clock: Clock) -> None:
    world = AuditWorld(auditor=AuditorConfig(ledgers_per_second=10))
    for number in range(100):
        world.ledger(number, filled=False, entries=0)
    start = trio.current_time()
    await full_check(world)
    assert 8 < trio.current_time() - start < 12


# ---------------------------------------------------------------------- lists


async def test_the_replicas_check_counts_and_marks(autojump_clock: Clock) -> None:
    world = AuditWorld()
    for number in range(5):
        world.ledger(number, ack_quorum=2)
    for lost, number in ((1, 1), (2, 2), (3, 3)):  # copies of entry 5 that are gone, per ledger
        for holder in range(lost):
            del world.pool.entries[bookie(holder)][number, 5]
    summary, statistics = await replicas_check(world)
    assert world.marked() == {
        1: {bookie(0)},
        2: {bookie(0), bookie(1)},
        3: {bookie(0), bookie(1), bookie(2)},
    }
    counts = statistics.counts
    assert (counts.below_write_quorum, counts.below_ack_quorum, counts.no_replica) == (1, 1, 1)
    assert summary.ledgers == 5


async def test_the_replicas_check_counts_absent_bookies_as_missing(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.ledger(1, ack_quorum=2)
    world.leave(bookie(0), bookie(1))
    _, statistics = await replicas_check(world)
    assert statistics.counts.below_ack_quorum == 1
    assert world.marked() == {1: {bookie(0), bookie(1)}}


async def test_the_replicas_check_draws_no_conclusion_from_silence(autojump_clock: Clock) -> None:
    """F48."""
    world = AuditWorld()
    world.ledger(1)
    world.pool.trouble[bookie(0)] = lambda _: Outcome.TIMEOUT
    summary, statistics = await replicas_check(world)
    assert summary.undecided == 1
    assert statistics.counts.below_write_quorum == 0
    assert world.marked() == {}


async def test_the_replicas_check_understands_stripes(autojump_clock: Clock) -> None:
    world = AuditWorld(5)
    world.ledger(1, (0, (0, 1, 2, 3, 4)), write_quorum=3, entries=64)
    summary, _ = await replicas_check(world)
    assert summary.marked == 0
    del world.pool.entries[bookie(4)][1, 33]
    await replicas_check(world)
    assert world.marked() == {1: {bookie(4)}}


# ---------------------------------------------------------------------- placement


class OddPolicy(DefaultPolicy):
    """Wants an odd bookie in every ensemble."""

    def is_placed(self, ensemble: Sequence[BookieId], write_quorum: int, ack_quorum: int) -> bool:
        return any(int(name[2]) % 2 for name in ensemble)


@pytest.mark.parametrize("repairs", [False, True])
async def test_the_placement_check_counts_and_marks_if_wanted(
    repairs: bool, autojump_clock: Clock
) -> None:
    world = AuditWorld(7, policy=OddPolicy(), auditor=AuditorConfig(repairs_placement=repairs))
    world.ledger(1, (0, (0, 2, 4)))
    world.ledger(2, (0, (0, 1, 2)))
    world.ledger(3, (0, (0, 1, 2)), (4, (0, 2, 6)))
    world.ledger(4, (0, (0, 2, 4)), state=LedgerState.OPEN)
    statistics = AuditorStatistics(Registry())
    async with world.context() as context:
        await PlacementCheck(Checks(context, statistics)).run()
    assert statistics.counts.misplaced == 2
    assert world.marked() == ({1: set(), 3: set()} if repairs else {})


# ---------------------------------------------------------------------- when


async def test_a_check_that_never_ran_runs_at_once_and_is_remembered(
    autojump_clock: Clock,
) -> None:
    world = AuditWorld(auditor=AuditorConfig(ledger_check_seconds=3600))
    world.ledger(1)
    del world.pool.entries[bookie(0)][1, 3]
    async with world.context() as context, trio.open_nursery() as nursery:
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        await trio.sleep(10)
        assert world.marked() == {1: {bookie(0)}}
        last = await context.marks.settings.last_check_ms(PeriodicCheck.ALL_LEDGERS)
        assert last == world.now_ms
        nursery.cancel_scope.cancel()


async def test_a_successor_keeps_the_rhythm_of_checks(autojump_clock: Clock) -> None:
    world = AuditWorld(auditor=AuditorConfig(ledger_check_seconds=3600))
    world.ledger(1)
    async with world.context() as context, trio.open_nursery() as nursery:
        settings = context.marks.settings
        await settings.set_last_check_ms(PeriodicCheck.ALL_LEDGERS, world.now_ms - 3_000_000)
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        await trio.sleep(500)
        assert auditor.statistics.counts.ledgers_checked == 0
        world.now_ms += 600_000
        await trio.sleep(200)
        assert auditor.statistics.counts.ledgers_checked == 1
        # `forceauditchecks` sets the time back; the auditor in office notices.
        await settings.set_last_check_ms(PeriodicCheck.ALL_LEDGERS, 0)
        await trio.sleep(700)
        assert auditor.statistics.counts.ledgers_checked == 2
        nursery.cancel_scope.cancel()


async def test_checks_keep_still_while_a_lost_bookie_is_waited_for(autojump_clock: Clock) -> None:
    """Else they would mark what the delay is there to leave alone."""
    settings = AuditorConfig(ledger_check_seconds=3600, lost_bookie_delay_seconds=900)
    world = AuditWorld(auditor=settings)
    world.ledger(1)
    world.leave(bookie(0))
    async with world.context() as context, trio.open_nursery() as nursery:
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        await trio.sleep(600)
        assert world.marked() == {}
        assert auditor.statistics.counts.checks_skipped == 1
        world.join(bookie(0))
        await trio.sleep(10)
        assert auditor.statistics.counts.ledgers_checked == 1
        assert world.marked() == {}
        nursery.cancel_scope.cancel()


async def test_a_check_in_progress_does_not_mark_a_bookie_that_is_waited_for(
    autojump_clock: Clock,
) -> None:
    """F44: the restart falls into a check that has read its records already."""
    settings = AuditorConfig(
        ledger_check_seconds=86_400, lost_bookie_delay_seconds=900, check_bytes_per_second=1000
    )
    world = AuditWorld(auditor=settings)
    for number in range(40):
        world.ledger(number)
    async with world.context() as context, trio.open_nursery() as nursery:
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        await trio.sleep(20)
        before = auditor.statistics.counts.ledgers_checked
        world.leave(bookie(0))
        await trio.sleep(100)
        assert before < auditor.statistics.counts.ledgers_checked < 40
        world.join(bookie(0))
        await trio.sleep(300)
        assert auditor.statistics.counts.ledgers_checked == 40
        assert world.marked() == {}
        nursery.cancel_scope.cancel()


async def test_a_check_stands_still_while_disabled(autojump_clock: Clock) -> None:
    world = AuditWorld(auditor=AuditorConfig(ledger_check_seconds=3600))
    world.ledger(1)
    del world.pool.entries[bookie(0)][1, 3]
    async with world.context() as context, trio.open_nursery() as nursery:
        settings = context.marks.settings
        await settings.disable()
        nursery.start_soon(Auditor(context).run)
        await trio.sleep(300)
        assert world.marked() == {}
        assert await settings.last_check_ms(PeriodicCheck.ALL_LEDGERS) is None
        await settings.enable()
        await trio.sleep(5)
        assert world.marked() == {1: {bookie(0)}}
        nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------- stale recoveries


async def test_a_recovery_that_nobody_finishes_is_finished(autojump_clock: Clock) -> None:
    """F56."""
    settings = AuditorConfig(ledger_check_seconds=0, stale_recovery_seconds=600)
    world = AuditWorld(auditor=settings)
    world.ledger(1, state=LedgerState.IN_RECOVERY, entries=10)
    async with world.context() as context, trio.open_nursery() as nursery:
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        await trio.sleep(590)
        assert (await context.client.ledgers.read(_ONE)).metadata.state is LedgerState.IN_RECOVERY
        await trio.sleep(20)
        metadata = (await context.client.ledgers.read(_ONE)).metadata
        assert metadata.is_closed
        assert (metadata.last_entry_id, metadata.length) == (9, 1000)
        assert auditor.statistics.counts.recoveries_finished == 1
        nursery.cancel_scope.cancel()


async def test_a_recovery_that_cannot_be_finished_is_tried_again(autojump_clock: Clock) -> None:
    """F55, F56: two of three bookies of the last ensemble are away."""
    settings = AuditorConfig(ledger_check_seconds=0, stale_recovery_seconds=60)
    world = AuditWorld(auditor=settings)
    world.ledger(1, state=LedgerState.IN_RECOVERY, entries=10)
    for number in (0, 1):
        world.pool.trouble[bookie(number)] = lambda _: Outcome.NOT_CONNECTED
    async with world.context() as context, trio.open_nursery() as nursery:
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        await trio.sleep(200)
        assert auditor.statistics.counts.recoveries_failed >= 1
        assert auditor.statistics.counts.stale_recoveries == 1
        world.pool.trouble.clear()
        await trio.sleep(600)
        assert (await context.client.ledgers.read(_ONE)).metadata.is_closed
        assert auditor.statistics.counts.stale_recoveries == 0
        nursery.cancel_scope.cancel()


async def test_open_ledgers_are_never_recovered_by_the_auditor(autojump_clock: Clock) -> None:
    """I22."""
    settings = AuditorConfig(ledger_check_seconds=3600, stale_recovery_seconds=1)
    world = AuditWorld(auditor=settings)
    world.ledger(1, state=LedgerState.OPEN)
    async with world.context() as context, trio.open_nursery() as nursery:
        auditor = Auditor(context)
        nursery.start_soon(auditor.run)
        await trio.sleep(100)
        assert (await context.client.ledgers.read(_ONE)).metadata.state is LedgerState.OPEN
        assert auditor.statistics.counts.stale_recoveries == 0
        assert not any(isinstance(request, FenceReads) for _, request in world.pool.requests)
        nursery.cancel_scope.cancel()
