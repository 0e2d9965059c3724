"""Cancelled at each of its steps in turn, an operation leaves a handle that still works.

A step is what a task does between two of its waits. Each operation is cancelled after its first
step, then after its second, and so on, until it gets through.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio

from ledger_client import LedgerClient, LedgerReader, LedgerWriter, intake
from metadata.model import LedgerState
from tests.ledger_client.live.cluster import LiveCluster

STEPS_MAX = 2000  # far more than any of them takes; else the loop would hide a hang


class _After(trio.abc.Instrument):
    """Cancels a scope when a task has made so many steps."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._task = trio.lowlevel.current_task()
        self._scope = scope
        self._left = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def is_through(steps: int, operation: Callable[[], Awaitable[object]]) -> bool:
    """Run an operation and cancel it after so many steps; whether it was faster."""
    with trio.CancelScope() as scope:
        if steps == 0:
            scope.cancel()
            await operation()
            return True
        instrument = _After(scope, steps)
        trio.lowlevel.add_instrument(instrument)
        try:
            await operation()
        finally:
            trio.lowlevel.remove_instrument(instrument)
        return True
    return False


async def each_step(operation: Callable[[], Awaitable[object]]) -> AsyncIterator[int]:
    """Run the operation again and again, each time cancelled one step later, until it is not."""
    for steps in range(STEPS_MAX):
        through = await is_through(steps, operation)
        yield steps
        if through and steps > 0:
            return
    raise AssertionError("it never got through")


async def payloads_in(reader: LedgerReader) -> list[bytes]:
    return [entry.payload async for entry in reader.read(0, reader.last_confirmed)]


async def test_append_may_be_cancelled_anywhere(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        written: dict[int, bytes] = {}
        async with await client.create() as ledger:

            async def append() -> None:
                written[await ledger.append(b"perhaps")] = b"perhaps"

            async for steps in each_step(append):
                payload = b"after %d" % steps
                written[await ledger.append(payload)] = payload
        found = await payloads_in(await client.open(ledger.id))
        assert {i: found[i] for i in written} == written
        assert set(found) <= {b"perhaps", *written.values()}


async def test_append_many_may_be_cancelled_anywhere(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it waits for room: the payloads that were taken are a prefix, in order."""
    monkeypatch.setattr(intake, "QUEUE_BYTES_MAX", 4096)
    monkeypatch.setattr(intake, "BATCH_BYTES", 1024)
    payloads = [b"%4d" % i * 100 for i in range(40)]
    async with LedgerClient(cluster.uri) as client:
        async with await client.create() as ledger:
            async for steps in each_step(lambda: ledger.append_many(payloads)):
                await ledger.append(b"after %d" % steps)
        found = await payloads_in(await client.open(ledger.id))
        expected = 0
        for payload in found:
            if payload.startswith(b"after"):
                expected = 0
            else:
                assert payload == payloads[expected]
                expected += 1
        assert found[-2] == payloads[-1]


async def test_read_may_be_cancelled_anywhere_and_gone_on_with(cluster: LiveCluster) -> None:
    payloads = [b"%d" % i * 50 for i in range(500)]
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(ensemble_size=4, write_quorum=2) as ledger:
            await ledger.append_many(payloads)
        reader = await client.open(ledger.id)
        for steps in range(STEPS_MAX):
            entries = reader.read(0, 499)
            found: list[bytes] = []

            async def read() -> None:
                while batch := await entries.next_batch():  # noqa: B023
                    found.extend(entry.payload for entry in batch)  # noqa: B023

            through = await is_through(steps, read)
            await read()
            assert found == payloads
            if through:
                break


async def test_close_may_be_cancelled_anywhere_and_asked_again(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        for steps in range(STEPS_MAX):
            ledger = await client.create()
            waits = [ledger.put(b"%d" % i) for i in range(10)]
            through = await is_through(steps, ledger.close)
            await ledger.close()
            assert [await wait() for wait in waits] == list(range(10))
            metadata = await client.metadata(ledger.id)
            assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 9)
            if through:
                break


async def test_force_may_be_cancelled_anywhere_and_asked_again(cluster: LiveCluster) -> None:
    """Without its caller a force goes on, and the next one covers at least as much."""
    async with LedgerClient(cluster.uri) as client:
        async with await client.create(deferred_sync=True) as ledger:
            for steps in range(STEPS_MAX):
                appended = await ledger.append_many([b"%d" % steps] * 3)
                through = await is_through(steps, ledger.force)
                assert ledger.last_confirmed == appended[-1] or not through
                assert await ledger.force() == appended[-1]
                if through:
                    break
        found = await payloads_in(await client.open(ledger.id))
        assert found == [b"%d" % number for number in range(steps + 1) for _ in range(3)]


async def test_tail_may_be_cancelled_anywhere_and_gone_on_with(cluster: LiveCluster) -> None:
    """While it reads what is there, and while it waits for what is not."""
    async with LedgerClient(cluster.uri) as client, await client.create() as ledger:
        await ledger.append_many([b"%d" % i for i in range(5)])
        for steps in range(STEPS_MAX):
            first, last = ledger.last_confirmed - 4, ledger.last_confirmed + 2
            found: list[tuple[int, bytes]] = []
            async with await client.tail(ledger.id, first=first) as tail:

                async def follow() -> None:
                    async for entry in tail:
                        found.append(entry)  # noqa: B023
                        if entry.id == last:  # noqa: B023
                            return

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_append_later, ledger, first + 5)
                    through = await is_through(steps, follow)
                    if not through:
                        await follow()
            assert found == [(i, b"%d" % i) for i in range(first, last + 1)]
            if through:
                break


async def _append_later(ledger: LedgerWriter, first: int) -> None:
    """Two more entries, one after the other, each with its number in it."""
    for number in (first, first + 1):
        await trio.sleep(0.005)
        await ledger.append(b"%d" % number)


async def test_tail_may_be_cancelled_while_it_begins(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client, await client.create() as ledger:
        await ledger.append(b"x")

        async def follow() -> None:
            async with await client.tail(ledger.id) as tail:
                assert (await anext(tail)).payload == b"x"

        async for _ in each_step(follow):
            pass


async def test_open_may_be_cancelled_anywhere_and_repeated(cluster: LiveCluster) -> None:
    """What is left is what a client that died would leave: a ledger for the next to recover."""
    payloads = [b"%d" % i for i in range(30)]
    async with LedgerClient(cluster.uri) as client, LedgerClient(cluster.uri) as other:
        for steps in range(0, STEPS_MAX):
            ledger = await client.create(ensemble_size=4, write_quorum=3)
            await ledger.append_many(payloads)

            async def recover() -> None:
                await other.open(ledger.id)  # noqa: B023

            through = await is_through(steps, recover)
            assert await payloads_in(await other.open(ledger.id)) == payloads
            if through:
                break


async def test_create_that_is_cancelled_leaves_no_ledger_behind(cluster: LiveCluster) -> None:
    async with LedgerClient(cluster.uri) as client:
        made: list[int] = []

        async def create() -> None:
            made.append((await client.create()).id)

        before = [ledger_id async for ledger_id in client.list()]
        async for _ in each_step(create):
            pass
        assert len(made) == 1
        with trio.fail_after(30):  # the last of them may just now be removed
            while [ledger_id async for ledger_id in client.list()] != sorted([*before, *made]):
                pass


async def test_client_may_be_cancelled_while_it_opens_and_closes(cluster: LiveCluster) -> None:
    async def visit() -> None:
        async with LedgerClient(cluster.uri) as client, await client.create() as ledger:
            await ledger.append(b"x")

    async for _ in each_step(visit):
        pass
