"""Generations of thousands of ledgers: written in one loop, and let go of a few at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from bookie.core.ledger import Ledger
from bookie.core.runs import ENTRIES_MAX, run_of
from bookie.core.write_cache import Part, WriteCache, find
from bookie.storage.checkpoints import DETACH_STEP
from bookie.storage.engine_values import EngineOptions
from bookie.storage.entry_log_writer import CHUNK_BYTES, EntryLogWriter
from bookie.storage.index_interface import Change
from bookie.storage.journal_options import JournalOptions
from bookie.storage.start import StoreOptions
from tests.bookie.machine import KEY, Machine, entry_of, requests
from tests.bookie.test_entry_log import DIRECTORY, file_system, no_state, start_log
from tests.bookie.test_entry_log_format import entry
from wire.build_v2 import add_requests
from wire.scan_v2 import AddMix
from wire.types import LedgerId

SIZE_MAX = 1 << 30


def ledger(ledger_id: int) -> Ledger:
    return Ledger(LedgerId(ledger_id), home=0, journal=0, is_new=True)


def part_of(ledger_id: int, sizes: Mapping[int, int]) -> Part:
    """A part whose entries came alone, in this order, with payloads of these sizes."""
    part = Part(ledger(ledger_id), 1)
    for entry_id, size in sizes.items():
        part.add_entries([entry_id], [entry(ledger_id, entry_id, bytes([entry_id % 251]) * size)])
    return part


def append_small(
    writer: EntryLogWriter, parts: list[Part], size_max: int = SIZE_MAX
) -> tuple[int, list[Change], list[int]]:
    keys: list[Change] = []
    sizes: list[int] = []
    reached = writer.append_small(parts, 0, 7, size_max, keys, sizes)
    assert len(keys) == len(sizes) == reached
    return reached, keys, sizes


def plain_part(rng: random.Random, ledger_id: int) -> Part:
    first = rng.randrange(1 << 40)
    size = rng.choice((10, 10, 200))
    return part_of(ledger_id, dict.fromkeys(range(first, first + rng.randint(1, 9)), size))


@pytest.mark.parametrize("seed", range(10))
def test_small_parts_are_written_as_their_runs_would_be(seed: int) -> None:
    rng = random.Random(seed)
    parts = [plain_part(rng, rng.randint(1, 5)) for _ in range(60)]
    files, expected_files = file_system(), file_system()
    writer, expected = start_log(files), start_log(expected_files)
    reached, keys, sizes = append_small(writer, parts)
    runs = [(part.ledger.id, run) for part in parts for run in part.runs_to_write()]
    assert reached == len(parts)
    assert keys == [expected.append_run(ledger_id, run, 7) for ledger_id, run in runs]
    assert sizes == [len(run.body) for _, run in runs]
    assert (writer.size, writer.buffered_bytes, writer.run_count) == (
        expected.size, expected.buffered_bytes, expected.run_count,
    )  # fmt: skip
    writer.seal(no_state)
    expected.seal(no_state)
    path = writer.path
    assert path.startswith(DIRECTORY)
    assert files.open(path).read(writer.size, 0) == expected_files.open(path).read(writer.size, 0)


def with_a_run() -> Part:
    part = part_of(3, {0: 10})
    part.add_run(run_of([1], [entry(3, 1, b"alone")]))
    return part


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(part_of(3, {0: 10, 2: 10}), id="gap"),
        pytest.param(part_of(3, {1: 10, 0: 10}), id="descending"),
        pytest.param(part_of(3, {0: 10, 2: 10, 1: 10, 3: 10}), id="shuffled"),
        pytest.param(part_of(3, {0: 10, 1: 20, 2: 15}), id="sizes differ"),
        pytest.param(part_of(3, {0: 10, 1: 20, 2: 0}), id="sizes that differ and average out"),
        pytest.param(part_of(3, dict.fromkeys(range(ENTRIES_MAX + 1), 1)), id="too many"),
        pytest.param(part_of(3, {0: 600_000, 1: 600_000}), id="too big"),
        pytest.param(with_a_run(), id="runs"),
    ],
)
def test_part_of_another_kind_is_left_to_the_general_way(other: Part) -> None:
    plain = [part_of(1, {0: 10, 1: 10}), part_of(2, {5: 700})]
    writer = start_log(file_system())
    reached, _, _ = append_small(writer, [*plain, other, part_of(4, {0: 1})])
    assert reached == 2
    assert writer.run_count == 2


def test_entry_beyond_the_limit_is_a_run_by_itself() -> None:
    assert append_small(start_log(file_system()), [part_of(1, {0: 2 << 20})])[0] == 1


def test_small_parts_stop_where_a_chunk_is_due_and_where_the_log_is_full() -> None:
    parts = [part_of(n, {0: 1000, 1: 1000}) for n in range(1, 300)]
    writer = start_log(file_system())
    reached, _, sizes = append_small(writer, parts)
    assert writer.is_chunk_due
    assert writer.buffered_bytes - sizes[-1] < CHUNK_BYTES
    assert reached < len(parts)
    writer = start_log(file_system())
    reached, _, _ = append_small(writer, parts, size_max=10_000)
    assert 0 < reached < 5
    assert writer.size <= 10_000


def test_sealed_part_stays_readable_and_gives_way_to_the_next() -> None:
    cache, one, two = WriteCache(first_generation=1, now=0.0), ledger(1), ledger(2)
    for each in (one, two):
        cache.part(each).add_entries([0], [b"old"])
    sealed = cache.seal(1.0)
    cache.part(one).add_entries([0, 1], [b"new", b"more"])
    assert [find(one, 0), find(one, 1), find(two, 0)] == [b"new", b"more", b"old"]
    assert [len(one.sealed), len(two.sealed)] == [1, 0]
    assert cache.detach_some(1) is False
    assert cache.detach_some(1) is True
    assert [find(one, 0), find(two, 0)] == [b"new", None]
    assert one.is_pinned
    assert not two.is_pinned
    cache.drop(sealed)
    assert not cache.sealed
    assert find(one, 0) == b"new"


def add_to_all(machine: Machine, count: int, entry_id: int) -> None:
    entries = [entry_of(n, entry_id, b"x" * 50) for n in range(1, count + 1)]
    for item in requests(add_requests(entries, master_key=KEY)):
        assert isinstance(item, AddMix)
        assert machine.engine.add_mix(item) == {}
    machine.engine.commit(entry_id)


def test_generation_of_many_ledgers_is_let_go_of_in_steps_and_lost_in_none() -> None:
    count = 2 * DETACH_STEP + 10
    journal = JournalOptions(file_bytes=2 << 20)
    machine = Machine(options=StoreOptions(engine=EngineOptions(), journal=journal))
    machine.start()
    machine.settle()
    told = len(machine.checkpoints)
    add_to_all(machine, count, 0)
    machine.engine.checkpoint()
    add_to_all(machine, count, 1)  # before the flush: both generations hold every ledger
    machine.settle()
    assert len(machine.checkpoints) == told + 1
    for n in (1, count // 2, count):
        assert [machine.read(n, 0), machine.read(n, 1)] == [b"x" * 50] * 2
        assert not machine.engine.ledger(n).sealed
    machine.engine.checkpoint()
    machine.settle()
    assert not any(machine.engine.ledger(n).is_pinned for n in range(1, count + 1))
