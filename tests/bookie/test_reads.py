"""Reading: cache, blocks, index, log, in that order; cold pieces; damage; what absence means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.core.read_cache import BLOCK_BYTES_MAX, LATEST_MAX, ReadCache
from bookie.core.runs import Run, run_of
from bookie.storage.indexed_run import IndexedRun
from bookie.storage.reads import Batch, Cold
from tests.bookie.machine import Machine, entries_of, small_options
from wire.errors import Status
from wire.types import LAST_ENTRY, Flag

RECOVERY = int(Flag.RECOVERY_ADD)


def stored(
    entries: dict[int, bytes], *, cached: bool = True, cache_bytes: int = 64 << 10
) -> Machine:
    """A machine with these entries of ledger 1 in its entry log, and nothing in memory."""
    options = small_options()
    engine = replace(options.engine, read_cache_bytes=cache_bytes)
    machine = Machine(options=replace(options, engine=engine))
    machine.start()
    machine.add_batch(1, sorted(entries.items()), None)
    machine.settle()
    machine.stop()
    machine.files.is_cached = lambda path, offset, size: cached
    machine.start()
    machine.settle()
    return machine


def count_reads(machine: Machine) -> list[str]:
    reads: list[str] = []
    machine.files.on_operation = lambda operation, path: (
        reads.append(path) if operation == "read" else None
    )
    return reads


def test_cold_entry_is_fetched_and_then_found() -> None:
    machine = stored({0: b"zero", 1: b"one"}, cached=False)
    cold = machine.engine.read(1, 1)
    assert isinstance(cold, Cold)
    done: list[bool] = []
    machine.engine.fetch(cold, lambda: done.append(True))
    assert done == []
    machine.settle()
    assert done == [True]
    found = machine.engine.read(1, 1)
    assert isinstance(found, bytes)
    assert found[32:] == b"one"


def test_random_reader_gets_its_entry_and_a_sequential_one_the_block() -> None:
    machine = stored(dict.fromkeys(range(50), b"x" * 100), cached=False)
    cold = machine.engine.read(1, 30)
    assert isinstance(cold, Cold)
    assert (cold.start, cold.end) == (30, 31)
    assert machine.read(1, 30) == b"x" * 100
    cold = machine.engine.read(1, 31)
    assert isinstance(cold, Cold)
    assert (cold.start, cold.end) == (0, 50)


def test_sequential_reader_reads_a_block_once() -> None:
    machine = stored(dict.fromkeys(range(50), b"x" * 100))
    reads = count_reads(machine)
    assert [machine.read(1, n) for n in range(50)] == [b"x" * 100] * 50
    assert len(reads) == 1
    assert machine.engine.statistics().entries_read == 50


def test_large_run_is_cut_into_the_same_blocks_for_everybody() -> None:
    size = BLOCK_BYTES_MAX // 4
    machine = stored({n: bytes([n]) * size for n in range(10)}, cached=False)
    pieces = set()
    for entry_id in (0, 1, 4, 9):
        machine.engine.ledger(1).last_read = entry_id - 1
        cold = machine.engine.read(1, entry_id)
        assert isinstance(cold, Cold)
        assert cold.run.start(cold.end) - cold.run.start(cold.start) <= BLOCK_BYTES_MAX
        pieces.add((cold.start, cold.end))
    assert pieces == {(0, 3), (3, 6), (9, 10)}
    assert [machine.read(1, n) for n in range(10)] == [bytes([n]) * size for n in range(10)]


def test_run_of_reads_answers_each_by_itself() -> None:
    machine = stored({n: b"%d" % n for n in range(0, 20, 2)})
    machine.add(1, [(19, b"cached"), (4, b"newer")], None)
    asked = [4, 0, 1, 2, 19, 18, 40, -5, 6, 8, 10, 10]
    found = machine.engine.read_run(1, asked)
    payloads = [entry[32:] if isinstance(entry, bytes) else entry for entry in found]
    no = Status.NO_ENTRY
    assert payloads == [
        b"newer", b"0", no, b"2", b"cached", b"18", no, no, b"6", b"8", b"10", b"10",
    ]  # fmt: skip
    assert machine.engine.read_run(2, [0, 1]) == [Status.NO_LEDGER] * 2


@pytest.mark.parametrize("sizes", [[70], [70, 71, 300]])
def test_neighbours_are_cut_out_of_their_block_whatever_their_sizes(sizes: list[int]) -> None:
    entries = {n: bytes([n]) * sizes[n % len(sizes)] for n in range(150)}
    machine = stored(entries)
    for first, last in [(0, 150), (3, 131), (149, 150), (80, 150)]:
        found = machine.engine.read_run(1, range(first, last))
        assert [entry[32:] for entry in found if isinstance(entry, bytes)] == [
            entries[n] for n in range(first, last)
        ]


def test_entries_of_one_block_are_read_in_any_order() -> None:
    machine = stored({n: b"%d" % n for n in range(9)})
    for asked in ([3, 1, 1, 2, 5, 4, 0], [0, 1, 2, 8], [5, 6, 6, 8], [8, 7, 6], [2, 4, 3, 5]):
        found = machine.engine.read_run(1, asked)
        assert [entry[32:] for entry in found if isinstance(entry, bytes)] == [
            b"%d" % n for n in asked
        ]


@pytest.mark.parametrize("stored_each", [1, 2], ids=["dense", "striped"])
@pytest.mark.parametrize("sizes", [[70], [70, 71, 300]], ids=["one size", "sizes"])
def test_reader_that_leaves_some_out_gets_its_entries_from_one_block(
    stored_each: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's client asks each bookie of an ensemble for its share."""
    entries = {n: bytes([n % 256]) * sizes[n % len(sizes)] for n in range(0, 300, stored_each)}
    machine = stored(entries)
    looked_up = count_look_ups(machine, monkeypatch)
    reads = count_reads(machine)
    for start in (0, 2, 150):
        asked = range(start, 300, 4)
        found = machine.engine.read_run(1, asked)
        assert [entry[32:] for entry in found if isinstance(entry, bytes)] == [
            entries[n] for n in asked
        ]
    assert looked_up == [0]
    assert len(reads) == 1


