"""Thousands of keys, ledgers and copies are never freed in one step: the loop waits for the GIL."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from bookie.core.letting_go import STEP, let_go, take
from bookie.storage import entry_log_reader
from bookie.storage.entry_log_format import LedgerTotals, RunHeader, decode_footer, encode_footer
from bookie.storage.index_interface import Change
from bookie.storage.log_table import PIECE_CHANGES, LogTable
from tests.bookie.garbage_world import (
    check_alive,
    check_counts,
    checkpoint,
    compact,
    drop,
    fill,
    options,
    with_log_bytes,
)
from tests.bookie.machine import Machine
from tests.bookie.test_entry_log import append, file_system, no_state, open_log, start_log


class Mortal(bytes):
    """Tells when it is freed."""

    on_death: ClassVar[Callable[[], None]] = lambda: None

    def __del__(self) -> None:
        Mortal.on_death()


@pytest.fixture(autouse=True)
def forget_the_dead() -> None:
    Mortal.on_death = lambda: None


@pytest.mark.parametrize("count", [1, 3, 9, 10, 11, 50])
def test_what_is_taken_from_a_reversed_list_comes_in_its_old_order(count: int) -> None:
    objects = list(range(10))
    objects.reverse()
    taken = []
    while objects:
        some = take(objects, count)
        assert 0 < len(some) <= count
        taken += some
    assert taken == list(range(10))


def test_objects_of_a_list_go_a_few_at_a_time() -> None:
    objects = [Mortal() for _ in range(3 * STEP + 7)]
    left: list[int] = []
    Mortal.on_death = lambda: left.append(len(objects))
    let_go(objects)
    assert len(left) == 3 * STEP + 7
    assert max(Counter(left).values()) <= STEP
    assert not objects


def test_objects_of_a_dictionary_go_one_by_one() -> None:
    objects = {n: Mortal() for n in range(1000)}
    left: list[int] = []
    Mortal.on_death = lambda: left.append(len(objects))
    let_go(objects)
    assert left == list(range(999, -1, -1))


def noted(table: LogTable, note: Callable[[Sequence[Change]], None]) -> None:
    """Have `note` hear of every piece before the index does."""
    apply = table.index.apply

    def noting(piece: Sequence[Change]) -> None:
        note(piece)
        apply(piece)

    table.index.apply = noting  # type: ignore[method-assign]


def test_keys_of_a_checkpoint_go_as_they_are_written_and_in_their_order() -> None:
    machine = Machine(options=options())
    machine.start()
    machine.settle()
    table = LogTable(machine.engine.directories[0].index, sleep=lambda seconds: None)
    states: list[Change] = [(b"S%06d" % n, b"state") for n in range(300)]
    keys: list[Change] = [(b"T%06d" % n, b"run") for n in range(1500)]
    sizes = [7] * len(keys)
    expected = states + keys
    pieces: list[Sequence[Change]] = []
    left: list[int] = []

    def note(piece: Sequence[Change]) -> None:
        pieces.append(piece)
        left.append(len(states) + len(keys))

    noted(table, note)
    table.add_runs(states, [(99, keys, sizes)])
    assert [change for piece in pieces for change in piece] == expected
    assert all(len(piece) <= PIECE_CHANGES for piece in pieces)
    done = 0
    for piece, after in zip(pieces, left, strict=True):
        done += len(piece)
        assert after == len(expected) - done
    assert not sizes


def test_footer_of_many_ledgers_ascends_and_is_made_ledger_by_ledger() -> None:
    ids = random.Random(1).sample(range(1 << 40), 10_000)
    alive = most = 0

    def died() -> None:
        nonlocal alive
        alive -= 1

    def totals_of(ledger_id: int) -> LedgerTotals:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        return LedgerTotals(ledger_id % 1000, 2, 1, 0, Mortal(b"key"))

    Mortal.on_death = died
    data = encode_footer(7, 5000, ids, totals_of)
    assert most <= 2
    footer = decode_footer(data[:-24], log_id=7, offset=5000)
    assert footer is not None
    assert list(footer.ledgers) == sorted(ids)
    assert all(
        totals == LedgerTotals(ledger_id % 1000, 2, 1, 0, b"key")
        for ledger_id, totals in footer.ledgers.items()
    )


def test_walk_over_a_log_decodes_no_ledger_of_its_footer(monkeypatch: pytest.MonkeyPatch) -> None:
    files = file_system()
    writer = start_log(files)
    runs = [append(writer, ledger_id, [1, 2]) for ledger_id in range(1, 50)]
    writer.seal(no_state)
    monkeypatch.delattr(entry_log_reader, "decode_footer")
    found = list(open_log(files).hop())
    assert all(isinstance(run, RunHeader) for run in found)
    assert [run.offset for run in found] == [run.offset for run in runs]


def test_compaction_reads_and_exchanges_keys_by_turns() -> None:
    machine = Machine(options=with_log_bytes(options(), 400_000))
    machine.start()
    machine.settle()
    fill(machine, range(1, 601), range(1))
    checkpoint(machine)
    drop(machine, *range(1, 601, 2))
    directory = machine.engine.directories[0]
    events: list[str] = []
    get = directory.index.get

    def noting_get(key: bytes) -> bytes | None:
        events.append("get")
        return get(key)

    directory.index.get = noting_get  # type: ignore[method-assign]
    noted(directory.table, lambda piece: events.append("moves" if len(piece) > 10 else "few"))
    compact(machine)
    moves = [n for n, event in enumerate(events) if event == "moves"]
    assert len(moves) > 1
    assert "get" in events[moves[0] : moves[-1]], "not everything was read before the first piece"
    check_alive(machine, range(2, 601, 2), range(1))
    check_counts(machine)
