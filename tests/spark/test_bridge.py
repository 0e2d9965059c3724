"""The crossing from trio to a generator: order, bounds, errors, and an early end."""

from __future__ import annotations

import threading

import pytest
import trio

from spark.bridge import Emit, bridged


def threads() -> int:
    return sum(thread.name == "ledger-scan" for thread in threading.enumerate())


def test_items_arrive_in_order_and_the_thread_ends() -> None:
    async def produce(emit: Emit[int]) -> None:
        for number in range(100):
            await emit(number)

    assert list(bridged(produce)) == list(range(100))
    assert threads() == 0


def test_producer_waits_for_places() -> None:
    """It may be ahead by the depth, and by the one that it is about to hand over."""
    made: list[int] = []

    async def produce(emit: Emit[int]) -> None:
        for number in range(10):
            made.append(number)
            await emit(number)

    items = bridged(produce, depth=2)
    for number in range(10):
        assert next(items) == number
        assert len(made) <= number + 3
    assert list(items) == []


def test_error_of_the_producer_is_raised_where_items_are_taken() -> None:
    async def produce(emit: Emit[int]) -> None:
        await emit(1)
        raise KeyError("lost")

    items = bridged(produce)
    assert next(items) == 1
    with pytest.raises(KeyError, match="lost"):
        next(items)
    assert threads() == 0


def test_consumer_that_leaves_early_cancels_the_producer() -> None:
    ended: list[str] = []

    async def produce(emit: Emit[int]) -> None:
        try:
            await emit(1)
            await trio.sleep_forever()
        finally:
            ended.append("cleaned up")

    items = bridged(produce)
    assert next(items) == 1
    items.close()  # type: ignore[attr-defined]
    assert ended == ["cleaned up"]
    assert threads() == 0
