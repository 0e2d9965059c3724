"""The collector: which ledgers it has dropped, and above all which not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from bookie.collector import DROP_MAX
from bookie.storage.garbage_values import Listing
from metadata.store import ConnectionLostError
from tests.bookie.collector_world import ME, OTHER, Record, collector, world
from wire.errors import LedgerError
from wire.types import BookieId, LedgerId


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


async def test_a_record_that_cannot_be_decoded_does_not_end_a_look_and_its_ledger_stays(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    made = world()
    for ledger_id in (1, 2, 3, 4):
        made.records[ledger_id] = Record(bookies=(OTHER,))
    made.damaged = {1}
    made.unreadable_now = {3}
    collecting = collector(made)
    found = await collecting.collect()
    assert made.dropped == found.over_replicated == [2, 4]
    assert found.undecoded == [1, 3]
    assert found.error == ""
    assert made.released == [2, 3, 4]
    [line] = [record.getMessage() for record in caplog.records]
    assert "2 ledgers" in line
    assert "1, 3" in line
    assert "ledger 1: bad bytes" in line
    asked = len(made.operations)
    await collecting.collect()
    assert len(made.operations) == asked, "the look is over, and the next one is tomorrow's"
    await trio.sleep(86400)
    made.living = [1, 3, 5]
    made.damaged = made.unreadable_now = set()
    assert (await collecting.collect()).over_replicated == [1, 3]


async def test_thousands_of_records_that_cannot_be_decoded_are_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = world(2_000)
    made.damaged = set(range(1_000))
    await collector(made).collect()
    assert made.dropped == []
    [line] = [record.getMessage() for record in caplog.records]
    assert "1000 ledgers" in line
    assert len(line) < 500


async def test_a_store_that_is_gone_still_ends_a_look(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = world()
    made.records[9] = Record(bookies=(OTHER,))
    collecting = collector(made)

    async def failing(ledger_id: LedgerId) -> Record | None:
        raise ConnectionLostError("gone")

    glance, made.glance = made.glance, failing  # type: ignore[method-assign]
    assert "gone" in (await collecting.collect()).error
    made.glance = glance  # type: ignore[method-assign]
    assert (await collecting.collect()).over_replicated == [9]


async def test_an_unfinished_deletion_whose_record_cannot_be_decoded_waits() -> None:
    made = world(local=4)
    made.unfinished = [10, 11, 12]
    made.records[10] = made.records[11] = Record(bookies=(OTHER,))
    made.records[3] = Record(bookies=(OTHER,))
    made.damaged = {10}
    found = await collector(made).collect()
    assert made.resumed == found.resumed == [11, 12]
    assert (found.undecoded, found.error) == ([10], "")
    assert found.over_replicated == [3]
    assert made.released == [10, 11, 3]


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


async def test_a_forced_round_looks_for_deleted_ledgers_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As Apache's does: looking for surplus ledgers reads every record, and keeps its own time."""
    made = world(missing=[3])
    made.records[4] = Record(bookies=(OTHER,))
    collecting = collector(made)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collecting.run)
        await trio.testing.wait_all_tasks_blocked()
        collecting.force()
        await trio.sleep(1)
        assert (collecting.rounds, made.dropped) == (1, [3])
        nursery.cancel_scope.cancel()


async def test_storage_that_cannot_list_ends_the_round() -> None:
    made = world(missing=[1])
    made.list_ledgers = lambda done: done(LedgerError("index"))  # type: ignore[method-assign]
    assert (await collector(made).collect()).error == "index"
    assert made.dropped == []


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
