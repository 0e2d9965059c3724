"""The processes of a local cluster beside ZooKeeper: all started, any started anew, all ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from quire.processes import Child, Lifeline, Program


class Fleet:
    """Start it by `running_fleet`. A program is known by its name, whichever process it has now."""

    def __init__(
        self, lifeline: Lifeline, nursery: trio.Nursery, on_news: Callable[[str], None]
    ) -> None:
        self._lifeline = lifeline
        self._nursery = nursery
        self._on_news = on_news
        self._children: dict[str, Child] = {}
        self._is_ending = False

    @property
    def children(self) -> list[Child]:
        """In the order of starting."""
        return list(self._children.values())

    def child(self, name: str) -> Child:
        return self._children[name]

    async def start_all(self, programs: Sequence[Program]) -> None:
        for program in programs:
            self._start(program)
        async with trio.open_nursery() as nursery:
            for child in self.children:
                nursery.start_soon(child.wait_ready)
        for child in self.children:
            self._nursery.start_soon(self._watch, child)

    async def start_again(self, program: Program) -> Child:
        """A new process for a program whose last one has ended; returns when it is ready."""
        old = self._children[program.name]
        assert not old.is_running
        old.close()
        child = self._start(program)
        await child.wait_ready()
        self._nursery.start_soon(self._watch, child)
        return child

    def _start(self, program: Program) -> Child:
        # At once in the table, so that whatever happens next it is ended with the others.
        child = self._children[program.name] = Child(program, self._lifeline)
        return child

    async def _watch(self, child: Child) -> None:
        code = await child.wait()
        if self._is_ending or child.is_stopping:
            return
        if code < 0:
            end = f"{child.program.name} was killed by signal {-code}"
        else:
            end = f"{child.last_words()} (exit code {code})"
        self._on_news(f"{end}; the rest of the cluster goes on")

    async def stop(self) -> None:
        # All at once: whoever ends first must not make the others work on without it.
        self._is_ending = True
        async with trio.open_nursery() as nursery:
            for child in self.children:
                nursery.start_soon(child.stop)
        for child in self.children:
            child.close()


@asynccontextmanager
async def running_fleet(
    programs: Sequence[Program], nursery: trio.Nursery, on_news: Callable[[str], None]
) -> AsyncIterator[Fleet]:
    """All of them ready; whatever happens, none is left behind."""
    with Lifeline() as lifeline:
        fleet = Fleet(lifeline, nursery, on_news)
        try:
            await fleet.start_all(programs)
            yield fleet
        finally:
            with trio.CancelScope(shield=True):
                await fleet.stop()
