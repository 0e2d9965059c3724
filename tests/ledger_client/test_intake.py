"""Payloads on their way into batches: bounds, order, and ids that callers chose."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_client import LedgerError
from ledger_client.core.commands import Failure, FailureKind
from ledger_client.intake import (
    BATCH_BYTES,
    BATCH_ENTRIES,
    QUEUE_BYTES_MAX,
    Intake,
    Part,
    joined,
)

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


def filled(queue: Intake, payloads: list[bytes], bytes_max: int = 1 << 30) -> list[int]:
    """Fill the queue; how many payloads each part has."""
    parts: deque[Part] = deque()
    queue.fill(iter(payloads), bytes_max, parts)
    for batch, index, count in parts:
        assert len(batch.payloads) >= index + count
    return [count for _, _, count in parts]


def contents(queue: Intake) -> list[list[bytes]]:
    found = []
    while queue:
        batch = queue.take()
        assert batch.size == sum(map(len, batch.payloads))
        found.append(batch.payloads)
    return found


@settings(max_examples=200)
@given(
    first=st.lists(st.integers(0, 2 * BATCH_BYTES), max_size=4),
    then=st.lists(st.integers(0, 2 * BATCH_BYTES), max_size=12),
)
def test_filling_does_what_putting_one_by_one_does(first: list[int], then: list[int]) -> None:
    one_by_one, at_once = Intake(), Intake()
    for queue in (one_by_one, at_once):
        for size in first:
            queue.put(bytes(size))
    payloads = [bytes(size) for size in then]
    taken = sum(filled(at_once, payloads))
    for payload in payloads[:taken]:
        assert one_by_one.has_room
        one_by_one.put(payload)
    assert taken == len(payloads) or not one_by_one.has_room
    assert at_once.has_room == one_by_one.has_room
    assert contents(at_once) == contents(one_by_one)
    assert at_once.has_room


def test_filling_stops_at_the_bound() -> None:
    queue = Intake()
    payloads = [bytes(BATCH_BYTES)] * 100
    counts = filled(queue, payloads)
    assert not queue.has_room
    assert counts == [1] * (QUEUE_BYTES_MAX // BATCH_BYTES)
    assert filled(queue, payloads) == []


def test_payload_that_is_too_large_ends_the_filling() -> None:
    queue = Intake()
    parts: deque[Part] = deque()
    assert queue.fill(iter([b"a", b"bb", b"ccc", b"d"]), 2, parts) == b"ccc"
    assert contents(queue) == [[b"a", b"bb"]]


def test_error_of_the_caller_leaves_what_was_taken_before() -> None:
    def payloads() -> Iterator[bytes]:
        yield b"a"
        yield b"b"
        raise ZeroDivisionError

    queue = Intake()
    parts: deque[Part] = deque()
    with pytest.raises(ZeroDivisionError):
        queue.fill(payloads(), 100, parts)
    assert [part[1:] for part in parts] == [(0, 2)]
    assert contents(queue) == [[b"a", b"b"]]


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
