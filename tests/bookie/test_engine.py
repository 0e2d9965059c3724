"""The engine's promises, one at a time, on a simulated machine."""

from __future__ import annotations

import errno

import pytest

from bookie.storage.index_interface import DamagedIndexError
from runtime.memory_inodes import Keep
from tests.bookie.machine import KEY, Machine, entry_of, small_options
from wire.errors import Status
from wire.types import LAST_ENTRY, Flag

RECOVERY = int(Flag.RECOVERY_ADD)
PRIORITY = int(Flag.HIGH_PRIORITY)
DEFERRED = int(Flag.DEFERRED_SYNC)


def running(**changes: object) -> Machine:
    machine = Machine(**changes)  # type: ignore[arg-type]
    machine.start()
    machine.settle()
    return machine


def is_troubled(machine: Machine) -> bool:
    """Whether the engine last said that it is full, and why."""
    return machine.engine.is_full and machine.troubles[-1][1] is not None


def lac_body(lac: int) -> bytes:
    return bytes(8) + lac.to_bytes(8, "big", signed=True) + b"digest"


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


def test_one_commit_for_several_journals_comes_back_once_with_the_last() -> None:
    machine = running(journals=3)
    for ledger_id in range(3):
        entry = entry_of(ledger_id, 0, b"x")
        assert machine.engine.add_entry(ledger_id, 0, -1, KEY, entry, 0) is Status.OK
    assert machine.engine.commit("all")
    fault = machine.files.fail("write", path="/disk/journal2/*", times=None)
    machine.settle()
    assert machine.durable == []
    assert len(machine.failures) == 1, "the third journal failed, so nothing is answered"
    fault.clear()
    machine.crash(power=False)
    machine.start()
    assert machine.read(0, 0) == machine.read(1, 0) == b"x"


def test_commit_of_nothing_says_so() -> None:
    machine = running()
    assert not machine.engine.commit("nothing")
    machine.settle()
    assert machine.durable == []


@pytest.mark.parametrize("version", [1, 2])
def test_deferred_flag_of_an_old_frame_is_ignored(version: int) -> None:
    """Only batches and v3 know it: anybody else means a durable add."""
    machine = running()
    machine.add(1, [(0, b"x")], "token", flags=DEFERRED, version=version)
    machine.settle()
    assert machine.durable == ["token"]
    machine.crash(keep=Keep.NONE, keep_pieces=lambda count: 0)
    machine.start()
    assert machine.read(1, 0) == b"x"


def test_journal_error_is_told_once_and_nothing_is_answered_any_more() -> None:
    machine = running()
    machine.files.fail("write", path="/disk/journal0/*")
    machine.add(1, [(0, b"x")], "first")
    machine.settle()
    assert len(machine.failures) == 1
    with pytest.raises(type(machine.failures[0])):
        machine.add(1, [(1, b"x")], "second")
    machine.settle()
    assert machine.durable == []
    assert len(machine.failures) == 1


def test_key_is_the_first_one_presented_for_ever() -> None:
    machine = running()
    other = bytes(20)[:19] + b"x"
    machine.add(1, [(0, b"mine")], None)
    for _ in range(3):
        assert machine.add(1, [(0, b"theirs")], None, key=other) == [Status.UNAUTHORIZED]
        assert machine.engine.fence(1, other, "fence") == (Status.UNAUTHORIZED, False)
        assert machine.engine.fence(1, None, "fence") == (Status.UNAUTHORIZED, False)
        assert machine.engine.write_lac(1, other, lac_body(0), "lac") is Status.UNAUTHORIZED
        machine.settle()
        machine.crash()
        machine.start()
    assert machine.read(1, 0) == b"mine"


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 33])
def test_ledger_with_a_key_of_any_length_survives_checkpoints_and_crashes(key: bytes) -> None:
    machine = running()
    for entry_id in range(3):
        assert machine.add_entry(1, entry_id, b"%d" % entry_id, "t", key=key) is Status.OK
        machine.settle()
        machine.crash()
        machine.start()
        assert machine.engine.ledger(1).master_key == key
        assert machine.read(1, entry_id) == b"%d" % entry_id
        machine.engine.checkpoint()
        machine.settle()


