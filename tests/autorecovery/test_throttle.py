"""The throttle that all copies of a process share: who is let through, and in which order."""

from __future__ import annotations

import trio
import trio.testing

from autorecovery.core.copying_pace import WINDOW_BYTES_FIRST
from autorecovery.replicator import Throttle
from wire.types import BookieId

ONE = [BookieId("one:3181")]
OTHER = [BookieId("other:3181")]


async def test_what_was_begun_first_goes_first_and_others_wait_for_their_own_targets() -> None:
    throttle = Throttle()
    throttle.take(ONE, WINDOW_BYTES_FIRST)
    went: list[int] = []

    async def want(order: int, targets: list[BookieId]) -> None:
        await throttle.wait_room(order, targets, WINDOW_BYTES_FIRST)
        throttle.take(targets, WINDOW_BYTES_FIRST)
        went.append(order)

    async with trio.open_nursery() as nursery:
        for order in (0, 3, 1, 2):
            nursery.start_soon(want, order, ONE)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(want, 9, OTHER)
        await trio.testing.wait_all_tasks_blocked()
        assert went == [9]
        for order in range(4):
            throttle.give_back(ONE, WINDOW_BYTES_FIRST)
            await trio.testing.wait_all_tasks_blocked()
            assert went[1:] == list(range(order + 1))


async def test_only_the_first_in_line_looks_when_something_changes() -> None:
    throttle = Throttle()
    throttle.take(ONE, WINDOW_BYTES_FIRST)
    looks = 0
    has_room = throttle.has_room

    def counted(targets: list[BookieId], size: int) -> bool:
        nonlocal looks
        looks += 1
        return has_room(targets, size)

    throttle.has_room = counted  # type: ignore[method-assign, assignment]
    async with trio.open_nursery() as nursery:
        for order in range(100):
            nursery.start_soon(throttle.wait_room, order, ONE, WINDOW_BYTES_FIRST)
            await trio.testing.wait_all_tasks_blocked()
        looks = 0
        for _ in range(10):
            throttle.take(OTHER, 1)
            throttle.give_back(OTHER, 1)
            await trio.testing.wait_all_tasks_blocked()
        assert looks == 10
        nursery.cancel_scope.cancel()


async def test_whoever_is_cancelled_in_line_lets_the_next_one_go(
    autojump_clock: trio.testing.MockClock,
) -> None:
    throttle = Throttle()
    throttle.take(ONE, WINDOW_BYTES_FIRST)
    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def leave() -> None:
            with first:
                await throttle.wait_room(1, ONE, WINDOW_BYTES_FIRST)

        nursery.start_soon(leave)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(throttle.wait_room, 2, ONE, WINDOW_BYTES_FIRST)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        throttle.give_back(ONE, WINDOW_BYTES_FIRST)
        with trio.fail_after(5):
            while nursery.child_tasks:  # noqa: ASYNC110
                await trio.sleep(0.1)


async def test_pause_ends_by_itself(autojump_clock: trio.testing.MockClock) -> None:
    throttle = Throttle()
    pace = throttle.pace(ONE[0])
    pace.resume_at = trio.current_time() + 0.5
    assert not throttle.has_room(ONE, 1)
    assert throttle.has_room(OTHER, 1)
    began = trio.current_time()
    await throttle.wait_room(1, ONE, 1)
    assert 0.5 <= trio.current_time() - began < 0.6
