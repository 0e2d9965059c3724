"""The matrix as a table: rows are tests, columns are clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Column:
    version: str
    wire: str

    def __str__(self) -> str:
        return f"{self.version}-{self.wire}"


@dataclass(slots=True)
class _Row:
    title: str
    reasons: dict[Column, str] = field(default_factory=dict)  # why a cell does not apply
    outcomes: dict[Column, list[bool]] = field(default_factory=dict)

    def cell(self, column: Column) -> str:
        outcomes = self.outcomes.get(column, [])
        if outcomes:
            return "pass" if all(outcomes) else "**fail**"
        return "n/a" if column in self.reasons else "not run"


class Results:
    def __init__(self, columns: list[Column]) -> None:
        self._columns = columns
        self._rows: dict[str, _Row] = {}

    def add_row(self, mark: pytest.Mark, test: str) -> list[Column]:
        """Learn of a test; the columns that it applies to."""
        [title] = mark.args
        row = self._rows[test] = _Row(title)
        applies = []
        for column in self._columns:
            if reason := mark.kwargs.get(column.wire):
                row.reasons[column] = reason
            elif column.version == self._columns[0].version or mark.kwargs.get("older"):
                applies.append(column)
        return applies

    def note(self, node: str, *, passed: bool) -> None:
        """A test ended: `tests/interop/test_x.py::test_name[4.18.0-v2-...]`."""
        test, _, parameters = node.rpartition("::")[2].partition("[")
        for column in self._columns:
            if str(column) in parameters:
                self._rows[test].outcomes.setdefault(column, []).append(passed)

    def write(self, path: Path) -> None:
        """Replace the table between the two marks in a Markdown file."""
        before, _, rest = path.read_text().partition(_BEGIN)
        _, _, after = rest.partition(_END)
        path.write_text(f"{before}{_BEGIN}\n{self.markdown()}\n{_END}{after}")

    def markdown(self) -> str:
        rows = [row for row in self._rows.values() if row.outcomes]
        head = ["Java client", *(f"{c.version} {c.wire}" for c in self._columns)]
        lines = [head, ["---"] * len(head)]
        lines += [[row.title, *map(row.cell, self._columns)] for row in rows]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        reasons = sorted(
            {
                f"- {row.title}, {column.wire}: {reason}."
                for row in rows
                for column, reason in row.reasons.items()
            }
        )
        return f"{table}\n\nNot applicable:\n\n" + "\n".join(reasons) if reasons else table


_BEGIN = "<!-- written by make interop -->"
_END = "<!-- end -->"
