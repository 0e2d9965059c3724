"""Moving copies from full bookies to empty ones: the plan, and what carrying it out leaves."""

from __future__ import annotations

from random import Random

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from autorecovery.core.rebalance import Plan, Planner, Usage
from autorecovery.rebalance import RebalanceResult, plan_rebalance, read_usages, rebalance
from ledger_client.core.commands import Outcome
from ledger_client.core.placement import DefaultPolicy
from metadata.model import Fragment, LedgerMetadata, LedgerState
from tests.autorecovery.worker_world import RepairWorld, bookie
from wire.types import DigestType, LedgerId

Clock = trio.testing.MockClock


def closed(number: int, ensemble: tuple[int, ...], length: int, *, last: int = 9) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LedgerId(number),
        ensemble_size=len(ensemble),
        write_quorum=len(ensemble),
        ack_quorum=1,
        fragments=(Fragment(0, tuple(map(bookie, ensemble))),),
        state=LedgerState.CLOSED,
        last_entry_id=last,
        length=length,
        digest_type=DigestType.CRC32C,
        password=b"",
    )


def planner(used: list[int], *, total: int = 1000, **limits: object) -> Planner:
    usages = [Usage(bookie(i), total, total - amount) for i, amount in enumerate(used)]
    return Planner(
        usages,
        policy=DefaultPolicy(),
        writable=frozenset(usage.bookie_id for usage in usages),
        chance=Random(1),
        **limits,  # type: ignore[arg-type]
    )


def planned(one: Planner, ledgers: list[LedgerMetadata]) -> Plan:
    for ledger in ledgers:
        one.offer(ledger)
    return one.plan()


def test_plan_moves_from_the_fullest_to_the_emptiest() -> None:
    ledgers = [closed(number, (0, 1), 8, last=0) for number in range(10)]  # 48 bytes each
    plan = planned(planner([600, 300, 0]), ledgers)
    assert {(move.source, move.target) for move in plan.moves} == {(bookie(0), bookie(2))}
    assert plan.before[bookie(0)] == 0.6
    assert 0.3 < plan.after[bookie(0)] <= 0.35
    assert plan.ends == "every bookie is within the tolerance"


def test_balanced_cluster_moves_nothing() -> None:
    plan = planned(planner([300, 310, 290]), [closed(1, (0, 1), 100)])
    assert plan.moves == ()


def test_open_and_empty_ledgers_stay_where_they_are() -> None:
    empty = closed(1, (0, 1), 0, last=-1)
    assert planned(planner([900, 0, 0]), [empty]).moves == ()


def test_budget_of_bytes_is_kept_and_said() -> None:
    ledgers = [closed(number, (0, 1), 600, last=9) for number in range(5)]
    plan = planned(planner([90_000, 0, 0], total=100_000, bytes_max=2500), ledgers)
    assert 0 < plan.bytes <= 2500
    assert plan.ends == "nothing more can be moved within the limits"


@given(
    used=st.lists(st.integers(0, 900), min_size=3, max_size=6),
    ledgers=st.lists(
        st.tuples(st.sets(st.integers(0, 5), min_size=2, max_size=3), st.integers(0, 3000)),
        max_size=30,
    ),
)
def test_plan_never_makes_it_worse(used: list[int], ledgers: list[tuple[set[int], int]]) -> None:
    scaled = [amount * 100 for amount in used]
    records = [
        closed(number, tuple(sorted(slots)), length)
        for number, (slots, length) in enumerate(ledgers)
    ]
    one = planner(scaled, total=100_000)
    plan = planned(one, records)
    average = sum(scaled) / (100_000 * len(scaled))
    by_id = {record.ledger_id: record for record in records}
    seen = set()
    for move in plan.moves:
        ensemble = by_id[move.ledger_id].fragments[0].ensemble
        assert move.source in ensemble
        assert move.target not in ensemble
        assert (move.ledger_id, move.first_entry_id) not in seen
        seen.add((move.ledger_id, move.first_entry_id))
    for name, share in plan.after.items():
        before = plan.before[name]
        assert share <= before or share <= average + 1e-9, "a target was filled above the average"
    assert abs(sum(plan.after.values()) - sum(plan.before.values())) < 1e-9


# ---------------------------------------------------------------------- carrying it out


def lopsided() -> RepairWorld:
    world = RepairWorld(5)
    world.bookies.disk_bytes = 100_000
    for ledger_id in range(1, 13):
        world.ledger(ledger_id, (0, (0, 1, 2)), entries=20)
    return world


async def test_rebalance_carries_out_the_plan_and_every_copy_is_whole(
    autojump_clock: Clock,
) -> None:
    world = lopsided()
    reports: list[int] = []

    def note(result: RebalanceResult) -> None:
        reports.append(result.moved)

    async with world.context() as context:
        usages = await read_usages(context)
        assert [usage.used_bytes for usage in usages][3:] == [0, 0]
        plan = await plan_rebalance(context)
        assert plan.moves
        assert not any(name in world.record(1).bookies() for name in (bookie(3), bookie(4)))
        result = await rebalance(context, plan, on_move=note)
        again = await plan_rebalance(context)
    await world.close(context)
    assert (result.moved, result.left) == (len(plan.moves), [])
    assert reports[-1] == len(plan.moves)
    assert all(world.is_whole(ledger_id) for ledger_id in range(1, 13))
    named = [world.record(ledger_id).bookies() for ledger_id in range(1, 13)]
    for move in plan.moves:
        record = named[move.ledger_id - 1]
        assert move.target in record
        assert move.source not in record
    assert len(again.moves) <= len(plan.moves), "old copies are garbage until they are collected"


async def test_moves_that_cannot_be_made_are_told_and_change_nothing(
    autojump_clock: Clock,
) -> None:
    world = lopsided()
    async with world.context() as context:
        plan = await plan_rebalance(context)
        before = {number: world.record(number) for number in range(1, 13)}
        world.delete_ledger(plan.moves[0].ledger_id)
        locked = await context.marks.lock(plan.moves[1].ledger_id)
        assert locked is not None
        for name in (bookie(3), bookie(4)):
            world.bookies.refuses[name] = Outcome.READ_ONLY
        result = await rebalance(context, plan)
    await world.close(context)
    assert result.moved == 0
    whys = {move.ledger_id: why for move, why in result.left}
    assert whys[plan.moves[0].ledger_id] == "the ledger was deleted"
    assert whys[plan.moves[1].ledger_id] == "somebody else is at work on the ledger"
    assert len(whys) == len(plan.moves)
    for number in range(1, 13):
        if number != plan.moves[0].ledger_id:
            assert world.record(number) == before[number]
