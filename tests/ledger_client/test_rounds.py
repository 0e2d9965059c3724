"""Owners without a task: called once however often they are woken, in the order of waking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from ledger_client.core.commands import Outcome
from ledger_client.requests import Answer
from ledger_client.rounds import Desk, Rounds
from runtime.service import background


@asynccontextmanager
async def running() -> AsyncIterator[Rounds]:
    rounds = Rounds()
    async with background(rounds.run):
        yield rounds


class Owner:
    def __init__(self, rounds: Rounds, name: int, calls: list[tuple[int, int]]) -> None:
        self.desk = Desk(rounds, self.work)
        self._name = name
        self._calls = calls

    def work(self) -> None:
        self._calls.append((self._name, len(self.desk.collect())))


async def test_owner_is_called_once_for_all_that_arrived_before() -> None:
    calls: list[tuple[int, int]] = []
    async with running() as rounds:
        owners = [Owner(rounds, name, calls) for name in range(200)]
        for owner in owners:
            owner.desk.take([Answer(1, Outcome.OK)])
        for owner in reversed(owners):
            owner.desk.take([Answer(2, Outcome.OK)])
            owner.desk.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert calls == [(name, 2) for name in range(200)]
        owners[7].desk.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert calls[200:] == [(7, 0)]


async def test_what_is_kept_waits_for_the_next_call() -> None:
    calls: list[tuple[int, int]] = []
    async with running() as rounds:
        owner = Owner(rounds, 0, calls)
        assert owner.desk.keep([Answer(1, Outcome.OK)]) == 1
        assert owner.desk.keep([Answer(2, Outcome.OK), Answer(3, Outcome.OK)]) == 3
        await trio.testing.wait_all_tasks_blocked()
        assert calls == []
        owner.desk.ring()
        await trio.testing.wait_all_tasks_blocked()
        assert calls == [(0, 3)]
        assert owner.desk.has_rung()
        assert not owner.desk.has_rung()


async def test_owner_that_is_woken_by_its_own_work_is_called_again_and_others_in_between() -> None:
    calls: list[str] = []
    async with running() as rounds:

        def work() -> None:
            first.collect()
            calls.append("first")
            if len(calls) < 500:
                first.wake()

        first, other = Desk(rounds, work), trio.Event()
        first.wake()

        async def interrupt() -> None:
            calls.append("other")
            other.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            await other.wait()
        assert len(calls) < 500, "a task has its turn although the work never ends"
        await trio.testing.wait_all_tasks_blocked()