def test_explicit_lac_is_kept_and_the_last_one_wins() -> None:
    machine = running()
    machine.add(1, [(n, b"x") for n in range(10)], None)
    for lac in (3, 7, 5):
        assert machine.engine.write_lac(1, KEY, lac_body(lac), lac) is Status.OK
    machine.settle()
    assert machine.durable[-3:] == [3, 7, 5]
    assert machine.engine.lac(1) == 7, "what is known does not sink"
    machine.crash()
    machine.start()
    assert machine.engine.ledger(1).explicit_lac == lac_body(5)
    machine.settle()
    machine.crash()
    machine.start()
    assert machine.engine.ledger(1).explicit_lac == lac_body(5)
    assert machine.engine.lac(1) == 5


def test_lac_is_found_in_the_last_stored_entry_after_a_restart() -> None:
    machine = running()
    for entry_id in range(6):
        machine.add(1, [(entry_id, b"x")], None, lac=entry_id - 1)
    assert machine.engine.lac(1) == 4
    machine.settle()
    machine.stop()
    machine.start()
    assert machine.engine.lac(1) == 4
    machine.add(1, [(6, b"x")], None, lac=5)
    assert machine.engine.lac(1) == 5


def test_last_entry_is_found_in_cache_and_index() -> None:
    machine = running()
    assert machine.read(1, LAST_ENTRY) is Status.NO_LEDGER
    machine.engine.fence(1, KEY, "fence")
    assert machine.read(1, LAST_ENTRY) is Status.NO_ENTRY
    machine.add(1, [(4, b"four"), (9, b"nine")], None, flags=RECOVERY)
    assert machine.read(1, LAST_ENTRY) == b"nine"
    machine.settle()
    machine.stop()
    machine.start()
    assert machine.read(1, LAST_ENTRY) == b"nine"
    machine.add(1, [(7, b"seven")], None, flags=RECOVERY)
    assert machine.read(1, LAST_ENTRY) == b"nine"


def test_read_only_bookie_takes_priority_adds_within_its_reserve_only() -> None:
    machine = running()
    machine.engine.set_read_only(True, accepts_priority=True)
    assert machine.add(1, [(0, b"x")], None) == [Status.READ_ONLY]
    assert machine.add(1, [(0, b"x")], None, flags=RECOVERY) == [Status.READ_ONLY]
    assert machine.add(1, [(0, b"x")], None, flags=RECOVERY | PRIORITY) == [Status.OK]
    assert machine.add_batch(2, [(0, b"x")], None) is Status.READ_ONLY
    assert machine.add_entry(2, 0, b"x", None, flags=DEFERRED) is Status.READ_ONLY
    assert machine.engine.write_lac(1, KEY, lac_body(0), "lac") is Status.READ_ONLY
    assert machine.engine.fence(1, KEY, "fence") == (Status.OK, True), "fences are always taken"
    machine.engine.set_read_only(True, accepts_priority=False)
    assert machine.add(1, [(1, b"x")], None, flags=RECOVERY | PRIORITY) == [Status.READ_ONLY]
    machine.engine.set_read_only(False, accepts_priority=True)
    assert machine.add(2, [(0, b"x")], None) == [Status.OK]


def test_generation_is_flushed_when_it_is_full_and_when_it_is_old() -> None:
    machine = running()
    machine.checkpoints.clear()
    for entry_id in range(5):
        machine.add(1, [(entry_id, b"x" * 900)], None)
    machine.settle()
    assert len(machine.checkpoints) == 1, "full"
    machine.add(1, [(5, b"small")], None)
    machine.settle()
    machine.now += machine.options.engine.flush_interval_seconds - 1
    machine.engine.tick()
    machine.settle()
    assert len(machine.checkpoints) == 1
    machine.now += 1
    machine.engine.tick()
    machine.settle()
    assert len(machine.checkpoints) == 2, "old"


