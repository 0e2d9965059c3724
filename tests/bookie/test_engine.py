"""The engine's promises, one at a time, on a simulated machine."""

from __future__ import annotations

from tests.bookie.machine import Machine
from wire.errors import Status


def test_entry_is_readable_at_once_and_acknowledged_when_durable() -> None:
    machine = Machine()
    machine.start()
    assert machine.add(1, [(0, b"hello")], "token") == [Status.OK]
    assert machine.read(1, 0) == b"hello"
    assert machine.durable == []
    machine.settle()
    assert machine.durable == ["token"]


def test_entries_survive_a_crash_after_their_answer() -> None:
    machine = Machine()
    machine.start()
    machine.add(1, [(n, b"x" * n) for n in range(50)], "a")
    machine.add_batch(2, [(n, b"y" * n) for n in range(0, 100, 2)], "b")
    machine.settle()
    machine.crash()
    machine.start()
    assert [machine.read(1, n) for n in range(50)] == [b"x" * n for n in range(50)]
    assert machine.read(2, 98) == b"y" * 98
    assert machine.read(2, 1) is Status.NO_ENTRY


def test_entries_are_read_from_the_log_after_a_clean_stop() -> None:
    machine = Machine()
    machine.start()
    machine.add(1, [(n, b"x" * n) for n in range(600)], "a")
    machine.settle()
    machine.stop()
    machine.start()
    assert machine.engine.statistics().write_cache_bytes == 0
    assert machine.read_batch(1, 0) == [b"x" * n for n in range(600)]
    assert machine.read(1, 599) == b"x" * 599
    assert machine.read(1, 600) is Status.NO_ENTRY
    assert machine.read(7, 0) is Status.NO_LEDGER
