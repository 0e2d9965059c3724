"""The matrix as tables: rows are tests; columns are a client, its protocol, and whose bookies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.jars import NEWEST, OLDER

OURS, APACHE, MIXED = "ours", "apache", "mixed"
NOT_RUN = "not run"
_PASS, _FAIL = "pass", "**fail**"
_NO_CELL = ""  # nobody asks that there
_TAKES_OVER = " takes over"
_BOOKIES = {OURS: "our bookies", APACHE: "Apache's", MIXED: "both in one ensemble"}


@dataclass(frozen=True, slots=True)
class Column:
    """`version` is that of Apache's side, whichever side that is."""

    client: str
    version: str
    wire: str
    bookies: str

    def __str__(self) -> str:
        return f"{self.client}-{self.version}-{self.wire}-on-{self.bookies}"

    @property
    def is_older(self) -> bool:
        return self.version == OLDER

    @property
    def heading(self) -> str:
        if self.client == OURS:
            return f"{_BOOKIES[self.bookies]} ({self.version})"
        return f"{self.version} {self.wire}, {_BOOKIES[self.bookies]}"


#: Apache's client on its own bookies is Apache's to test.
JAVA_COLUMNS = [
    *(Column("java", version, wire, OURS) for version in (NEWEST, OLDER) for wire in ("v2", "v3")),
    *(Column("java", NEWEST, wire, MIXED) for wire in ("v2", "v3")),
]
#: It carries data over v2 and asks over v3, so it has one column per kind of bookies.
OUR_COLUMNS = [
    Column(OURS, NEWEST, "both", APACHE),
    Column(OURS, NEWEST, "both", MIXED),
    Column(OURS, OLDER, "both", APACHE),
]


@dataclass(frozen=True, slots=True)
class Cell:
    """Where the outcome of one test stands: a table by its name, a row, a column."""

    table: str
    row: str
    column: str


@dataclass(slots=True)
class _Row:
    title: str
    columns: list[Column]
    reasons: dict[Column, str] = field(default_factory=dict)  # why a cell does not apply
    outcomes: dict[Column, list[bool]] = field(default_factory=dict)

    def cell(self, column: Column) -> str:
        outcomes = self.outcomes.get(column, [])
        if outcomes:
            return _PASS if all(outcomes) else _FAIL
        return "n/a" if column in self.reasons else NOT_RUN


