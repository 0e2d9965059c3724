"""Owners are woken when they want to be, thousands of them a few at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from ledger_client.alarms import RINGS_AT_ONCE, RINGS_PER_SECOND, Alarms
from ledger_client.requests import Mailbox
from runtime.service import background


@asynccontextmanager
async def running() -> AsyncIterator[Alarms]:
    alarms = Alarms()
    async with background(alarms.run):
        yield alarms


async def rings_at(mail: Mailbox) -> float:
    assert await mail.wait() == []
    return trio.current_time()


async def test_owner_is_woken_at_its_moment(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as alarms:
        mail, start = Mailbox(), trio.current_time()
        for pause in (0.01, 0.5, 0.01):
            alarms.wake_at(mail, start + pause)
            assert await rings_at(mail) == start + pause
            start = trio.current_time()


async def test_earlier_alarm_overtakes_and_rings_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as alarms:
        mail, start = Mailbox(), trio.current_time()
        alarms.wake_at(mail, start + 0.8)
        await trio.sleep(0.1)
        alarms.wake_at(mail, start + 0.3)
        assert await rings_at(mail) == start + 0.3
        assert await mail.wait(deadline=start + 2) == []
        assert trio.current_time() == start + 2


async def test_alarm_that_is_put_off_rings_at_its_last_moment_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As that of a writer with every entry: its owner has nothing to do before."""
    async with running() as alarms:
        mail, start = Mailbox(), trio.current_time()
        for pause in range(50):
            alarms.wake_at(mail, start + pause / 100 + 0.1)
            await trio.sleep(0.01)
        assert await rings_at(mail) == start + 0.49 + 0.1
        # Rung, not just woken by the first that was set.
        assert mail.has_rung()


async def test_alarm_far_away_rings_at_its_moment(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as alarms:
        mail, start = Mailbox(), trio.current_time()
        alarms.wake_at(mail, start + 1000)
        assert await rings_at(mail) == start + 1000


async def test_alarms_far_away_are_not_kept_until_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each one that an earlier one overtook would stay for as long as it was set."""
    async with running() as alarms:
        mail = Mailbox()
        for _ in range(100):
            now = trio.current_time()
            alarms.wake_at(mail, now + 1000)
            alarms.wake_at(mail, now + 0.01)
            await rings_at(mail)
        await trio.sleep(2)
        assert alarms.kept == 0


async def test_crowd_of_alarms_rings_within_the_budget_and_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as alarms:
        crowd, start = [Mailbox() for _ in range(RINGS_AT_ONCE * 3)], trio.current_time()
        rung: list[float] = []

        async def owner(mail: Mailbox) -> None:
            rung.append(await rings_at(mail) - start)

        async with trio.open_nursery() as nursery:
            for mail in crowd:
                alarms.wake_at(mail, start + 0.01)
                nursery.start_soon(owner, mail)
        assert sum(moment < 0.02 for moment in rung) <= RINGS_AT_ONCE + 0.02 * RINGS_PER_SECOND
        late = RINGS_AT_ONCE * 2 / RINGS_PER_SECOND
        assert late <= max(rung) <= late * 1.1 + 0.1


async def test_owner_can_tell_its_alarm_from_other_news(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Only an alarm has been paid for out of the budget."""
    async with running() as alarms:
        mail, start = Mailbox(), trio.current_time()
        alarms.wake_at(mail, start + 0.01)
        mail.wake()
        await mail.wait()
        assert not mail.has_rung()
        assert await rings_at(mail) == start + 0.01
        assert mail.has_rung()
        assert not mail.has_rung()
        alarms.wake_at(mail, start)  # it has passed already
        await mail.wait()
        assert mail.has_rung()
