"""`quire sql`: questions about the state of a cluster, in SQL.

SQLite does the work, on a private database that spills into a temporary file when it grows. The
question is compiled twice: once to learn which tables it names, with the guard that refuses
everything but reading, and once they are filled for good.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

import click

from quire.access import Target, run, target_options
from quire.output import show_json, show_table
from quire.sql_tables import TABLES, Row, Source, fill
from wire.errors import LedgerError

#: Rows of one shown table: a longer answer is shown in several.
_PAGE_ROWS: Final = 1000
#: Steps of SQLite between two looks at signals.
_STEPS: Final = 100_000
_SCHEMA: Final = (".schema", ".tables", ".help")
_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)


class QueryError(LedgerError):
    """The question is no SQL, is no question, or names what is not there."""


@click.command(
    epilog='Example: quire sql "select state, count(*) from ledgers group by state". '
    "Without a query the tables are listed."
)
@click.argument("query", required=False)
@target_options
def sql(target: Target, query: str | None) -> None:
    """Ask about bookies, ledgers and re-replication in SQL; nothing can be changed.

    Only the tables that QUERY names are read, each as it is at that moment. `-` reads the query
    from standard input.
    """
    if query == "-":
        query = sys.stdin.read()
    if query is None or query.strip() in _SCHEMA:
        _show_schema(target)
        return
    answer(target, query)


def _show_schema(target: Target) -> None:
    if target.as_json:
        for table in TABLES:
            show_json({"table": table.name, "columns": table.columns, "shows": table.shows})
        return
    show_table(["table", "columns", "shows"], [[t.name, t.columns, t.shows] for t in TABLES])


def answer(target: Target, query: str) -> None:
    with closing(sqlite3.connect("", isolation_level=None)) as database:
        for table in TABLES:
            database.execute(table.creation)
        names = _tables_of(database, query)
        if names:
            run(_fill, target, database, names)
        _show(target, database, query)


async def _fill(target: Target, database: sqlite3.Connection, names: frozenset[str]) -> None:
    columns = {table.name: len(table.columns) for table in TABLES}

    def insert(name: str, rows: Iterable[Row]) -> None:
        marks = ", ".join("?" * columns[name])
        database.executemany(f"insert into {name} values ({marks})", rows)

    database.execute("begin")
    async with target.cluster() as (store, cluster):
        await fill(Source(target=target, store=store, cluster=cluster), names, insert)
    database.execute("commit")


# ---------------------------------------------------------------------- SQLite


def _tables_of(database: sqlite3.Connection, query: str) -> frozenset[str]:
    """The tables that a question names; QueryError if it is more than a question."""
    ours = {table.name for table in TABLES}
    named: set[str] = set()

    def see(table: str) -> None:
        if table in ours:
            named.add(table)

    with _guarded(database, see):
        database.execute(f"explain {query}").close()
    return frozenset(named)


def _show(target: Target, database: sqlite3.Connection, query: str) -> None:
    with _guarded(database):
        cursor = database.execute(query)
        columns = _distinct(column[0] for column in cursor.description)
        if target.as_json:
            for row in cursor:
                values = map(_shown, row)
                show_json(dict(zip(columns, values, strict=True)))
            return
        is_first = True
        while (rows := cursor.fetchmany(_PAGE_ROWS)) or is_first:
            show_table(columns, ([_shown(value) for value in row] for row in rows))
            is_first = False


@contextmanager
def _guarded(
    database: sqlite3.Connection, see: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Only reading, errors in one line, and Ctrl-C works within a long question."""
    is_refused = False

    def allow(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        nonlocal is_refused
        if action not in _READING or (action == sqlite3.SQLITE_FUNCTION and _is_foreign(second)):
            is_refused = True
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_READ and first and see is not None:
            see(first)
        return sqlite3.SQLITE_OK

    database.set_authorizer(allow)
    # Signals are seen when Python runs, if only for this; the error ends the question.
    database.set_progress_handler(lambda: 0, _STEPS)
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        if is_refused:
            text = "only questions can be asked here, nothing was changed: write a select"
            raise QueryError(text) from None
        raise _readable(error) from None
    finally:
        database.set_authorizer(None)
        database.set_progress_handler(None, 0)


def _readable(error: Exception) -> Exception:
    text = " ".join(str(error).split()).rstrip(".")
    if text == "interrupted":
        return click.Abort()
    if text.startswith(("no such table", "no such column")):
        return QueryError(f"{text}: `quire sql` without a query lists tables and columns")
    return QueryError(f"the query cannot be answered: {text}")


def _is_foreign(function: str | None) -> bool:
    return function is not None and function.lower() == "load_extension"


def _distinct(names: Iterable[str]) -> Sequence[str]:
    """`a join b` may give two columns one name; JSON may not."""

    def each() -> Iterator[str]:
        seen: dict[str, int] = {}
        for name in names:
            number = seen[name] = seen.get(name, -1) + 1
            yield f"{name}:{number}" if number else name

    return list(each())


def _shown(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
