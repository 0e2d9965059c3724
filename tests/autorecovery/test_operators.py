"""What operators ask and order, on a cluster in memory."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from autorecovery import operators
from autorecovery.auditor import Auditor
from autorecovery.core.parking import Reason, Verdict
from autorecovery.operators import RefusedError, safe_to_stop
from metadata.model import LedgerState
from metadata.rereplication_settings import AlreadyDisabledError, AlreadyEnabledError
from tests.autorecovery.auditor_world import NOW_MS, AuditWorld, bookie
from wire.types import LedgerId

Clock = trio.testing.MockClock
ONE, TWO = LedgerId(1), LedgerId(2)


# ---------------------------------------------------------------------- listing


async def test_marked_ledgers_are_listed_with_reasons(autojump_clock: Clock) -> None:
    world = AuditWorld()
    for number in range(1, 5):
        world.ledger(number)
    async with world.context() as context, world.context(8) as other:
        for number in range(1, 5):
            await context.marks.mark(LedgerId(number), [bookie(0)])
        await other.marks.lock(LedgerId(2))
        verdict = Verdict(reason=Reason.NO_SOURCE, waits_for=(bookie(0),))
        await context.parking.park(LedgerId(3), verdict)
        await context.parking.park(LedgerId(4), Verdict(reason=Reason.LOST, lost=((2, 4),)))
        await operators.accept_loss(context, LedgerId(4))
        found = [row async for row in operators.under_replicated(context)]
    assert [(row.ledger_id, row.reason) for row in found] == [
        (1, "waiting for a worker"),
        (2, "being restored by here"),
        (3, "no source: waiting for bk0:3181"),
        (4, "unrecoverable: these entries are lost: 2-4 (accepted)"),
    ]
    assert found[0].missing == (bookie(0),)
    assert found[0].marked_ms == NOW_MS


async def test_the_list_can_be_filtered_by_bookie(autojump_clock: Clock) -> None:
    world = AuditWorld()
    async with world.context() as context:
        await context.marks.mark(ONE, [bookie(0)])
        await context.marks.mark(TWO, [bookie(0), bookie(1)])

        async def listed(**filters: object) -> list[int]:
            rows = operators.under_replicated(context, **filters)  # type: ignore[arg-type]
            return [row.ledger_id async for row in rows]

        assert await listed(missing=bookie(1)) == [2]
        assert await listed(excluding=bookie(1)) == [1]
        assert await listed(missing=bookie(0)) == [1, 2]


async def test_status_tells_who_audits_and_what_is_left(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.ledger(1)
    async with world.context() as context:
        before = await operators.status(context)
        assert (before.is_enabled, before.auditor, before.delay_seconds) == (True, None, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Auditor(context).run)
            await trio.sleep(1)
            world.leave(bookie(0))
            await trio.sleep(1)
            now = await operators.status(context)
            nursery.cancel_scope.cancel()
    assert (now.auditor, now.delay_seconds) == (bookie(9), 0)
    assert (now.forecast.ledgers, now.forecast.fragments, now.forecast.bytes_left) == (1, 1, 1000)


async def test_a_forecast_is_followed_to_the_end(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.ledger(1)
    world.ledger(2)
    world.leave(bookie(0))
    async with world.context() as context:
        for ledger_id in (ONE, TWO):
            await context.marks.mark(ledger_id, [bookie(0)])
        seen = []
        async for forecast in operators.follow_forecast(context):
            seen.append((forecast.ledgers, forecast.seconds_left))
            lock = await context.marks.try_acquire()
            if lock is not None:
                await context.marks.finish(lock)
    assert seen == [(2, None), (1, 5.0), (0, 0.0)]


# ---------------------------------------------------------------------- may I stop it?


async def test_stopping_one_of_three_is_safe_with_an_ack_quorum_of_two(
    autojump_clock: Clock,
) -> None:
    world = AuditWorld()
    world.ledger(1, ack_quorum=2)
    async with world.context() as context:
        answer = await safe_to_stop(context, bookie(0))
    assert answer.is_safe
    assert answer.ledgers == 1
    assert answer.text == "safe: all 1 ledgers on bk0:3181 keep their ack quorum"


async def test_stopping_another_one_is_not(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.ledger(1, (0, (0, 1, 2)), ack_quorum=2)
    world.ledger(2, (0, (1, 2, 3)), ack_quorum=2)
    world.leave(bookie(1))
    async with world.context() as context:
        answer = await safe_to_stop(context, bookie(0))
    assert not answer.is_safe
    assert [(found.ledger_id, found.copies) for found in answer.named] == [(1, 1)]
    assert answer.text == (
        "not safe to stop bk0:3181: 1 ledgers would be below their ack quorum (1)"
    )


async def test_copies_known_to_be_missing_do_not_count(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.ledger(1, ack_quorum=2)
    async with world.context() as context:
        await context.marks.mark(ONE, [bookie(1)])  # alive, with a hole
        answer = await safe_to_stop(context, bookie(0))
    assert [found.ledger_id for found in answer.named] == [1]


async def test_a_single_copy_is_never_safe(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.ledger(1, (0, (0,)), ack_quorum=1)
    world.ledger(2, (0, (0,)), ack_quorum=1, entries=0)
    async with world.context() as context:
        answer = await safe_to_stop(context, bookie(0))
    assert (answer.ledgers, answer.below_ack_quorum, answer.unreadable) == (2, 1, 1)


async def test_writers_need_enough_bookies(autojump_clock: Clock) -> None:
    world = AuditWorld(3)
    world.ledger(1, ack_quorum=2, state=LedgerState.OPEN)
    async with world.context() as context:
        answer = await safe_to_stop(context, bookie(0))
    assert not answer.is_safe
    assert "writers need ensembles of 3 bookies, 2 would be left" in answer.text


async def test_an_unreadable_record_makes_no_promise(autojump_clock: Clock) -> None:
    world = AuditWorld()
    world.plant_record(1, b"nonsense")
    async with world.context() as context:
        answer = await safe_to_stop(context, bookie(0))
    assert not answer.is_safe
    assert "1 records cannot be read" in answer.text


# ---------------------------------------------------------------------- orders


async def test_re_replication_is_paused_and_resumed(autojump_clock: Clock) -> None:
    world = AuditWorld()
    async with world.context() as context:
        await operators.disable(context)
        assert not (await operators.status(context)).is_enabled
        with pytest.raises(AlreadyDisabledError):
            await operators.disable(context)
        await operators.enable(context)
        with pytest.raises(AlreadyEnabledError):
            await operators.enable(context)


async def test_an_audit_is_not_ordered_from_nobody(autojump_clock: Clock) -> None:
    world = AuditWorld()
    async with world.context() as context:
        with pytest.raises(RefusedError, match="nobody is auditor"):
            await operators.trigger_audit(context)
        await operators.disable(context)
        with pytest.raises(RefusedError, match="disabled"):
            await operators.trigger_audit(context)


async def test_an_ordered_audit_names_the_auditor(autojump_clock: Clock) -> None:
    world = AuditWorld()
    async with world.context() as context, trio.open_nursery() as nursery:
        nursery.start_soon(Auditor(context).run)
        await trio.sleep(1)
        assert await operators.who_is_auditor(context) == bookie(9)
        assert await operators.trigger_audit(context) == bookie(9)
        nursery.cancel_scope.cancel()


async def test_a_loss_is_accepted_only_after_the_verdict(autojump_clock: Clock) -> None:
    world = AuditWorld()
    async with world.context() as context:
        with pytest.raises(RefusedError, match="ledger 1 has no verdict"):
            await operators.accept_loss(context, ONE)
        away = Verdict(reason=Reason.NO_SOURCE, waits_for=(bookie(0),))
        await context.parking.park(ONE, away)
        with pytest.raises(RefusedError, match=r"not lost but stuck.*start bk0:3181 again"):
            await operators.accept_loss(context, ONE)
        await context.parking.park(ONE, Verdict(reason=Reason.LOST, lost=((3, 5),)))
        parked = await operators.accept_loss(context, ONE)
        assert parked.is_accepted
        assert parked == await context.parking.read(ONE)


# ---------------------------------------------------------------------- verdicts in the store


async def test_an_accepted_loss_stays_accepted_unless_it_grows(autojump_clock: Clock) -> None:
    world = AuditWorld()
    async with world.context() as context:
        parking = context.parking
        await parking.park(ONE, Verdict(reason=Reason.LOST, lost=((3, 5),)))
        await parking.accept(ONE)
        same = await parking.park(ONE, Verdict(reason=Reason.LOST, lost=((4, 4),), detail="less"))
        assert same.is_accepted
        await parking.park(ONE, Verdict(reason=Reason.LOST, lost=((3, 5),)))
        grown = await parking.park(ONE, Verdict(reason=Reason.LOST, lost=((3, 6),)))
        assert not grown.is_accepted


async def test_verdicts_without_marks_are_dropped(autojump_clock: Clock) -> None:
    """Apache's worker restored it, deleted its mark, and knows nothing of ours."""
    world = AuditWorld()
    world.ledger(1)
    world.ledger(2)
    world.leave(bookie(0))
    async with world.context() as context, trio.open_nursery() as nursery:
        for ledger_id in (ONE, TWO):
            await context.marks.mark(ledger_id, [bookie(0)])
            await context.parking.park(ledger_id, Verdict(reason=Reason.NO_TARGET))
        lock = await context.marks.lock(ONE)
        assert lock is not None
        await context.marks.release(lock)
        world.metadata.tree.delete(
            "/ledgers/underreplication/ledgers/0000/0000/0000/0001/urL0000000001", -1
        )
        world.delete_ledger(1)
        world.metadata.publish()
        nursery.start_soon(Auditor(context).run)
        await trio.sleep(60)
        assert await context.parking.read(ONE) is None
        assert await context.parking.read(TWO) is not None
        assert [found async for found in context.parking.ledgers()] == [TWO]
        nursery.cancel_scope.cancel()


async def test_an_unreadable_verdict_counts_as_none_and_is_replaced(autojump_clock: Clock) -> None:
    world = AuditWorld()
    async with world.context() as context:
        await context.parking.park(ONE, Verdict(reason=Reason.NO_TARGET))
        path = "/ledgers/underreplication/quireparked/0/urL0000000001"
        await context.store.set(path, b"{", version=-1)
        assert await context.parking.read(ONE) is None
        await context.parking.park(ONE, Verdict(reason=Reason.NO_SOURCE))
        found = await context.parking.read(ONE)
        assert found is not None
        assert found.verdict.reason is Reason.NO_SOURCE
