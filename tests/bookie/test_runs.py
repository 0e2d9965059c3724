"""Runs against a plain model: whatever is joined or cut, every entry is found and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.runs import (
    BYTES_MAX,
    ENTRIES_MAX,
    SPAN_MAX,
    Run,
    cut,
    join,
    run_of,
    runs_of_entries,
)

entries = st.dictionaries(
    st.one_of(st.integers(0, 40), st.integers(0, 20_000), st.integers(2**62, 2**62 + 50)),
    st.binary(min_size=32, max_size=40),
    min_size=1,
    max_size=60,
)


def whole(model: dict[int, bytes]) -> Run:
    ids = sorted(model)
    return run_of(ids, [model[i] for i in ids])


def contents(runs: Iterable[Run]) -> dict[int, bytes]:
    """What the runs hold, later ones over earlier ones; checks what every run promises."""
    found: dict[int, bytes] = {}
    for run in runs:
        assert len(run.body) <= BYTES_MAX or run.count == 1
        assert run.count <= ENTRIES_MAX
        assert run.last - run.first < SPAN_MAX
        assert list(run.ids) == sorted(set(run.ids))
        assert len(run.starts) == run.count + 1
        assert run.starts[-1] == len(run.body)
        assert run.is_dense == (run.last - run.first + 1 == run.count)
        for position, entry_id in enumerate(run.ids):
            entry = run.entry(entry_id)
            assert entry is not None
            start = run.starts[position]
            assert int.from_bytes(run.body[start : start + 4], "big") == len(entry)
            found[entry_id] = entry
    return found


@given(entries)
def test_entries_become_runs_that_hold_exactly_them(model: dict[int, bytes]) -> None:
    runs = list(runs_of_entries(model))
    assert contents(runs) == model
    assert sum(run.count for run in runs) == len(model)


@given(entries)
def test_cutting_keeps_every_entry(model: dict[int, bytes]) -> None:
    assert contents(cut(whole(model))) == model


@given(st.lists(entries, min_size=1, max_size=5))
def test_joining_keeps_the_newest_copy_last(models: list[dict[int, bytes]]) -> None:
    expected: dict[int, bytes] = {}
    for model in models:
        expected |= model
    assert contents(join(whole(model) for model in models)) == expected


@given(entries, st.integers(0, 20_001))
def test_look_up_agrees_with_the_model(model: dict[int, bytes], probe: int) -> None:
    run = whole(model)
    assert run.entry(probe) == model.get(probe)


@given(entries, st.data())
def test_neighbours_are_the_consecutive_ids(model: dict[int, bytes], data: st.DataObject) -> None:
    run = whole(model)
    position = data.draw(st.integers(0, run.count - 1))
    expected = 1
    while position + expected < run.count and (
        run.ids[position + expected] == run.ids[position] + expected
    ):
        expected += 1
    assert run.neighbours(position) == expected


def test_runs_of_one_record_size_carry_no_tables() -> None:
    model = {i: bytes(100) for i in range(1000)}
    runs = list(runs_of_entries(model))
    assert [run.count for run in runs] == [512, 488]
    assert all(run.is_dense and run.record_bytes == 104 for run in runs)
    [joined] = join(Run(range(i, i + 8), range(0, 833, 104), bytes(832)) for i in range(0, 80, 8))
    assert joined.is_dense
    assert joined.record_bytes == 104


def test_striped_ids_are_cut_at_the_span() -> None:
    """Thousands of tiny striped entries in one batch: no run may span what look-ups skip."""
    model = {i * 20: bytes(32) for i in range(3000)}
    assert contents(cut(whole(model))) == model


def test_large_entries_are_runs_by_themselves() -> None:
    model = {0: bytes(40), 1: bytes(BYTES_MAX + 5), 2: bytes(40), 3: bytes(BYTES_MAX - 50)}
    assert contents(runs_of_entries(model)) == model
    assert contents(cut(whole(model))) == model