def test_reader_one_by_one_that_leaves_some_out_is_a_sequential_one() -> None:
    machine = stored({n: b"%d" % n for n in range(300)})
    machine.read(1, 100)
    reads = count_reads(machine)
    asked = range(103, 300, 3)
    assert [machine.read(1, n) for n in asked] == [b"%d" % n for n in asked]
    assert len(reads) == 1


def test_gap_in_what_is_here_is_one_answer_and_the_rest_goes_on() -> None:
    machine = stored({n: b"%d" % n for n in range(100) if n not in (10, 11, 50)})
    found = machine.engine.read_run(1, range(100))
    assert [at for at, entry in enumerate(found) if entry is Status.NO_ENTRY] == [10, 11, 50]
    assert [entry[32:] for entry in found if isinstance(entry, bytes)] == [
        b"%d" % n for n in range(100) if n not in (10, 11, 50)
    ]


def count_look_ups(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The entry ids that the index is asked for from now on."""
    index = machine.engine.directories[0].index
    asked: list[int] = []
    find_run = index.find_run

    def counted(ledger_id: int, entry_id: int) -> IndexedRun | None:
        asked.append(entry_id)
        return find_run(ledger_id, entry_id)

    monkeypatch.setattr(index, "find_run", counted)
    return asked


def test_row_of_reads_that_must_wait_waits_for_each_block_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = BLOCK_BYTES_MAX // 4
    machine = stored(dict.fromkeys(range(10), b"x" * size), cached=False)
    machine.add(1, [(5, b"newer")], None, flags=RECOVERY)
    asked = count_look_ups(machine, monkeypatch)
    found = machine.engine.read_run(1, range(1, 5))
    assert [(cold.start, cold.end) for cold in found if isinstance(cold, Cold)] == [
        (0, 3), (0, 3), (3, 6), (3, 6),
    ]  # fmt: skip
    assert asked == [1, 3]
    found = machine.engine.read_run(1, range(3, 8))
    assert [type(answer) for answer in found] == [Cold, Cold, bytes, Cold, Cold]


def test_reads_that_leave_some_out_wait_for_each_block_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = BLOCK_BYTES_MAX // 8
    machine = stored(dict.fromkeys(range(0, 40, 2), b"x" * size), cached=False)
    asked = count_look_ups(machine, monkeypatch)
    found = machine.engine.read_run(1, range(0, 40, 4))
    colds = [(cold.start, cold.end) for cold in found if isinstance(cold, Cold)]
    assert len(colds) == 10
    assert len(set(colds)) == len(asked) == 3


def test_last_entry_among_cold_reads_stands_for_itself() -> None:
    machine = stored(dict.fromkeys(range(10), b"x" * (BLOCK_BYTES_MAX // 4)), cached=False)
    found = machine.engine.read_run(1, [LAST_ENTRY, 0, 1])
    places = [(cold.start, cold.end) for cold in found if isinstance(cold, Cold)]
    assert places == [(9, 10), (0, 3), (0, 3)]


def test_next_block_of_a_run_is_found_without_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    size = BLOCK_BYTES_MAX // 4
    machine = stored({n: bytes([n]) * size for n in range(10)})
    asked = count_look_ups(machine, monkeypatch)
    assert [machine.read(1, n) for n in range(10)] == [bytes([n]) * size for n in range(10)]
    assert asked == [0]


def test_next_block_of_a_run_that_moved_is_looked_up_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    size = BLOCK_BYTES_MAX // 4
    machine = stored({n: bytes([n]) * size for n in range(10)})
    asked = count_look_ups(machine, monkeypatch)
    assert machine.read(1, 0) == bytes(size)
    directory = machine.engine.directories[0]
    read_cached = directory.read_cached
    moved = [True]

    def gone_once(run: IndexedRun, start: int, end: int) -> bytes | None:
        if moved.pop():
            moved.append(False)
            raise FileNotFoundError(run)
        moved.append(False)
        return read_cached(run, start, end)

    monkeypatch.setattr(directory, "read_cached", gone_once)
    assert [machine.read(1, n) for n in range(10)] == [bytes([n]) * size for n in range(10)]
    assert asked == [0, 3]
    assert machine.damage == []


def large_entries(count: int) -> dict[int, bytes]:
    """Three of them make a block, ten a run."""
    return {n: bytes([n]) * (BLOCK_BYTES_MAX // 4) for n in range(count)}


def waits(machine: Machine, entry_id: int) -> bool:
    """Whether a reader of this entry has to wait for the disk; it gets it then, as do others."""
    found = machine.engine.read_run(1, [entry_id])[0]
    if isinstance(found, Cold):
        machine.engine.fetch(found, lambda: None)
    machine.settle()
    assert isinstance(machine.engine.read_run(1, [entry_id])[0], bytes)
    machine.settle()
    return isinstance(found, Cold)


def test_reader_that_had_to_wait_finds_the_next_blocks_fetched() -> None:
    machine = stored(large_entries(32), cached=False, cache_bytes=16 << 20)
    assert [n for n in range(32) if waits(machine, n)] == [0], "over the border of a run, too"


def test_batch_reader_that_had_to_wait_finds_the_next_blocks_fetched() -> None:
    machine = stored(large_entries(32), cached=False, cache_bytes=16 << 20)
    colds = 0
    first = 0
    while first < 32:
        found = machine.engine.read_batch(1, first, count_max=2, bytes_max=1 << 20)
        if isinstance(found, Batch):
            first += found.entry_count
        else:
            assert isinstance(found, Cold)
            machine.engine.fetch(found, lambda: None)
            colds += 1
        machine.settle()
    assert colds == 1


def test_nothing_is_fetched_ahead_of_a_reader_who_jumps_or_whom_the_page_cache_serves() -> None:
    machine = stored(large_entries(32), cached=False, cache_bytes=16 << 20)
    assert all(waits(machine, n) for n in (20, 11, 2, 30))
    machine = stored(large_entries(32), cache_bytes=16 << 20)
    machine.read(1, 0)
    reads = count_reads(machine)
    machine.read(1, 2)
    machine.settle()
    assert reads == []


def test_blocks_fetched_ahead_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = stored(large_entries(10), cached=False, cache_bytes=16 << 20)
    assert waits(machine, 0)
    monkeypatch.setattr("bookie.storage.reads.AHEAD_MAX", 0)
    machine.engine.read_run(1, [2])
    machine.settle()
    assert waits(machine, 3)


def test_failure_to_fetch_ahead_is_no_damage_until_somebody_asks() -> None:
    machine = stored(large_entries(10), cached=False, cache_bytes=16 << 20)
    assert waits(machine, 0)
    fault = machine.files.fail("read", path="*.log", times=None)
    assert isinstance(machine.engine.read_run(1, [2])[0], bytes)
    machine.settle()
    assert machine.damage == []
    fault.clear()
    assert waits(machine, 3)


def test_batch_goes_from_log_to_cache_and_ends_at_the_first_gap() -> None:
    machine = stored({n: b"%d" % n for n in range(5)})
    machine.add_batch(1, [(5, b"5"), (6, b"6"), (9, b"9")], None)
    machine.add(1, [(7, b"7"), (8, b"8")], None)
    assert machine.read_batch(1, 0) == [b"%d" % n for n in range(10)]
    assert machine.read_batch(1, 3, count_max=4) == [b"3", b"4", b"5", b"6"]
    machine.add(1, [(11, b"11")], None)
    assert machine.read_batch(1, 8) == [b"8", b"9"]
    assert machine.read_batch(1, 10) is Status.NO_ENTRY
    assert machine.read_batch(1, -1) is Status.NO_ENTRY
    assert machine.read_batch(3, 0) is Status.NO_LEDGER


@pytest.mark.parametrize("flushed", [False, True])
def test_batch_is_limited_by_bytes_but_holds_one_entry_at_least(flushed: bool) -> None:
    machine = stored(dict.fromkeys(range(8), b"x" * 68))
    if not flushed:
        machine.add(1, [(n, b"x" * 68) for n in range(8)], None)
    for limit, count in [(0, 1), (1, 1), (104, 1), (207, 1), (208, 2), (312, 3), (1 << 20, 8)]:
        found = machine.engine.read_batch(1, 0, count_max=0, bytes_max=limit)
        assert isinstance(found, Batch)
        assert found.entry_count == count
        assert len(entries_of(found)) == count


def test_batch_that_meets_a_cold_piece_later_is_answered_with_what_it_has() -> None:
    machine = stored(dict.fromkeys(range(5), b"log"), cached=False)
    machine.add(1, [(5, b"cached")], None)
    assert isinstance(machine.engine.read_batch(1, 0, count_max=0, bytes_max=99), Cold)
    assert machine.read_batch(1, 5) == [b"cached"]
    machine.files.is_cached = lambda path, offset, size: True
    assert machine.read_batch(1, 0) == [b"log"] * 5 + [b"cached"]


def test_newest_copy_wins_wherever_it_is() -> None:
    machine = stored({0: b"oldest"})
    for flushes in range(3):
        machine.add(1, [(0, b"newer %d" % flushes)], None, flags=RECOVERY)
        assert machine.read(1, 0) == b"newer %d" % flushes
        assert machine.read_batch(1, 0) == [b"newer %d" % flushes]
        assert machine.engine.read_run(1, [0]) == [machine.engine.read(1, 0)]
        machine.settle()


def test_unreadable_place_is_left_alone_for_a_minute_and_then_tried_again() -> None:
    machine = stored({0: b"precious"})
    fault = machine.files.fail("read", path="*.log", times=None)
    assert machine.read(1, 0) is Status.IO_ERROR
    assert len(machine.damage) == 1
    fault.clear()
    assert machine.read(1, 0) is Status.IO_ERROR, "not asked again so soon"
    assert len(machine.damage) == 1
    machine.now += 61
    assert machine.read(1, 0) == b"precious"


def test_cold_piece_that_cannot_be_read_is_an_error() -> None:
    machine = stored({0: b"precious"}, cached=False)
    machine.files.fail("read", path="*.log", times=None)
    assert machine.read(1, 0) is Status.IO_ERROR
    assert machine.damage


def test_run_that_moved_before_the_fetch_is_found_where_it_is_now() -> None:
    machine = stored({0: b"precious"}, cached=False)
    cold = machine.engine.read(1, 0)
    assert isinstance(cold, Cold)
    gone = replace_log(cold, log_id=77)
    machine.engine.fetch(gone, lambda: None)
    machine.settle()
    assert machine.read(1, 0) == b"precious"


def replace_log(cold: Cold, *, log_id: int) -> Cold:
    """The same piece in a log that is not there any more."""
    key = bytearray(cold.run.key)
    key[-8:-4] = log_id.to_bytes(4, "big")
    return cold._replace(run=type(cold.run)(bytes(key), cold.run.value))


def test_failing_index_is_an_error_and_no_proof_of_absence() -> None:
    machine = stored({0: b"precious"})
    machine.engine.ledger(1)
    for index in machine.opened.values():
        index.die()
    assert machine.read(1, 0) is Status.IO_ERROR
    assert machine.read_batch(1, 0) is Status.IO_ERROR


def test_reads_under_way_keep_their_ledger_in_memory() -> None:
    machine = stored({0: b"x"}, cached=False)
    cold = machine.engine.read(1, 0)
    assert isinstance(cold, Cold)
    machine.engine.fetch(cold, lambda: None)
    assert machine.engine.ledger(1).is_pinned
    machine.settle()
    assert not machine.engine.ledger(1).is_pinned


def test_read_cache_keeps_to_its_size_and_drops_the_oldest() -> None:
    cache: ReadCache[Run] = ReadCache(1600)
    blocks = [run_of([n], [bytes(60)]) for n in range(40)]
    for number, block in enumerate(blocks):
        cache.put((0, number, 0), block)
        cache.get((0, 0, 0))
    assert cache.bytes == sum(len(block.body) for block in blocks[:25])
    assert cache.get((0, 0, 0)) is blocks[0], "used all the time"
    assert cache.get((0, 1, 0)) is None
    assert cache.get((0, 39, 0)) is blocks[39]
    cache.put((1, 0, 0), run_of([0], [bytes(101)]))
    assert cache.get((1, 0, 0)) is None, "a block that would drive out too many others"


def test_read_cache_remembers_the_latest_blocks_of_a_few_ledgers() -> None:
    cache: ReadCache[Run] = ReadCache(0)
    for ledger_id in range(LATEST_MAX + 1):
        cache.remember(ledger_id, run_of([5, 6], [b"five", b"six"]))
    assert cache.latest(0, 5) is None
    assert cache.latest(1, 5) is not None
    assert cache.latest(1, 7) is None
    cache.forget(1)
    assert cache.latest(1, 5) is None


def test_memory_for_blocks_is_bounded_by_the_option() -> None:
    options = small_options()
    engine = replace(options.engine, read_cache_bytes=30_000)
    machine = Machine(options=replace(options, engine=engine))
    machine.start()
    for ledger_id in range(30):
        machine.add(ledger_id, [(n, b"x" * 100) for n in range(10)], None)
    machine.settle()
    machine.stop()
    machine.start()
    for ledger_id in range(30):
        assert machine.read_batch(ledger_id, 0) == [b"x" * 100] * 10
    assert 20_000 < machine.engine.statistics().read_cache_bytes <= 30_000
