"""`python -m tests.chaos.workload URI NAME LIFE FOLDER PLAN`: one client process of the workload.

PLAN is JSON: how many writers, tailers, recoverers, readers, deleters, how fast, from which seed.
Each is a task that goes on whatever happens; what it sees goes into the history. An error of the
client's own kind is a fact like any other. Anything else that it raises is a `bug`, and fails the
run.
"""

from __future__ import annotations

import json
import random
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio

from ledger_client import LedgerClient, LedgerError
from runtime import logs
from tests.chaos.history import History
from tests.chaos.readers import Reading
from tests.chaos.writers import Writing

SESSION_SECONDS: Final = 10.0
#: Far above every time-out of the client: whoever waits longer hangs.
HANGING_SECONDS: Final = 600.0


class World:
    """What all tasks of a client process share."""

    def __init__(self, client: LedgerClient, history: History, plan: dict[str, Any]) -> None:
        self.client = client
        self.history = history
        self.plan = plan
        self.known: list[int] = []  # ledgers, as listed a moment ago

    async def keep_listing(self) -> None:
        while True:
            try:
                self.known = [ledger_id async for ledger_id in self.client.list()]
            except LedgerError as error:
                self.history.note("not listed", error=type(error).__name__)
            await trio.sleep(1.0)


async def forever(
    world: World, role: str, step: Callable[[random.Random], Awaitable[None]], number: int
) -> None:
    """One role: step after step, errors noted, hangs noted."""
    chance = random.Random(f"{world.plan['seed']} {role} {number}")
    while True:
        try:
            with trio.move_on_after(HANGING_SECONDS) as patience:
                await step(chance)
            if patience.cancelled_caught:
                world.history.note("hung", role=role)
        except LedgerError as error:
            world.history.note("failed", role=role, error=type(error).__name__, text=str(error))
            await trio.sleep(chance.uniform(0.2, 1.0))
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            world.history.note("bug", role=role, error=type(error).__name__, text=text)
            await trio.sleep(1.0)


async def work(uri: str, name: str, life: str, folder: Path, plan: dict[str, Any]) -> None:
    history = History(folder / "history", f"{name}-{life}")
    history.note("begun", plan=plan)
    while True:
        try:
            async with (
                LedgerClient(uri, session_seconds=SESSION_SECONDS) as client,
                trio.open_nursery() as nursery,
            ):
                world = World(client, history, plan)
                nursery.start_soon(world.keep_listing)
                writing = Writing(client, history, f"{name}.{life}", plan)
                reading = Reading(client, history, world, f"{name}.{life}")
                roles: dict[str, Callable[[random.Random], Awaitable[None]]] = {
                    "writer": writing.write_ledger,
                    "tailer": reading.follow,
                    "recoverer": reading.recover,
                    "reader": reading.read_again,
                    "deleter": reading.delete,
                }
                for role, step in roles.items():
                    for number in range(plan.get(role, 0)):
                        nursery.start_soon(forever, world, role, step, number)
        except* LedgerError as errors:
            # The cluster could not be opened: nothing works without metadata.
            history.note("not opened", error=repr(errors.exceptions[0]))
            await trio.sleep(0.5)


def main() -> None:
    uri, name, life, folder, plan = sys.argv[1:]
    logs.configure("warning")
    trio.run(work, uri, name, life, Path(folder), json.loads(plan))


if __name__ == "__main__":
    main()
