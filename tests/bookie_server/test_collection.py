"""When the cyclic collector runs in a bookie."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bookie.lifetimes import collect_when_idle


@pytest.mark.parametrize(("ended_each_look", "collects"), [(0, False), (500, True)])
async def test_connections_that_came_and_went_are_collected_in_a_busy_bookie(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    ended_each_look: int,
    collects: bool,
) -> None:
    """Found by hostile frames: a hundred MiB for ten thousand connections."""
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: collected.append(generation))

    class Busy:
        connections_ended = 0
        engine: Any

        def __init__(self) -> None:
            self.engine = self
            self.requests = 0

        def statistics(self) -> SimpleNamespace:
            self.requests += 100_000
            self.connections_ended += ended_each_look
            return SimpleNamespace(entries_added=self.requests, entries_read=0)

    with trio.move_on_after(60):
        await collect_when_idle(Busy())  # type: ignore[arg-type]
    assert bool(collected) == collects
    assert set(collected) <= {1}, "all generations would stall a busy bookie"
