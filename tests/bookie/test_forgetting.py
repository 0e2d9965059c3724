"""Tombstones go after a week, a few at a time, and only those that the listing has judged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bookie.storage.engine import Engine
from bookie.storage.upkeep import FORGET_MAX
from tests.bookie.garbage_world import RECOVERY, checkpoint, drop, fill, options, payload
from tests.bookie.machine import Machine
from tests.bookie.test_garbage import WEEK, listing
from wire.errors import Status


def running() -> Machine:
    machine = Machine(options=options())
    machine.start()
    machine.settle()
    return machine


def test_ledger_that_was_dropped_once_more_is_not_forgotten_by_an_old_listing() -> None:
    machine = running()
    fill(machine, range(1, 2), range(3))
    drop(machine, 1)
    checkpoint(machine)
    machine.now += WEEK + 1
    judged_until_ms = (machine.now - WEEK) * 1000
    machine.add(1, [(0, payload(1, 0))], None, flags=RECOVERY)
    machine.settle()
    drop(machine, 1)
    checkpoint(machine)
    machine.engine.forget([1], judged_until_ms)
    checkpoint(machine)
    assert machine.add(1, [(0, b"zombie")], None) == [Status.FENCED]
    machine.crash()
    machine.start()
    assert machine.read(1, 0) is Status.NO_LEDGER


def test_tombstones_are_forgotten_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = running()
    ledgers = range(1, 2 * FORGET_MAX + 11)
    fill(machine, ledgers, range(1))
    drop(machine, *ledgers)
    checkpoint(machine)
    machine.now += WEEK + 1
    steps: list[int] = []
    forget = Engine.forget

    def noting(engine: Engine, ledger_ids: Sequence[int], dropped_until_ms: float) -> None:
        steps.append(len(ledger_ids))
        forget(engine, ledger_ids, dropped_until_ms)

    monkeypatch.setattr(Engine, "forget", noting)
    assert listing(machine).forgettable == list(ledgers)
    while sum(steps) < len(ledgers):
        told = len(steps)
        machine.engine.tick()
        assert len(steps) == told + 1
    assert max(steps) <= FORGET_MAX <= 256
    checkpoint(machine)
    [directory] = machine.engine.directories
    assert not list(directory.index.ledger_ids())
    machine.engine.tick()
    assert sum(steps) == len(ledgers)
