"""Payloads on their way into batches: bounds, order, and ids that callers chose."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ledger_client import LedgerError
from ledger_client.core.commands import Failure, FailureKind
from ledger_client.intake import BATCH_BYTES, BATCH_ENTRIES, QUEUE_BYTES_MAX, Intake, joined

FAILURE = Failure(FailureKind.LEDGER_CLOSED, "closed")


def test_payloads_share_a_batch_up_to_its_bounds() -> None:
    queue = Intake()
    first, index = queue.put(b"x")
    assert index == 0
    assert queue.put(b"y") == (first, 1)
    assert queue.put(bytes(BATCH_BYTES))[0] is not first
    small = Intake()
    batches = {id(small.put(b"")[0]) for _ in range(BATCH_ENTRIES + 1)}
    assert len(batches) == 2


def test_empty_payloads_fill_the_queue_too() -> None:
    queue = Intake()
    count = 0
    while queue.has_room:
        queue.put(b"")
        count += 1
    assert count <= QUEUE_BYTES_MAX // 64


async def test_caller_waits_above_the_bound_until_a_batch_is_taken() -> None:
    queue = Intake()
    while queue.has_room:
        queue.put(bytes(BATCH_BYTES))
    woken = False

    async def wait() -> None:
        nonlocal woken
        await queue.wait_room()
        woken = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        queue.tell_room()
        await trio.testing.wait_all_tasks_blocked()
        assert not woken
        queue.take()
        queue.tell_room()
    assert woken


async def test_failure_ends_everything_and_wakes_who_waits() -> None:
    queue = Intake()
    batch, index = queue.put(bytes(QUEUE_BYTES_MAX))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.wait_room)
        await trio.testing.wait_all_tasks_blocked()
        queue.fail(FAILURE)
    assert len(queue) == 0
    with pytest.raises(LedgerError, match="closed"):
        await batch.wait(index, 1)


def test_given_ids_are_cut_where_they_do_not_follow() -> None:
    queue = Intake()
    batches = [queue.put(b"x", entry_id)[0] for entry_id in (5, 6, 8, 7, 0)]
    assert batches[0] is batches[1]
    assert len({id(batch) for batch in batches}) == 4
    assert [e for e in range(10) if queue.holds(e)] == [0, 5, 6, 7, 8]
    below = queue.take_below(5)
    assert below is batches[-1]
    assert queue.take_below(5) is None
    assert queue.take() is batches[0]
    assert [e for e in range(10) if queue.holds(e)] == [7, 8]


def test_ids_of_many_appends_are_a_range_if_they_are_one() -> None:
    assert joined([]) == range(0)
    assert joined([range(3, 5), range(5, 9)]) == range(3, 9)
    assert joined([range(3, 5), range(6, 9)]) == [3, 4, 6, 7, 8]
    assert joined([range(2, 4), range(0, 2), range(4, 6)]) == [2, 3, 0, 1, 4, 5]
