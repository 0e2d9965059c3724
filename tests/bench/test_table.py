"""The tables of the interop matrix: a part that is run again replaces its own cells only."""

from __future__ import annotations

from pathlib import Path

from tests.interop.table import OUR_COLUMNS, Cell, Results

MARKS = "before\n<!-- written by make interop -->\n<!-- end -->\nafter\n"


def run(path: Path, *, passed: bool, column: int, crossing: bool | None = None) -> str:
    results = Results()
    results.add_row("add", {"older": True}, "test_add", OUR_COLUMNS)
    node = f"tests/interop/test_x.py::test_add[{OUR_COLUMNS[column]}-CRC32]"
    results.note(node, passed=passed)
    if crossing is not None:
        results.note_crossing(writer="ours", other="Java v2", bookies="mixed", passed=crossing)
    results.write(path)
    return path.read_text()


def test_second_run_keeps_the_cells_that_it_did_not_run(tmp_path: Path) -> None:
    path = tmp_path / "interop.md"
    path.write_text(MARKS)
    text = run(path, passed=False, column=0, crossing=True)
    assert "| add | **fail** | not run | not run |" in text
    text = run(path, passed=True, column=1)
    assert "| add | **fail** | pass | not run |" in text
    assert "| ours writes, Java v2 takes over | not run | not run | 1 of 1 |" in text
    text = run(path, passed=True, column=0, crossing=False)
    assert "| add | pass | pass | not run |" in text
    assert "| ours writes, Java v2 takes over | not run | not run | **0 of 1** |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_table_with_cells_of_its_own_keeps_what_was_not_run(tmp_path: Path) -> None:
    path = tmp_path / "interop.md"
    path.write_text(MARKS)
    for node, passed in (("a", False), ("b", True)):
        results = Results()
        results.add_cell("a", Cell("Healing", "a loss", "ours"))
        results.add_cell("b", Cell("Healing", "a loss", "Apache's"))
        results.add_cell("c", Cell("Healing", "two losses", "Apache's"))
        results.note(node, passed=passed)
        results.write(path)
    text = path.read_text()
    assert "| Healing | ours | Apache's |" in text
    assert "| a loss | **fail** | pass |" in text
    assert "| two losses |  | not run |" in text


def test_crossings_of_a_selection_do_not_hide_those_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "interop.md"
    path.write_text(MARKS)
    row = "| ours writes, Java v2 takes over | not run | not run | {} |"
    for outcomes, shown in (
        ([True] * 16, "16 of 16"),
        ([True], "16 of 16"),
        ([True, False], "**1 of 2**"),
        ([True], "1 of 1"),
    ):
        results = Results()
        for passed in outcomes:
            results.note_crossing(writer="ours", other="Java v2", bookies="mixed", passed=passed)
        results.write(path)
        assert row.format(shown) in path.read_text()