class Results:
    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._crossings: dict[tuple[str, str, str], list[bool]] = {}
        self._cells: dict[Cell, list[bool]] = {}  # in the order of the tests
        self._cell_of: dict[str, Cell] = {}  # by the test that fills it
        self._old: dict[tuple[str, str], str] = {}  # by title of the row and heading of the column

    def add_row(
        self, title: str, about: Mapping[str, object], test: str, columns: list[Column]
    ) -> list[Column]:
        """Learn of a test, and what its mark says about it; the columns that it applies to."""
        row = self._rows[test] = _Row(title, columns)
        applies = []
        for column in columns:
            if reason := about.get(column.wire) or about.get(column.bookies):
                row.reasons[column] = str(reason)
            elif not column.is_older or about.get("older"):
                applies.append(column)
        return applies

    def note(self, node: str, *, passed: bool) -> None:
        """A test ended: `tests/interop/test_x.py::test_name[java-4.18.0-v2-on-ours-...]`."""
        test, _, parameters = node.rpartition("::")[2].partition("[")
        if node in self._cell_of:
            self._cells[self._cell_of[node]].append(passed)
        row = self._rows.get(test)
        if row is None:
            return
        for column in row.columns:
            if str(column) in parameters:
                row.outcomes.setdefault(column, []).append(passed)

    def add_cell(self, node: str, cell: Cell) -> None:
        """Learn of a test that fills one cell of a table of its own."""
        self._cell_of[node] = cell
        self._cells.setdefault(cell, [])

    def note_crossing(self, *, writer: str, other: str, bookies: str, passed: bool) -> None:
        self._crossings.setdefault((writer, other, bookies), []).append(passed)

    # ------------------------------------------------------------------ as text

    def write(self, path: Path) -> None:
        """Replace the tables between the two marks in a Markdown file.

        Cells that were not run stay as they are, so a part of the matrix can be run again.
        """
        before, _, rest = path.read_text().partition(_BEGIN)
        old, _, after = rest.partition(_END)
        self._old = _cells(old)
        path.write_text(f"{before}{_BEGIN}\n{self.markdown()}\n{_END}{after}")

    def markdown(self) -> str:
        parts = [
            self._rows_table("Our client on", OUR_COLUMNS),
            self._rows_table("Java client", JAVA_COLUMNS),
            self._crossings_table(),
            *(self._cells_table(table) for table in dict.fromkeys(c.table for c in self._cells)),
        ]
        return "\n\n".join(part for part in parts if part)

    def _rows_table(self, what: str, columns: list[Column]) -> str:
        rows = [row for row in self._rows.values() if row.columns == columns]
        lines = [[row.title, *(self._cell(row, column) for column in columns)] for row in rows]
        if not rows:
            return ""
        table = _table([what, *(column.heading for column in columns)], lines)
        reasons = sorted(
            {
                f"- {row.title} ({column.heading}): {reason}."
                for row in rows
                for column, reason in row.reasons.items()
            }
        )
        return f"{table}\n\nNot applicable:\n\n" + "\n".join(reasons) if reasons else table

    def _cell(self, row: _Row, column: Column) -> str:
        found = row.cell(column)
        return self._old.get((row.title, column.heading), found) if found == NOT_RUN else found

    def _cells_table(self, table: str) -> str:
        cells = {cell: found for cell, found in self._cells.items() if cell.table == table}
        columns = list(dict.fromkeys(cell.column for cell in cells))
        lines = []
        for title in dict.fromkeys(cell.row for cell in cells):
            line = [title]
            for column in columns:
                outcomes = cells.get(Cell(table, title, column))
                if outcomes is None:
                    line.append(_NO_CELL)
                elif outcomes:
                    line.append(_PASS if all(outcomes) else _FAIL)
                else:
                    line.append(self._old.get((title, column), NOT_RUN))
            lines.append(line)
        return _table([table, *columns], lines)

    def _crossings_table(self) -> str:
        """Who took over whose ledger: passed of tried, over digests, shapes and record formats."""
        kinds = [OURS, APACHE, MIXED]
        known = {title for title, _ in self._old if title.endswith(_TAKES_OVER)}
        titles = {(w, o): f"{w} writes, {o}{_TAKES_OVER}" for w, o, _ in self._crossings}
        names = {title: pair for pair, title in titles.items()}
        lines = []
        for title in sorted(known | set(names)):
            pair = names.get(title, ("", ""))
            cells = [_count(self._crossings.get((*pair, kind), [])) for kind in kinds]
            old = [self._old.get((title, _BOOKIES[kind]), NOT_RUN) for kind in kinds]
            both = zip(cells, old, strict=True)
            lines.append([title, *(_better(cell, before) for cell, before in both)])
        if not lines:
            return ""
        return _table(["Take-overs that passed", *(_BOOKIES[kind] for kind in kinds)], lines)


def _cells(text: str) -> dict[tuple[str, str], str]:
    """The cells of Markdown tables, by the first cell of their line and of their column."""
    found: dict[tuple[str, str], str] = {}
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif set(cells[0]) != {"-"}:
            found |= {
                (cells[0], name): cell for name, cell in zip(head[1:], cells[1:], strict=True)
            }
    return found


def _better(new: str, old: str) -> str:
    """A part that passed again says nothing new about the whole that did."""
    known = re.fullmatch(r"(\d+) of \1", old)
    found = re.fullmatch(r"(\d+) of \1", new)
    is_part = known is not None and found is not None and int(found[1]) < int(known[1])
    return old if new == NOT_RUN or is_part else new


def _count(outcomes: list[bool]) -> str:
    text = f"{sum(outcomes)} of {len(outcomes)}" if outcomes else NOT_RUN
    return text if all(outcomes) else f"**{text}**"


def _table(head: list[str], lines: Iterable[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


_BEGIN = "<!-- written by make interop -->"
_END = "<!-- end -->"
