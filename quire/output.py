"""What the command line shows: lines, tables, JSON, progress, questions. The one door to rich.

Results go to standard output and news to standard error, so that a pipe carries results only.
rich is loaded when a table is shown: a bookie, which is a command too, never shows one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from rich.console import Console

#: A pipe has no width; lines are not to be broken for it.
_PIPE_WIDTH = 10_000


def say(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def news(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def show_json(value: object) -> None:
    """One value, on one line: what scripts read."""
    say(json.dumps(value, default=str))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    _console().print(table, markup=False, highlight=False)


def show_fields(fields: Mapping[str, object]) -> None:
    """`name: value`, one per line, values below each other."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        say(f"{name + ':':<{width + 1}} {_cell(value)}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be taken back. No answer at all means no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody is there to ask: give --yes to go on.")
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")


class Bar(Protocol):
    def advance(self, count: int = 1) -> None: ...

    def set(self, done: int, total: int, *_: object) -> None: ...


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Bar]:
    """A bar on standard error while a long job runs; nothing if that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, Remaining(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as shown:  # fmt: skip
        task = shown.add_task(title, total=total)

        class _Shown:
            def advance(self, count: int = 1) -> None:
                shown.advance(task, count)

            def set(self, done: int, total: int, *_: object) -> None:
                shown.update(task, completed=done, total=total)

        yield _Shown()


def byte_count(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def drop_output() -> None:
    """Whoever read our output has gone (`| head`): let what is still buffered go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console() -> Console:
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(width=None if is_terminal else _PIPE_WIDTH, highlight=False)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