def test_state_alone_is_checkpointed_too() -> None:
    machine = running()
    machine.engine.fence(1, KEY, "fence")
    machine.settle()
    machine.now += machine.options.engine.flush_interval_seconds
    machine.engine.tick()
    machine.settle()
    stored = machine.engine.directories[0].index.ledger_state(1)
    assert stored is not None
    assert stored.fenced


def test_engine_says_that_it_is_full_and_that_it_is_not() -> None:
    machine = running()
    assert not is_troubled(machine)
    jam = machine.files.fail("write", path="*.log", error=errno.ENOSPC, times=None)
    for entry_id in range(20):
        machine.add(1, [(entry_id, b"x" * 3000)], None)
    machine.settle()
    assert machine.engine.fill > 0.75
    assert is_troubled(machine)
    jam.clear()
    machine.engine.tick()
    machine.settle()
    assert not machine.engine.is_full
    assert not is_troubled(machine)
    while machine.engine.tick():
        pass
    assert machine.engine.statistics().write_cache_bytes == 0


def test_failing_disk_gets_three_tries_each_in_a_new_log() -> None:
    machine = running()
    machine.add(1, [(0, b"x")], None)
    machine.settle()
    machine.files.fail("write", path="*.log", error=errno.EIO, times=None)
    [directory] = machine.engine.directories
    machine.engine.checkpoint()
    for tries in range(1, 4):
        machine.settle()
        assert directory.statistics().failures == tries
        machine.engine.tick()
    assert directory.failed
    machine.settle()
    assert directory.statistics().failures == 3
    assert machine.read(1, 0) == b"x", "it is still in memory, and in the journal"


def test_index_that_cannot_be_opened_again_counts_as_a_failing_disk() -> None:
    machine = running()
    machine.add(1, [(0, b"x")], None)
    [directory] = machine.engine.directories
    [index] = machine.opened.values()
    index.fails = True

    def refuse() -> None:
        raise DamagedIndexError("no index any more")

    index.reopen = refuse  # type: ignore[method-assign]
    machine.engine.checkpoint()
    for _ in range(5):
        machine.settle()
        machine.engine.tick()
    assert directory.failed
    assert isinstance(directory.trouble, DamagedIndexError)


def test_news_reach_those_who_wait_for_a_ledger_and_nobody_else() -> None:
    news: list[tuple[int, int]] = []
    machine = running()
    machine.on_news = lambda ledger: news.append((ledger.id, ledger.lac))
    ledger = machine.engine.ledger(1)
    machine.add(1, [(0, b"x")], None, lac=-1)
    machine.add(1, [(1, b"x")], None, lac=0)
    assert news == []
    ledger.waiters += 1
    machine.add(1, [(2, b"x")], None, lac=1)
    machine.add(1, [(3, b"x")], None, lac=1)
    machine.add_batch(1, [(4, b"x"), (5, b"x")], None, lac=3)
    machine.add_entry(1, 6, b"x", None, lac=4)
    machine.engine.write_lac(1, KEY, lac_body(5), None)
    assert news == [(1, 1), (1, 3), (1, 4), (1, 5)]
    machine.engine.fence(1, KEY, None)
    assert len(news) == 5
    machine.engine.drop([1], 0)
    assert len(news) == 6


def test_clean_stop_answers_everything_first() -> None:
    machine = running()
    machine.add(1, [(0, b"x")], "add")
    machine.engine.fence(1, KEY, "fence")
    machine.engine.force(1, "force")
    machine.stop()
    assert machine.durable == ["add", "fence", "force"]


def test_stop_whose_disk_fails_at_the_end_loses_nothing_and_its_locks() -> None:
    machine = running(options=small_options())
    machine.add(1, [(0, b"x")], None)
    machine.settle()
    machine.engine.checkpoint()
    machine.settle()
    machine.files.fail("write", path="*.log", times=None)
    with pytest.raises(OSError, match="error"):
        machine.stop()
    machine.files._faults.clear()
    machine.start()
    assert machine.read(1, 0) == b"x"


def test_abandoned_store_can_be_opened_again() -> None:
    machine = running()
    machine.add(1, [(0, b"x")], None)
    machine.settle()
    assert machine.store is not None
    machine.store.abandon()
    machine.start()
    assert machine.read(1, 0) == b"x"
